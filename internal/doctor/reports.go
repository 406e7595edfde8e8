package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// reportsByAMQP is asked where the management API is missing: the service then lacks it, too.
func reportsByAMQP(s *Scene) []Finding {
	var patterns []string
	for i := range s.Config.Policies {
		for _, q := range s.Config.Policies[i].Queues {
			if !s.Config.Policies.Exact(q) {
				patterns = append(patterns, fmt.Sprintf("%q", q))
			}
		}
	}
	if len(patterns) == 0 {
		return nil
	}
	f := Finding{Status: Warning, What: fmt.Sprintf("reports of failures for queues that only %s matches, and that have no retry exchange yet, wait: %v", strings.Join(patterns, ", "), s.Missing[Queues]),
		Remedy: "Let the service ask the management API (broker.management), or name the queues in a policy."}
	if errors.Is(s.Missing[Queues], management.ErrDenied) && s.Manage != nil {
		f.Remedy = "Give the user of broker.management a tag, if it has none, or name the queues in a policy."
		f.Commands = []string{"rabbitmqctl set_user_tags " + Quote(s.Manage.User()) + " management"}
	}
	return []Finding{f}
}
