package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// withManagement adds the flag for the config file, and gives run a client of the management
// API that the config names.
func (p *program) withManagement(
	c *cobra.Command, run func(context.Context, *management.Client, *config.Config, []string) error,
) {
	p.withAddress(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := p.load()
		if err != nil {
			return err
		}
		m, err := cfg.Broker.API(cfg.VHost())
		if err == nil {
			err = p.locate(c, cfg)
		}
		if err != nil {
			return err
		}
		return run(c.Context(), m, cfg, args)
	}
	p.withConfig(c, atRabbitMQ)
}

type selection struct {
	pattern string
	expect  int
	dry     bool
}

func (p *program) withSelection(c *cobra.Command, s *selection) *cobra.Command {
	c.Args = func(c *cobra.Command, args []string) error {
		if (len(args) > 0) == (s.pattern != "") {
			return fmt.Errorf("%s takes queues, or --pattern: %w", c.CommandPath(), errUsage)
		}
		return nil
	}
	c.Flags().StringVar(&s.pattern, "pattern", "", "all queues whose name matches: * is any text, ? one character")
	c.Flags().IntVar(&s.expect, "expect-count", -1, "refuse to act on another number of queues")
	c.Flags().BoolVar(&p.yes, "yes", false, "do not ask")
	c.Flags().BoolVar(&s.dry, "dry-run", false, "only show what would be set")
	return p.withOutput(c)
}

func (p *program) enroll() *cobra.Command {
	var s selection
	var atLeastOnce bool
	c := &cobra.Command{
		Use:   "enroll QUEUE... | --pattern PATTERN",
		Short: "Dead-letter existing queues to Redrive, by RabbitMQ policies",
		Long: `It shows what it will set, and keeps the keys of the policy that applies now. An error
with one queue does not stop the others. The user of the management API needs the tag
policymaker.

A queue that is declared with x-dead-letter-exchange: redrive needs none of this: it is
enrolled at its first dead letter. No policy can change a queue that is declared with
another x-dead-letter-exchange: see redrive move.`,
		Example: `  redrive enroll orders.created
  redrive enroll --pattern 'orders.*' --dry-run
  redrive enroll --pattern 'orders.*' --yes --expect-count 12 -o json`,
	}
	p.withManagement(c, func(ctx context.Context, m *management.Client, _ *config.Config, names []string) error {
		all, left, err := enroll.PlanMany(ctx, m, names, s.pattern, atLeastOnce)
		if err != nil {
			return err
		}
		for _, note := range left {
			fmt.Fprintln(p.err, "note: "+plain(note))
		}
		t := &manyQueues{p: p, m: m, s: &s, did: actions.Enroll, changes: make([]change, len(all)),
			would: "nothing was set; %s would get a policy"}
		var plans []*enroll.Plan
		for i, one := range all {
			t.changes[i] = changeOf(one)
			t.fail(i, one.Err)
			if one.Err == nil {
				plans = append(plans, one.Plan)
			}
		}
		will := "will"
		if s.dry {
			will = "would"
		}
		var text strings.Builder
		enroll.Write(&text, will, plans...)
		for _, line := range wrapped(text.String(), widthOf(t.shown())) {
			fmt.Fprintln(t.shown(), line)
		}
		return t.change(ctx, nil, "Set %s?", "policy", "policies",
			func(i int) error { return all[i].Plan.Apply(ctx, m) },
			"queue %q is enrolled; `redrive unenroll` undoes it")
	})
	c.Flags().BoolVar(&atLeastOnce, "at-least-once", false,
		"also make a quorum queue's dead-lettering at-least-once (overflow becomes reject-publish)")
	return p.withSelection(c, &s)
}

func changeOf(one enroll.QueuePlan) change {
	c, plan := change{Queue: one.Queue, Result: already}, one.Plan
	if one.Err != nil {
		return c
	}
	c.Kind, c.OperatorPolicy, c.Notes, c.Keys = plan.Queue.Type, plan.Queue.OperatorPolicy, plan.Notes, plan.Keys()
	if plan.Policy != nil {
		c.Result, c.Policy = wouldSet, plan.Policy.Name
		if plan.Before != nil {
			c.MergedFrom = plan.Before.Name
		}
	}
	return c
}

