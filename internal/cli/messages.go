package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
)

func (p *program) messages() *cobra.Command {
	c := &cobra.Command{Use: "messages", Short: "Show failed messages"}
	c.AddCommand(p.messagesList(), p.messagesCount(), p.messagesShow(), p.messagesTail())
	return commandGroup(c)
}

func messageID(m inspect.Message) string { return m.ID }

func (p *program) messagesList() *cobra.Command {
	var after string
	var limit int
	c := p.withQuery(&cobra.Command{
		Use:   "list [QUERY]",
		Short: "List messages, without consuming them",
		Long: `List messages without consuming them, latest first: by when each is due, or was
parked or retried. Page and API have the same query language.`,
		Example: `  redrive messages list 'queue:orders.* state:parked error:"timeout" age:>2h'
  redrive messages list --queue orders -o name | xargs redrive replay`,
	}, func(ctx context.Context, client httpapi.Client, query string) error {
		if limit < 1 {
			return fmt.Errorf("--limit %d: expected at least 1: %w", limit, errUsage)
		}
		page, err := fetchMessages(ctx, client, query, after, limit)
		if err != nil {
			return err
		}
		if err := listColumns(p, page, page.Messages, messageColumns(time.Now())); err != nil {
			return err
		}
		if page.Bounded != "" {
			fmt.Fprintln(p.err, plain(page.Bounded))
		}
		p.more(page.After)
		return nil
	})
	c.Flags().StringVar(&after, "after", "", "continue after the previous page")
	c.Flags().IntVar(&limit, "limit", 100, "the most to show")
	return p.watched(p.withOutput(c))
}

func (p *program) messagesCount() *cobra.Command {
	return p.watched(p.withFormats(p.withQuery(&cobra.Command{
		Use:     "count [QUERY]",
		Short:   "Count messages",
		Long:    "Count messages. Of a query that would take long, it prints how many were found so far, as \"1,204+\".",
		Example: "  redrive messages count 'queue:orders.* state:parked'",
	}, func(ctx context.Context, client httpapi.Client, query string) error {
		n, err := client.Count(ctx, query)
		if err != nil {
			return err
		}
		return write(p, n, func(n httpapi.Count) string { return strconv.FormatInt(n.Count, 10) }, func(w io.Writer) {
			more := ""
			if !n.Exact {
				more = "+"
			}
			fmt.Fprintln(w, count(n.Count)+more)
		})
	}), "table", "json", "yaml", "name"))
}

// mostOnAPage is how many messages the service returns at once.
const mostOnAPage = 1000

// fetchMessages returns what a query finds, up to a limit. A page of the service's may be short,
// even empty, and not be the last.
func fetchMessages(ctx context.Context, client httpapi.Client, q, after string, limit int) (all inspect.Page, err error) {
	all.Messages = []inspect.Message{}
	for all.After = after; ; {
		page, err := client.Messages(ctx, q, all.After, min(limit-len(all.Messages), mostOnAPage))
		if err != nil {
			return all, err
		}
		all.Messages = append(all.Messages, page.Messages...)
		all.After, all.Bounded = page.After, page.Bounded
		all.Looked += page.Looked
		if page.After == "" || len(all.Messages) >= limit {
			return all, nil
		}
	}
}

func messageColumns(now time.Time) []column[inspect.Message] {
	return []column[inspect.Message]{
		{Field: "ID"}, {Field: "Queue"}, {Field: "State"},
		{Head: "Attempt", Value: func(m inspect.Message) any { return strconv.Itoa(m.Attempt) }},
		{Head: "Due", Value: func(m inspect.Message) any {
			if m.Paused {
				return "paused"
			}
			return untilText(m.Due, now)
		}},
		{Field: "Reason"},
		{Head: "Size", Value: func(m inspect.Message) any { return strconv.Itoa(m.Size) }},
		{Head: "Why", Value: func(m inspect.Message) any {
			if m.Error == "" {
				return m.ParkedFor
			}
			return strings.TrimPrefix(m.ParkedFor+": "+m.Error, ": ")
		}},
	}
}
