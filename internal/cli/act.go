package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
)

// action has a verb, and the flags of its command.
type action struct {
	verb actions.Verb
	queryFlags
	at, to, reason string
	expect         int64
	dry, detach    bool
	rate           float64
	canary         int
	canaryWait     string
	restOf         string
	discardedBy    string
	onlyQuery      []string // flags that were given and need a query, not IDs
}

// verbs returns a command for each verb that changes records.
func (p *program) verbs() (all []*cobra.Command) {
	for _, v := range actions.Verbs {
		if v.Short != "" {
			all = append(all, p.act(v))
		}
	}
	return all
}

const ofMany = `

With a query it first shows what it would do: how many messages of which queues,
what is left out, what stands in the way. That set does not grow by what fails
later. Before it changes more than one message it asks, or needs --yes where
it cannot ask. It then runs in the service: Ctrl-C here only ends the
watching. Messages that are named by their ids are not asked about.`

// act makes the command of a verb.
func (p *program) act(v actions.VerbInfo) *cobra.Command {
	d := action{verb: v.Verb}
	c := &cobra.Command{Use: string(v.Verb) + " [QUERY|ID…]", Short: v.Short, Example: v.Example}
	c.Long = strings.TrimSuffix(v.Short+". "+v.Long, " ") + ofMany
	p.withClient(c, func(ctx context.Context, client httpapi.Client, args []string) error {
		for _, name := range []string{"rate", "canary", "canary-wait", "detach"} {
			if f := c.Flags().Lookup(name); f != nil && f.Changed {
				d.onlyQuery = append(d.onlyQuery, "--"+name)
			}
		}
		return p.perform(ctx, client, &d, args)
	})
	f := c.Flags()
	d.add(p, c)
	f.StringVar(&d.reason, "reason", "", "why, for the audit log")
	f.BoolVar(&d.dry, "dry-run", false, "only show what would be done")
	c.Flags().BoolVar(&p.yes, "yes", false, "do not ask")
	f.Int64Var(&d.expect, "expect-count", -1, "refuse to act on another number of messages")
	rateFlag(c, "rate", "of a query: messages per second, or n/s, n/min, n/h (default unlimited)", &d.rate)
	f.BoolVar(&d.detach, "detach", false, "of a query: print the operation's id, and do not watch it")
	if v.Verb == actions.Replay {
		f.Lookup("queue").Usage = "all parked messages of this work queue; with --state, of that state"
		f.StringVar(&d.restOf, "rest-of", "", "instead of a query: what this operation did not reach before it ended")
		_ = c.RegisterFlagCompletionFunc("rest-of", p.completeOps)
	}
	if v.Verb == actions.Restore {
		f.StringVar(&d.discardedBy, "discarded-by", "", "instead of a query: what this operation discarded")
		_ = c.RegisterFlagCompletionFunc("discarded-by", p.completeOps)
	}
	if v.Timed {
		f.StringVar(&d.at, "at", "", `when: a time such as 2026-11-21T18:30:00Z, or "in 10m"; left out: now`)
	}
	if v.ToQueue {
		f.StringVar(&d.to, "to", "", "the queue")
		_ = c.RegisterFlagCompletionFunc("to", p.completeQueues)
	}
	if v.Publishes {
		f.IntVar(&d.canary, "canary", 0, "of a query: how many to process first; the rest follow only if none of "+
			"them fails again")
		f.StringVar(&d.canaryWait, "canary-wait", "", "how long they are watched, such as 30s (default 1m)")
	}
	c.ValidArgsFunction = p.completeQuery
	return p.withOutput(c)
}

// rateFlag adds a flag for a rate: a number of something per second, or n/s, n/min or n/h.
func rateFlag(c *cobra.Command, name, usage string, to *float64) {
	c.Flags().Func(name, usage, func(s string) error {
		n, err := strconv.ParseFloat(s, 64)
		if err != nil {
			var ok bool
			if n, ok = config.ParseRate(s); !ok {
				return errors.New("expected a rate such as 200/s or 30/min")
			}
		}
		if !(n > 0) { // nor a NaN
			return errors.New("expected more than 0")
		}
		*to = n
		return nil
	})
}

