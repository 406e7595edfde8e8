package cli

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
)

func (p *program) messagesShow() *cobra.Command {
	var body string
	c := p.withClient(&cobra.Command{
		Use:   "show ID",
		Short: "Show one message in full: its failures, why it waits, headers, decoded body",
		Long: `Show one message in full: each failure and its outcome, why it waits that long or is
parked, its properties and headers (those that RabbitMQ wrote, and those that any publisher
could have written), and its decoded body.

--body shows the body alone: raw, its bytes as they are (never to a terminal); decoded, as
text; hex.`,
		Example: "  redrive messages show 0198f0a0-0000-7000-8000-000000000001 --body raw > order.bin",
		Args:    exactArgs(1, "a message's ID"),
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		switch {
		case body == "raw" || body == "hex":
			return p.writeBody(ctx, client, args[0], body)
		case body != "" && body != "decoded":
			return fmt.Errorf("--body %q: expected raw, decoded or hex: %w", body, errUsage)
		}
		m, err := client.Message(ctx, args[0])
		if err != nil {
			return err
		}
		if body == "decoded" {
			return p.decodedBody(m.Body)
		}
		return write(p, m, func(m inspect.Detail) string { return m.ID }, func(w io.Writer) {
			detail(w, m, time.Now())
			_ = w.(*tableWriter).Flush()
			if m.Body != nil {
				fmt.Fprintln(p.out, "\nBODY")
				_ = p.steps(m.Body)
			}
		})
	})
	c.Flags().StringVar(&body, "body", "", "the body alone: raw, decoded or hex")
	_ = c.RegisterFlagCompletionFunc("body", cobra.FixedCompletions(bodies, cobra.ShellCompDirectiveNoFileComp))
	return p.withFormats(c, "table", "json", "jsonl", "yaml", "name")
}

var bodies = []string{"raw", "decoded", "hex"}

// writeBody writes the body only: as it is, or in hex.
func (p *program) writeBody(ctx context.Context, client httpapi.Client, id, as string) error {
	if as == "raw" {
		if err := p.notRaw(); err != nil {
			return err
		}
	}
	r, err := client.Body(ctx, id)
	if err != nil {
		return err
	}
	defer r.Close()
	if as == "raw" {
		_, err = io.Copy(p.out, r)
		return err
	}
	d := hex.Dumper(p.out)
	if _, err := io.Copy(d, r); err != nil {
		return err
	}
	return d.Close()
}

// decodedBody writes the decoded text only. JSON keeps its meaning.
func (p *program) decodedBody(r *decode.Result) error {
	switch {
	case r == nil:
		return exitErrorf(ExitNotFound, "it was retried, and its body is not kept any more")
	case r.Text == "" && r.Format != "empty":
		return exitErrorf(ExitError, "%w", hint.Errorf("see --body hex", "it is not text, but %s", r.Format))
	case r.Truncated:
		fmt.Fprintln(p.err, "what follows is shortened")
	}
	if structured(r) {
		return p.print(harmless(r.Text)+"\n", nil)
	}
	return lines(p.out, r.Text)
}

// structured tells whether the text is JSON.
func structured(r *decode.Result) bool {
	return slices.Contains([]string{"json", "messagepack", "cbor", "protobuf"}, r.Format)
}

// detail shows all that is known about a message, but for its body.
func detail(w io.Writer, m inspect.Detail, now time.Time) {
	facts(w, m, now)
	timeline(w, m.Timeline)
	if len(m.Properties) > 0 {
		fmt.Fprintln(w)
		rows(w, propertyColumns, m.Properties, now)
	}
	if len(m.Headers) > 0 {
		fmt.Fprintln(w)
		rows(w, headerColumns, m.Headers, now)
	}
}

var (
	propertyColumns = []column[inspect.Property]{{Head: "Property", Field: "Name"}, {Field: "Value"}}
	headerColumns   = []column[inspect.Header]{{Head: "Header", Field: "Name"}, {Field: "Type"}, {Field: "From"}, {Field: "Value"}}
)

// facts are what there is one of: a line each.
func facts(w io.Writer, m inspect.Detail, now time.Time) {
	line := func(name, value string) {
		if value != "" && value != "-" {
			fmt.Fprintf(w, "%s\t%s\n", name, plain(value))
		}
	}
	until := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return timeText(t) + " (" + ago(t, now) + ")"
	}
	line("ID", m.ID)
	line("Key", m.Key)
	line("Queue", m.Queue)
	state := m.State
	if m.Paused {
		state += "; the retries of its queue are paused"
	}
	if m.State == inspect.Retried {
		state += "; not seen again since"
	}
	line("State", state)
	line("Due", until(m.Due))
	line("Parked", until(m.ParkedAt))
	line("Parked for", m.ParkedFor)
	line("Retried", until(m.RetriedAt))
	line("Restorable until", until(m.Restorable))
	line("Failures", count(m.Attempt))
	line("Reason", m.Reason)
	line("Error", m.Error)
	line("Policy", m.Policy)
	line("Group", m.Group)
	line("First failed", until(&m.FirstFailed))
	line("Failed", until(&m.Failed))
	line("Exchange", m.Exchange)
	line("Routing key", m.RoutingKey)
	line("Goes to", m.SendsTo)
	line("Made from", m.MadeFrom)
	line("Made into", m.MadeInto)
	line("Size", fmt.Sprintf("%s bytes", count(m.Size)))
	for _, n := range m.Notes {
		line("Note", n)
	}
	for _, o := range m.SameID {
		line("Same ID", fmt.Sprintf("%s, %s in %s", o.Key, o.State, o.Queue))
	}
}

// timeline shows the failures, and how each wait ended.
func timeline(w io.Writer, all []inspect.Step) {
	fmt.Fprintln(w, "\nFAILURE\tWHEN\tREASON\tWAIT\tENDED\tWHY")
	for _, s := range all {
		ended := "-"
		if s.Ended != nil {
			ended = s.Ending + " " + timeText(s.Ended)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", s.Attempt, timeText(&s.Failed), cell(s.Reason), cell(s.Delay), plain(ended), cell(s.Why))
		if s.Error != "" {
			fmt.Fprintf(w, "\t\t%s\n", cell(s.Error))
		}
	}
}
