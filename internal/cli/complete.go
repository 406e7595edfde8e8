package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/query"
)

// completionTimeout is how long a person who presses Tab waits for the service.
const completionTimeout = time.Second

const noFiles = cobra.ShellCompDirectiveNoFileComp

// names returns the names that begin with a word; none if the service does not answer.
func (p *program) names(c *cobra.Command, word string, ask func(context.Context, httpapi.Client) ([]string, error)) (some []string) {
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	client, err := p.client()
	if err != nil {
		return nil
	}
	all, _ := ask(ctx, client)
	for _, name := range all {
		if strings.HasPrefix(name, word) && plain(name) == name {
			some = append(some, name)
		}
	}
	return some
}

func queueNames(ctx context.Context, client httpapi.Client) (all []string, err error) {
	queues, err := client.Queues(ctx)
	for _, q := range queues.Queues {
		all = append(all, q.Name)
	}
	return all, err
}

func (p *program) completeQueues(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && c.ValidArgsFunction != nil && strings.Contains(c.Use, "QUEUE") {
		return nil, noFiles
	}
	return p.names(c, word, queueNames), noFiles
}

func (p *program) completeOps(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return p.names(c, word, func(ctx context.Context, client httpapi.Client) (all []string, err error) {
		ops, err := client.Operations(ctx)
		for _, o := range ops.Operations {
			all = append(all, o.ID)
		}
		return all, err
	}), noFiles
}

// completeQuery proposes completions of a query's last word.
func (p *program) completeQuery(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	last := word[strings.LastIndexAny(word, " (")+1:]
	before := strings.TrimSuffix(word, last)
	if begun, ok := strings.CutPrefix(last, "queue:"); ok {
		some := p.names(c, begun, queueNames)
		for i, name := range some {
			if strings.ContainsAny(name, ` "()*?`) {
				name = query.Quote(name)
			}
			some[i] = before + "queue:" + name
		}
		return some, noFiles
	}
	var some []string
	for _, s := range query.Complete(word, nil, false) {
		some = append(some, cobra.CompletionWithDesc(before+s.Text, s.Doc))
	}
	return some, noFiles | cobra.ShellCompDirectiveNoSpace
}
