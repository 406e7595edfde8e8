package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/query"
)

// withFind adds the flags that say which messages, besides the argument.
func withFind(p *program, c *cobra.Command, text, queue, state *string) {
	c.Flags().StringVar(text, "query", "", "the query, as the argument may be")
	c.Flags().StringVar(queue, "queue", "", "of this work queue; left out: of all")
	c.Flags().StringVar(state, "state", "", "waiting, retried, parked or discarded; left out: all")
	_ = c.RegisterFlagCompletionFunc("queue", p.completeQueues)
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
}

var states = []string{console.Waiting, console.Retried, console.Parked, console.Discarded}

// find is the query that arguments and flags together make.
func find(args []string, text, queue, state string) (string, error) {
	var terms []string
	switch state {
	case "":
	case console.Waiting, console.Retried, console.Parked, console.Discarded:
		terms = append(terms, "state:"+state)
	default:
		return "", fmt.Errorf("--state %q: expected waiting, retried, parked or discarded: %w", state, errUsage)
	}
	if queue != "" {
		terms = append(terms, "queue:"+query.Quote(queue))
	}
	said := strings.TrimSpace(strings.Join(args, " "))
	if said != "" && text != "" {
		return "", fmt.Errorf("give the query as an argument or with --query, not both: %w", errUsage)
	}
	if said += strings.TrimSpace(text); said != "" {
		if len(terms) > 0 && strings.Contains(said, "OR") {
			said = "(" + said + ")"
		}
		terms = append([]string{said}, terms...)
	}
	return strings.Join(terms, " "), nil
}

// finding is the query of a command, and a client to ask it with.
func (p *program) finding(args []string, text, queue, state string) (q string, client httpapi.Client, err error) {
	if q, err = find(args, text, queue, state); err == nil {
		client, err = p.asking(q)
	}
	return q, client, err
}