// anID matches a message's id, or its key.
var anID = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(\.[0-9]+)?$`)

// perform does it to the messages that the arguments name, or that their query finds.
func (p *program) perform(ctx context.Context, client httpapi.Client, d *action, args []string) error {
	ids := 0
	for _, a := range args {
		if anID.MatchString(a) {
			ids++
		}
	}
	due, err := parseWhen(d.at)
	switch {
	case err != nil:
		return err
	case d.discardedBy != "" && (len(args) > 0 || d.queryFlags != (queryFlags{})):
		return fmt.Errorf("--discarded-by takes neither message IDs nor a query: %w", errUsage)
	case d.restOf != "" && (len(args) > 0 || d.queryFlags != (queryFlags{})):
		return fmt.Errorf("--rest-of takes neither message IDs nor a query: %w", errUsage)
	case ids > 0 && ids < len(args):
		return fmt.Errorf("some arguments are message ids and some are not: give ids, or a query: %w", errUsage)
	case ids > 0 && d.queryFlags != (queryFlags{}):
		return fmt.Errorf("give message IDs or a query (--query, --queue, --state), not both: %w", errUsage)
	case ids > 0 && len(d.onlyQuery) > 0:
		return fmt.Errorf("%s makes sense with a query, not with message IDs: %w", strings.Join(d.onlyQuery, ", "),
			errUsage)
	case d.canary < 0:
		return fmt.Errorf("--canary %d: expected at least 1: %w", d.canary, errUsage)
	case d.verb.Info().ToQueue && d.to == "":
		return fmt.Errorf("--to is missing: the queue: %w", errUsage)
	}
	r := operations.PlanRequest{Verb: d.verb, RestOf: d.restOf, DiscardedBy: d.discardedBy, At: due, To: d.to,
		Reason: d.reason}
	if ids == 0 && d.restOf == "" && d.discardedBy == "" {
		flags := d.queryFlags
		if d.verb == actions.Replay && flags == (queryFlags{queue: d.queue}) && d.queue != "" && len(args) == 0 {
			flags.state = inspect.Parked
		}
		if r.Query, err = flags.query(args); err != nil {
			return err
		}
		if r.Query == "" {
			return fmt.Errorf("give message IDs, a query, or --queue: %w", errUsage)
		}
	}
	p.query = r.Query
	if ids > 0 {
		return p.actOnIDs(ctx, client, d,
			actions.Act{Verb: d.verb, IDs: args, At: due, To: d.to, Reason: d.reason, DryRun: d.dry})
	}
	return p.operate(ctx, client, d, r)
}

// idsPerRequest is the most ids that the service takes at once.
const idsPerRequest = 1000

// actOnIDs acts on messages that are named by their ids.
func (p *program) actOnIDs(ctx context.Context, client httpapi.Client, d *action, a actions.Act) error {
	if d.expect >= 0 {
		would := a
		would.DryRun = true
		found, err := actInBatches(ctx, client, would)
		if err != nil {
			return err
		}
		if n := int64(found.Done); n != d.expect {
			return d.unexpected(n)
		}
	}
	done, err := actInBatches(ctx, client, a)
	if err != nil {
		return err
	}
	err = list(p, done, done.Outcomes, func(o actions.Outcome) string { return o.ID }, func(w io.Writer) {
		if d.dry {
			fmt.Fprintf(w, "%s %s? Nothing is done yet.\n", d.verb.Title(), messages(done.Done))
		} else {
			fmt.Fprintln(w, doneText(d.verb, int64(done.Done), a.At))
		}
		for _, o := range done.Outcomes {
			if o.Why != "" {
				fmt.Fprintf(w, "%s: %s\n", plain(o.ID), plain(o.Why))
			} else if o.New != "" {
				fmt.Fprintf(w, "%s: the copy is %s\n", plain(o.ID), plain(o.New))
			}
		}
		section(w, "Before you start:", done.Warnings)
	})
	if err != nil {
		return err
	}
	if d.verb.Retries() {
		p.sayPaused(ctx, client, done)
	}
	missing, left := 0, len(done.Outcomes)-done.Done
	for _, o := range done.Outcomes {
		if o.Queue == "" {
			missing++
		}
	}
	switch {
	case left == 0:
		return nil
	case done.Done > 0:
		return exitErrorf(ExitPartly, "%s left out", plural(left, "message was", "messages were"))
	case missing == left:
		return exitErrorf(ExitNotFound, "not found")
	}
	return exitErrorf(ExitPrecondition, "nothing was changed")
}

// sayPaused names the paused queues of which messages were replayed.
func (p *program) sayPaused(ctx context.Context, client httpapi.Client, done actions.Acted) {
	replayed := map[string]bool{}
	for _, o := range done.Outcomes {
		if o.Outcome == actions.Done {
			replayed[o.Queue] = true
		}
	}
	if len(replayed) == 0 {
		return
	}
	all, err := client.Queues(ctx)
	if err != nil {
		return // what was done is done
	}
	for _, q := range all.Queues {
		if q.Pause != nil && replayed[q.Name] {
			fmt.Fprintf(p.err, "The retries of the queue %q are paused: its messages wait until you run `redrive "+
				"resume %s`.\n", plain(q.Name), plain(q.Name))
		}
	}
}

