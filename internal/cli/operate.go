package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/operations"
)

// operate makes a plan of what a query finds, shows it, asks, starts it and follows it.
func (p *program) operate(ctx context.Context, client httpapi.Client, d *action, r operations.PlanRequest) error {
	plan, err := client.Plan(ctx, r)
	if err != nil {
		return err
	}
	show := func(w io.Writer) { preview(w, plan, time.Now()) }
	planID := func(pl operations.Plan) string { return pl.ID }
	if d.dry {
		if err := write(p, plan, planID, show); err != nil {
			return err
		}
		return p.expected(d, plan)
	}
	if err := p.tableToStderr(show); err != nil {
		return err
	}
	if err := p.expected(d, plan); err != nil {
		return err
	}
	switch {
	case plan.Count == 0: // a script may run twice
		return write(p, plan, planID, func(w io.Writer) { fmt.Fprintf(w, "nothing to %s\n", d.verb) })
	case len(plan.Blocked) > 0:
		return exitErrorf(ExitPrecondition, "it cannot start: %s", strings.Join(plan.Blocked, "; "))
	case plan.Count > 1:
		if err := p.confirm(ctx, question(plan)); err != nil {
			return err
		}
	}
	op, err := client.Start(ctx, plan.ID, operations.Start{ExpectCount: &plan.Count, Rate: d.rate, CanarySize: d.canary, CanaryWait: d.canaryWait})
	if err != nil {
		return err
	}
	if d.detach {
		fmt.Fprintf(p.err, "It runs in the service:\n%s", orders(op.ID))
		return write(p, op, opID, func(w io.Writer) { fmt.Fprintln(w, plain(op.ID)) })
	}
	return p.toTheEnd(ctx, client, op)
}

func opID(o operations.Operation) string { return o.ID }

func (p *program) expected(d *action, plan operations.Plan) error {
	if d.expect >= 0 && plan.Count != d.expect {
		return exitErrorf(ExitPrecondition, "found %s, expected %d: nothing was changed", messages(plan.Count), d.expect)
	}
	return nil
}

// toTheEnd follows an operation, and shows its result.
func (p *program) toTheEnd(ctx context.Context, client httpapi.Client, op operations.Operation) error {
	op, err := p.follow(ctx, client, op)
	if errors.As(err, new(*stillRunning)) {
		fmt.Fprintf(p.err, "Operation %s is no longer watched, and continues in the service:\n%s", plain(op.ID), orders(op.ID))
	}
	if err != nil {
		return err
	}
	if err := write(p, op, opID, func(w io.Writer) { ended(w, op) }); err != nil {
		return err
	}
	if op.State == operations.Finished && op.Done == op.Count {
		return nil
	}
	code := ExitPartly
	if op.Done == 0 {
		code = ExitError
	}
	why := ""
	if op.Why != "" {
		why = ": " + op.Why
	}
	return exitErrorf(code, "operation %s is %s%s", op.ID, op.State, why)
}

// ended writes the result of an operation.
func ended(w io.Writer, op operations.Operation) {
	fmt.Fprintln(w, doneText(op.Verb, op.Done, op.At))
	if op.SkippedN > 0 {
		fmt.Fprintf(w, "%s not there any more when their turn came\n", plural(op.SkippedN, "message was", "messages were"))
	}
	if op.Failed > 0 {
		fmt.Fprintf(w, "%s\n", plural(op.Failed, "message failed", "messages failed"))
	}
	if op.Again > 0 {
		fmt.Fprintf(w, "%s again\n", plural(op.Again, "message failed", "messages failed"))
	}
	if left := op.Count - op.Done - op.SkippedN - op.Failed; left > 0 {
		fmt.Fprintf(w, "%s left as %s\n", plural(left, "message is", "messages are"), map[bool]string{true: "it was", false: "they were"}[left == 1])
	}
	if op.SkippedN+op.Failed+op.Again > 0 {
		fmt.Fprintf(w, "which, and why: redrive ops show %s\n", plain(op.ID))
	}
}

// orders are the commands for an operation that runs.
func orders(id string) string {
	return fmt.Sprintf("  redrive ops watch %[1]s\n  redrive ops cancel %[1]s\n", plain(id))
}
