package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
)

// change is a queue in the answer of enroll and unenroll.
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

func changeName(c change) string { return c.Queue }

// Results of a change.
const (
	wouldSet = "would be set"
	isSet    = "set"
	already  = "already" // what belongs to it is done all the same, such as its retry exchange
	refused  = "refused"
	notDone  = "not done"
)

// manyQueues does the same to many queues, one after the other.
type manyQueues struct {
	p       *program
	s       *selection
	changes []change
	failed  []error
}

func (p *program) newManyQueues(s *selection, n int) *manyQueues {
	return &manyQueues{p: p, s: s, changes: make([]change, n)}
}

// shown is where people read what will be done.
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

// ask asks a person, if a policy is to be set; question has a verb for how many.
func (t *manyQueues) ask(ctx context.Context, question string) error {
	n := 0
	for _, c := range t.changes {
		if c.Result == wouldSet {
			n++
		}
	}
	if n == 0 || t.s.dry {
		return nil
	}
	return t.p.confirm(ctx, fmt.Sprintf(question, plural(n, "policy", "policies")))
}

// end does it to each queue, unless --dry-run, and shows the results. do returns a line about what it
// did.
func (t *manyQueues) end(ctx context.Context, do func(i int) (string, error)) error {
	b := &bar{w: t.p.err}
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
		text, err := do(i)
		if t.fail(i, err); err != nil {
			continue
		}
		if c.Result == wouldSet {
			c.Result = isSet
		}
		if t.p.format == "table" {
			fmt.Fprintln(t.p.out, plain(text))
		} else if t.p.draws() && len(t.changes) > 1 {
			b.draw(fmt.Sprintf("%s %s of %s", gauge(int64(i+1), int64(len(t.changes))), count(i+1), plural(len(t.changes), "queue", "queues")))
		}
	}
	b.end()
	if t.p.format != "table" {
		if err := list(t.p, map[string]any{"queues": t.changes}, t.changes, changeName, nil); err != nil {
			return err
		}
	}
	switch n := len(t.failed); {
	case n == 0:
		return nil
	case len(t.changes) == 1:
		return t.failed[0]
	case n == len(t.changes):
		return exitErrorf(max(ExitError, codeOf(errors.Join(t.failed...))), "nothing was done")
	default:
		return exitErrorf(ExitPartly, "%d of %s unchanged", n, plural(len(t.changes), "queue", "queues"))
	}
}
