package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
)

// adoptFlags are the flags of adopt.
type adoptFlags struct {
	actions.AdoptRequest
	dry, detach, list, stop bool
}

func (p *program) adopt() *cobra.Command {
	var f adoptFlags
	c := &cobra.Command{
		Use:   "adopt QUEUE",
		Short: "Take the messages of an existing dead-letter or error queue into Redrive",
		Long: `Take the messages of an existing dead-letter or error queue into Redrive, where they are
parked: grouped by their error, searchable, and replayed when you say so. The queue they
failed in, the error, the attempts and the times come from x-death, or from the headers of
a framework (--preset).

It first shows what it would do, and asks: how many messages there are, from which queues,
with which errors, and what they do not tell. To look at a message RabbitMQ delivers and
requeues it, which counts towards a delivery limit; at most 1,000 are looked at.

Each message is stored, and only then acknowledged. The work is done by the service: Ctrl-C
here only ends the watching, and a service that was killed continues where it stopped.

The service's user needs read on the queue: see redrive permissions --adopt QUEUE.`,
		Example: `  redrive adopt orders.dlq --dry-run
  redrive adopt orders.dlq --rate 500 --yes
  redrive adopt shop_error --preset masstransit --follow
  redrive adopt --list
  redrive adopt shop_error --stop`,
		ValidArgsFunction: cobra.NoFileCompletions,
		Args:              cobra.MaximumNArgs(1),
	}
	c.Flags().StringVar(&f.Preset, "preset", "", "the framework whose headers are believed: "+strings.Join(actions.Presets(), ", ")+" (x-death alone); left out: whichever wrote them")
	_ = c.RegisterFlagCompletionFunc("preset", cobra.FixedCompletions(actions.Presets(), cobra.ShellCompDirectiveNoFileComp))
	c.Flags().BoolVar(&f.Follow, "follow", false, "continue when the queue is empty, until --stop")
	c.Flags().Float64Var(&f.Rate, "rate", 0, "messages per second (0 = unlimited)")
	c.Flags().StringVar(&f.Reason, "reason", "", "why, for the audit log")
	c.Flags().BoolVar(&f.dry, "dry-run", false, "only show what would be done")
	c.Flags().BoolVar(&f.detach, "detach", false, "do not watch it")
	c.Flags().BoolVar(&f.list, "list", false, "show the queues that are adopted, or were")
	c.Flags().BoolVar(&f.stop, "stop", false, "stop adopting the queue; what was adopted stays")
	c.MarkFlagsMutuallyExclusive("dry-run", "list", "stop")
	p.withYes(c, "do not ask")
	return p.withOutput(p.withClient(c, func(ctx context.Context, client httpapi.Client, args []string) error {
		switch {
		case f.list:
			return p.listAdoptions(ctx, client)
		case len(args) == 0:
			return fmt.Errorf("give the dead-letter queue: %w", errUsage)
		}
		f.Queue = args[0]
		if f.stop {
			if err := client.StopAdopting(ctx, f.Queue, f.Reason); err != nil {
				return err
			}
			fmt.Fprintf(p.err, "The queue %q is no longer adopted.\n", plain(f.Queue))
			return nil
		}
		return p.adoptQueue(ctx, client, &f)
	}))
}

func (p *program) adoptQueue(ctx context.Context, client httpapi.Client, f *adoptFlags) error {
	if f.dry || !p.yes {
		preview, err := client.PreviewAdopt(ctx, f.AdoptRequest)
		if err != nil {
			return err
		}
		show := func(w io.Writer) { adoptPreview(w, &preview, time.Now()) }
		if f.dry {
			return write(p, preview, func(a actions.AdoptPreview) string { return a.Queue }, show)
		}
		if err := p.tableToStderr(show); err != nil {
			return err
		}
		if preview.Messages == 0 && !f.Follow {
			return nil
		}
		if err := p.confirm(ctx, fmt.Sprintf("Adopt the queue %s?", f.Queue)); err != nil {
			return err
		}
	}
	a, err := client.Adopt(ctx, f.AdoptRequest)
	if err != nil {
		return err
	}
	if f.Follow || f.detach {
		fmt.Fprintf(p.err, "It runs in the service; redrive adopt --list shows how far it is, redrive adopt %s --stop ends it.\n", plain(f.Queue))
	} else if a, err = p.watchAdoption(ctx, client, a); err != nil {
		return err
	}
	if err := write(p, a, func(a actions.Adoption) string { return a.Queue }, func(w io.Writer) { fmt.Fprintln(w, adoptionText(&a)) }); err != nil {
		return err
	}
	if a.Ended != nil && a.Problem != "" {
		return exitErrorf(ExitPartly, "the queue %q is not adopted whole: %s", a.Queue, a.Problem)
	}
	return nil
}

