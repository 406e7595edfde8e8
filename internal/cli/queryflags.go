package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
)

// queryFlags are the flags that say which messages, besides the argument.
type queryFlags struct{ text, queue, state string }

func (f *queryFlags) add(p *program, c *cobra.Command) {
	c.Flags().StringVar(&f.text, "query", "", "the query, as the argument may be")
	c.Flags().StringVar(&f.queue, "queue", "", "of this work queue; left out: of all")
	c.Flags().StringVar(&f.state, "state", "", "waiting, retried, parked or discarded; left out: all")
	_ = c.RegisterFlagCompletionFunc("queue", p.completeQueues)
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
}

var states = []string{inspect.Waiting, inspect.Retried, inspect.Parked, inspect.Discarded}

// query is the query that arguments and flags together make.
func (f *queryFlags) query(args []string) (string, error) {
	var terms []string
	argument, flag := strings.TrimSpace(strings.Join(args, " ")), strings.TrimSpace(f.text)
	if argument != "" && f.text != "" {
		return "", fmt.Errorf("give the query as an argument or with --query, not both: %w", errUsage)
	}
	if text := argument + flag; text != "" {
		if f.queue+f.state != "" && strings.Contains(text, "OR") {
			text = "(" + text + ")"
		}
		terms = append(terms, text)
	}
	if f.state != "" {
		if !slices.Contains(states, f.state) {
			return "", fmt.Errorf("--state %q: expected waiting, retried, parked or discarded: %w", f.state, errUsage)
		}
		terms = append(terms, "state:"+f.state)
	}
	if f.queue != "" {
		terms = append(terms, "queue:"+query.Quote(f.queue))
	}
	return strings.Join(terms, " "), nil
}

// withQuery completes a command about the messages that a query finds: run gets the query and a
// client to ask it with.
func (p *program) withQuery(c *cobra.Command, run func(ctx context.Context, client httpapi.Client, query string) error) *cobra.Command {
	var f queryFlags
	f.add(p, c)
	c.ValidArgsFunction = p.completeQuery
	c.RunE = func(c *cobra.Command, args []string) error {
		q, err := f.query(args)
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