// actInBatches acts on the messages, at most idsPerRequest at a time.
func actInBatches(ctx context.Context, client httpapi.Client, a actions.Act) (done actions.Acted, err error) {
	for ids := range slices.Chunk(a.IDs, idsPerRequest) {
		a.IDs = ids
		some, err := client.Act(ctx, a)
		done.Done += some.Done
		done.Outcomes = append(done.Outcomes, some.Outcomes...)
		for _, w := range some.Warnings {
			if !slices.Contains(done.Warnings, w) {
				done.Warnings = append(done.Warnings, w)
			}
		}
		if err != nil && done.Done > 0 && !a.DryRun {
			err = exitErrorf(ExitPartly, "%d are done, and then: %w", done.Done, err)
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (p *program) pause() *cobra.Command {
	return p.ofQueue(&cobra.Command{
		Use:     "pause QUEUE",
		Short:   "Pause the retries of a queue",
		Long:    "Its messages keep waiting, with their attempts, and so do those that fail meanwhile.",
		Example: "  redrive pause orders --reason 'the warehouse is down until 14:00'",
	}, httpapi.Client.PauseQueue, "Retries of the queue %q are paused until you run `redrive resume`.\n")
}

func (p *program) resume() *cobra.Command {
	return p.ofQueue(&cobra.Command{
		Use:     "resume QUEUE",
		Short:   "Resume the retries of a queue; due messages are retried now",
		Example: "  redrive resume orders",
	}, httpapi.Client.ResumeQueue, "Retries of the queue %q are resumed.\n")
}

// ofQueue completes a command about one queue.
func (p *program) ofQueue(
	c *cobra.Command, do func(c httpapi.Client, ctx context.Context, queue, reason string) error, done string,
) *cobra.Command {
	var reason string
	c.ValidArgsFunction = p.completeQueues
	c.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return p.withClient(c, func(ctx context.Context, client httpapi.Client, args []string) error {
		if err := do(client, ctx, args[0], reason); err != nil {
			return err
		}
		fmt.Fprintf(p.err, done, plain(args[0]))
		return nil
	})
}

var breakerSet = map[string]string{
	"open": "Retries of the queue %q are paused until `redrive breaker` sets it otherwise.\n",
	"closed": "Due messages of the queue %q are retried, however many fail again, until `redrive breaker` sets it " +
		"otherwise.\n",
	"auto": "The breaker of the queue %q opens and closes by itself again.\n",
}

func (p *program) breaker() *cobra.Command {
	var reason string
	c := p.withClient(&cobra.Command{
		Use:   "breaker QUEUE open|closed|auto",
		Short: "Set a queue's circuit breaker, or let it open and close by itself again",
		Long: `open pauses the queue's retries; closed retries all due messages, however many fail again;
auto lets the breaker open and close by itself again. The setting survives restarts.
Waiting messages keep their attempts.`,
		Example: "  redrive breaker orders closed --reason 'the warehouse is back, I watch it'",
		ValidArgsFunction: func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"open", "closed", "auto"}, noFiles
			}
			return p.completeQueues(c, args, begun)
		},
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		done, ok := breakerSet[args[1]]
		if !ok {
			return fmt.Errorf("a breaker can be set to open, closed or auto, not to %q: %w", plain(args[1]), errUsage)
		}
		if err := client.Breaker(ctx, args[0], args[1], reason); err != nil {
			return err
		}
		fmt.Fprintf(p.err, done, plain(args[0]))
		return nil
	})
	c.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	return c
}
