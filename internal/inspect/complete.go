package inspect

import (
	"context"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/query"
)

// mostSuggestions is how many ways to go on are proposed.
const mostSuggestions = 50

// Complete proposes how the last word of a query may go on: fields and values, the queues that the
// caller sees among them. Where onlyGroups is set, the query is one about error groups.
func (in *Inspector) Complete(ctx context.Context, by auth.Caller, text string, onlyGroups bool) ([]query.Suggestion, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return nil, err
	}
	var failed error
	names := func(field string) (names []string) {
		switch field {
		case "queue":
			counts, err := in.counts(ctx)
			failed = err
			for _, n := range counts {
				if by.Sees(n.Queue) {
					names = append(names, n.Queue)
				}
			}
		case "policy":
			for _, p := range in.policies() {
				names = append(names, p.Name)
			}
		}
		return names
	}
	all := query.Complete(text[max(0, len(text)-4096):], names, onlyGroups)
	if all == nil {
		all = []query.Suggestion{}
	}
	for i := range all {
		all[i].Text = strings.ToValidUTF8(all[i].Text, "\uFFFD")
	}
	return all[:min(len(all), mostSuggestions)], failed
}