// watchAdoption shows progress until an adoption has ended.
func (p *program) watchAdoption(ctx context.Context, client httpapi.Client, a actions.Adoption) (actions.Adoption, error) {
	shown := ""
	for a.Ended == nil {
		select {
		case <-ctx.Done():
			fmt.Fprintln(p.err, "It is no longer watched, and continues in the service: see redrive adopt --list.")
			return a, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
		all, err := client.Adoptions(ctx)
		if err != nil {
			return a, err
		}
		there := false
		for _, now := range all.Adoptions {
			if there = now.Queue == a.Queue && now.Since.Equal(a.Since); there {
				a = now
				break
			}
		}
		if !there {
			return a, exitErrorf(ExitPartly, "the adoption of the queue %q was stopped", a.Queue)
		}
		if text := adoptionText(&a); text != shown && isTerminal(p.in) {
			fmt.Fprintln(p.err, text)
			shown = text
		}
	}
	return a, nil
}

func (p *program) listAdoptions(ctx context.Context, client httpapi.Client) error {
	all, err := client.Adoptions(ctx)
	if err != nil {
		return err
	}
	return list(p, all, all.Adoptions, func(a actions.Adoption) string { return a.Queue }, func(w io.Writer) {
		if len(all.Adoptions) == 0 {
			fmt.Fprintln(w, "no queue is adopted")
			return
		}
		fmt.Fprintln(w, "QUEUE\tSTATE\tADOPTED\tLEFT\tSINCE\tBY\tPROBLEM")
		for i := range all.Adoptions {
			a := &all.Adoptions[i]
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", cell(a.Queue), adoptionState(a), a.Adopted, a.Left, ago(&a.Since, time.Now()), cell(a.By), cell(a.Problem))
		}
	})
}

func adoptionState(a *actions.Adoption) string {
	switch {
	case a.Ended != nil:
		return "ended"
	case a.Follow:
		return "followed"
	}
	return "running"
}

func adoptionText(a *actions.Adoption) string {
	text := fmt.Sprintf("%s adopted from the queue %s", messages(a.Adopted), plain(a.Queue))
	if a.Ended == nil {
		text += fmt.Sprintf(", %d left", a.Left)
	}
	if a.Problem != "" {
		text += ": " + plain(a.Problem)
	}
	return text
}

// adoptPreview writes what adopting a queue would do.
func adoptPreview(w io.Writer, a *actions.AdoptPreview, now time.Time) {
	fmt.Fprintf(w, "%s in the queue %s\n", messages(a.Messages), plain(a.Queue))
	if a.Messages == 0 {
		return
	}
	if a.LookedAt < a.Messages {
		fmt.Fprintf(w, "The first %d were looked at.\n", a.LookedAt)
	}
	if a.Consumers > 0 {
		fmt.Fprintf(w, "The queue has %s, which take messages too: stop them.\n", plural(a.Consumers, "other consumer", "other consumers"))
	}
	fmt.Fprintln(w, "\nFAILED IN\tMESSAGES\tREPLAY")
	for _, o := range a.Origins {
		queue, replay := cell(o.Queue), "to this queue"
		if o.Queue == "" {
			queue, replay = "(they do not tell)", "redrive copy --to QUEUE sends them to one"
		} else if o.Obstacle != "" {
			replay = cell(o.Obstacle)
		}
		fmt.Fprintf(w, "%s\t%d\t%s\n", queue, o.Messages, replay)
	}
	fmt.Fprintln(w, "\nERROR\tMESSAGES\tFAILED IN\tREASON\tOLDEST\tNEWEST")
	for _, g := range a.Groups {
		text, _, _ := strings.Cut(g.Error, "\n")
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", cell(text), g.Messages, cell(g.Queue), cell(g.Reason), ago(g.Oldest, now), ago(g.Newest, now))
	}
	if len(a.Unknown) > 0 {
		fmt.Fprintln(w, "\nNOT KNOWN\tMESSAGES")
	}
	for _, u := range a.Unknown {
		fmt.Fprintf(w, "%s\t%d\n", cell(u.What), u.Messages)
	}
}
