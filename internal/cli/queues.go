package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
)

func queueName(q inspect.Queue) string { return q.Name }

func (p *program) queues() *cobra.Command {
	return p.watched(p.withOutput(p.withClient(&cobra.Command{
		Use:   "queues",
		Short: "Show queues: consumers, ready, waiting and parked messages, policy, pauses",
		Args:  exactArgs(0, "no arguments"),
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		all, err := client.Queues(ctx)
		if err != nil {
			return err
		}
		return list(p, all, all.Queues, queueName, func(w io.Writer) { queues(w, all.Queues, time.Now()) })
	})))
}

func queues(w io.Writer, all []inspect.Queue, now time.Time) {
	fmt.Fprintln(w, "QUEUE\tKIND\tCONSUMERS\tREADY\tUNACKED\tWAITING\tPARKED\tDISCARDED\tNEXT DUE\tPOLICY\tRETRIES")
	for _, q := range all {
		kind, consumers, ready, unacked := "?", "?", "?", "?"
		if b := q.Broker; b != nil && b.Exists {
			kind, consumers, ready = cmp.Or(plain(b.Kind), kind), count(b.Consumers), count(b.Ready)
			if b.Unacked != nil {
				unacked = count(*b.Unacked)
			}
		} else if b != nil {
			kind, consumers, ready, unacked = "not there", "-", "-", "-"
		}
		retries := "yes"
		if limit := q.Throttle.LimitText(); limit != "" {
			retries = "yes, " + limit
		}
		if state := q.Throttle.Text(); q.Throttle.KeepsBack() {
			retries = state
		} else if state != "" {
			retries += ", " + state
		}
		if q.Unreachable != "" { // as on the page: it must be repaired first
			retries = "no: " + q.Unreachable
		}
		if h := q.Pause; h != nil {
			retries = fmt.Sprintf("paused %s by %s", ago(&h.Since, now), h.By)
			if h.Reason != "" {
				retries += ": " + h.Reason
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cell(q.Name), kind, consumers, ready, unacked, count(q.Waiting), count(q.Parked), count(q.Discarded), ago(q.NextDue, now), cell(q.Policy), cell(retries))
	}
}