func (p *program) unenroll() *cobra.Command {
	var s selection
	var replays bool
	c := &cobra.Command{
		Use:   "unenroll QUEUE... | --pattern PATTERN",
		Short: "Undo enroll: remove the policies, so that the earlier ones apply again",
		Long: `RabbitMQ has kept the earlier policies unchanged below Redrive's, so you can undo from any
machine. The queues' retry exchanges stay, since waiting messages are still retried. The
command also finds the policies that deleted queues have left behind.

With --replays it undoes redrive allow-replays instead: it removes the retry exchanges of
queues that are not enrolled. Messages that wait for them are parked then.`,
		Example: `  redrive unenroll orders.created
  redrive unenroll --replays orders`,
	}
	p.withManagement(c, func(ctx context.Context, m *management.Client, _ *config.Config, names []string) error {
		if replays {
			return p.disallowReplays(ctx, m, &s, names)
		}
		found, missing, err := enroll.PlanUndo(ctx, m, names, s.pattern)
		if err != nil {
			return err
		}
		t := &manyQueues{p: p, m: m, s: &s, did: actions.Unenroll, changes: make([]change, len(found)+len(missing)),
			would: "nothing was removed; %s would lose a policy"}
		for i, u := range found {
			t.changes[i] = change{Queue: u.Queue, Result: wouldSet, Policy: u.Ours.Name}
			u.Write(t.shown())
		}
		if s.pattern == "" && len(names) == 1 {
			p.yes = true // named, and nothing that cannot be done again
		}
		return t.change(ctx, missing, "Take away %s?", "policy", "policies",
			func(i int) error { return enroll.Undo(ctx, m, found[i].Queue) },
			"queue %q is no longer enrolled by a policy; its waiting messages are still retried")
	})
	c.Flags().BoolVar(&replays, "replays", false, "undo redrive allow-replays: remove the queues' retry exchanges")
	return p.withSelection(c, &s)
}

// disallowReplays removes the retry exchanges of queues that are not enrolled.
func (p *program) disallowReplays(ctx context.Context, m *management.Client, s *selection, names []string) error {
	if s.pattern != "" {
		return fmt.Errorf("--replays takes queues, and no --pattern: %w", errUsage)
	}
	found, missing, err := enroll.PlanDisallow(ctx, m, names)
	if err != nil {
		return err
	}
	t := &manyQueues{p: p, m: m, s: s, did: actions.Unenroll, changes: make([]change, len(found)+len(missing)),
		would: "nothing was removed; %s would lose a retry exchange"}
	for i, queue := range found {
		t.changes[i] = change{Queue: queue, Result: wouldSet}
		fmt.Fprintf(t.shown(), "queue %q: its retry exchange goes; messages that wait for it are parked\n", queue)
	}
	return t.change(ctx, missing, "Remove %s?", "retry exchange", "retry exchanges",
		func(i int) error { return enroll.Disallow(ctx, m, found[i]) },
		"nothing is replayed to queue %q any more")
}

// change is what enroll and unenroll say of a queue.
type change struct {
	Queue  string `json:"queue"`
	Kind   string `json:"kind,omitempty"`
	Result string `json:"result"`
	Policy string `json:"policy,omitempty"`
	// MergedFrom is the policy in force until now.
	MergedFrom     string       `json:"merged_from,omitempty"`
	OperatorPolicy string       `json:"operator_policy,omitempty"`
	Error          string       `json:"error,omitempty"`
	Keys           []enroll.Key `json:"keys,omitempty"`
	Notes          []string     `json:"notes,omitempty"`
}

// Results of a change.
const (
	wouldSet = "would be set"
	isSet    = "set"
	already  = "already" // what belongs to it is done all the same, such as its retry exchange
	refused  = "refused"
	notDone  = "not done"
)

