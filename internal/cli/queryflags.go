package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
)

// withQueryFlags adds the flags that say which messages, besides the argument.
func withQueryFlags(p *program, c *cobra.Command, text, queue, state *string) {
	c.Flags().StringVar(text, "query", "", "the query, as the argument may be")
	c.Flags().StringVar(queue, "queue", "", "of this work queue; left out: of all")
	c.Flags().StringVar(state, "state", "", "waiting, retried, parked or discarded; left out: all")
	_ = c.RegisterFlagCompletionFunc("queue", p.completeQueues)
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
}

var states = []string{inspect.Waiting, inspect.Retried, inspect.Parked, inspect.Discarded}

// queryFrom is the query that arguments and flags together make.
func queryFrom(args []string, text, queue, state string) (string, error) {
	var terms []string
	switch state {
	case "":
	case inspect.Waiting, inspect.Retried, inspect.Parked, inspect.Discarded:
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

// withQuery completes a command about the messages that a query finds: run gets the query and a
// client to ask it with.
func (p *program) withQuery(c *cobra.Command, run func(ctx context.Context, client httpapi.Client, query string) error) *cobra.Command {
	var text, queue, state string
	withQueryFlags(p, c, &text, &queue, &state)
	c.ValidArgsFunction = p.completeQuery
	c.RunE = func(c *cobra.Command, args []string) error {
		q, err := queryFrom(args, text, queue, state)
		if err != nil {
			return err
		}
		client, err := p.clientFor(q)
		if err != nil {
			return err
		}
		return run(c.Context(), client, q)
	}
	return p.withAddress(c)
}
