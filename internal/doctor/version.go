package doctor

import (
	"fmt"

	"github.com/redrive-mq/redrive/internal/rabbitmq/version"
)

func connection(s *Scene) (all []Finding) {
	if err := s.Missing[AMQP]; err != nil {
		return []Finding{{Status: Wrong, What: err.Error(), Remedy: "Check broker.url: host, port, user, password, virtual host. As RabbitMQ sees the user:",
			Commands: []string{"rabbitmqctl authenticate_user " + Quote(s.User), "rabbitmqctl list_user_permissions " + Quote(s.User)}}}
	}
	for _, err := range s.Unreached {
		all = append(all, Finding{Status: Warning, What: fmt.Sprintf("one of several addresses does not answer: %v", err), Why: "The others serve meanwhile, and one less is left to go to.",
			Remedy: "Start that node, or repair its address in broker.url or broker.management."})
	}
	return all
}

func rabbitmqVersion(s *Scene) []Finding {
	supported, ok := version.AtLeast(s.Version, 3, 10)
	switch {
	case !ok:
		return []Finding{{Status: Unknown, What: "RabbitMQ did not say its version"}}
	case !supported:
		return []Finding{{Status: Wrong, What: "RabbitMQ " + s.Version + " is too old: Redrive needs 3.10", Remedy: "Upgrade RabbitMQ."}}
	case !s.versionAtLeast(4, 0):
		return []Finding{{Status: Warning, What: "RabbitMQ " + s.Version + " fails over a malformed x-death",
			Remedy: "Upgrade to RabbitMQ 4. Until then let only users publish whom you trust, look at redrive.quarantine, and prefer at-most-once where publishers are strangers."}}
	}
	return []Finding{{Status: OK, What: "RabbitMQ " + s.Version}}
}