// manyQueues changes many queues, one after the other.
type manyQueues struct {
	p       *program
	m       *management.Client
	s       *selection
	did     string // for the audit log
	would   string // what becomes of a queue, for --dry-run
	changes []change
	failed  []error
}

// shown returns where people read what will be done.
func (t *manyQueues) shown() io.Writer {
	switch {
	case t.p.format == "table":
		return t.p.out
	case t.s.dry:
		return io.Discard // the data say it
	}
	return t.p.err
}

// fail records the error of one queue, and prints it if there are others.
func (t *manyQueues) fail(i int, err error) {
	if err == nil {
		return
	}
	t.changes[i].Result, t.changes[i].Error = refused, err.Error()
	t.failed = append(t.failed, err)
	if len(t.changes) > 1 {
		t.p.printError(err)
	}
}

// change adds the queues that are missing, asks, if anything is to be changed, does it to each queue, unless
// --dry-run, and shows the results. question has a verb for how many, done one for the queue.
func (t *manyQueues) change(
	ctx context.Context, missing []error, question, one, more string, do func(i int) error, done string,
) error {
	n, changes := len(t.changes), 0
	for i, err := range missing {
		t.fail(n-len(missing)+i, err)
	}
	switch {
	case t.s.expect >= 0 && n != t.s.expect:
		return exitErrorf(ExitPrecondition, "found %s, expected %d: nothing was changed", plural(n, "queue", "queues"),
			t.s.expect)
	case n == 0:
		return exitErrorf(ExitNotFound, "no queue matches %q", t.s.pattern)
	}
	for _, c := range t.changes {
		if c.Result == wouldSet {
			changes++
		}
	}
	if changes > 0 && !t.s.dry {
		if err := t.p.confirm(ctx, fmt.Sprintf(question, plural(changes, one, more))); err != nil {
			return err
		}
	}
	var changed []string
	meter := t.p.meter()
	for i := range t.changes {
		c := &t.changes[i]
		switch {
		case t.s.dry || c.Result == refused:
			continue
		case ctx.Err() != nil:
			t.fail(i, fmt.Errorf("queue %q: not done: %w", c.Queue, ctx.Err()))
			c.Result = notDone
			continue
		}
		err := do(i)
		if t.fail(i, err); err != nil {
			continue
		}
		if changed = append(changed, c.Queue); c.Result == wouldSet {
			c.Result = isSet
		}
		if t.p.format == "table" {
			fmt.Fprintln(t.p.out, plain(fmt.Sprintf(done, c.Queue)))
		} else if meter.draws && n > 1 {
			meter.draw(fmt.Sprintf("%s %s of %s", gauge(int64(i+1), int64(n), barWidth), count(i+1),
				plural(n, "queue", "queues")))
		}
	}
	meter.end()
	t.p.report(ctx, t.did, changed, placeOf(t.m))
	if t.p.format != "table" {
		if err := list(t.p, map[string]any{"queues": t.changes}, t.changes,
			func(c change) string { return c.Queue }, nil); err != nil {
			return err
		}
	}
	failed := len(t.failed)
	if t.s.dry && t.p.format == "table" {
		said := []string{"dry run: " + fmt.Sprintf(t.would, count(changes))}
		if done := n - changes - failed; done > 0 {
			said = append(said, count(done)+" already dead-letter to redrive")
		}
		if failed > 0 {
			said = append(said, count(failed)+" cannot")
		}
		fmt.Fprintf(t.p.out, "\n%s\n", strings.Join(said, ", "))
	}
	switch {
	case failed == 0:
		return nil
	case n == 1:
		return t.failed[0]
	case failed == n:
		return exitErrorf(max(ExitError, codeOf(errors.Join(t.failed...))), "nothing was done")
	case t.s.dry:
		return exitErrorf(ExitPartly, "%d of %s cannot be changed", failed, plural(n, "queue", "queues"))
	default:
		return exitErrorf(ExitPartly, "%d of %s unchanged", failed, plural(n, "queue", "queues"))
	}
}
