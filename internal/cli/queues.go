package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/console"
)

func queueName(q console.Queue) string { return q.Name }

func (p *program) queues() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "queues",
		Short: "Show queues: consumers, ready, waiting and parked messages, policy, pauses",
		Args:  exactArgs(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := p.client()
			if err != nil {
				return err
			}
			all, err := client.Queues(c.Context())
			if err != nil {
				return err
			}
			return list(p, format, all, all.Queues, queueName, func(w io.Writer) { queues(w, all.Queues, time.Now()) })
		},
	}
	return withOutput(p.withAddress(c), &format)
}

func queues(w io.Writer, all []console.Queue, now time.Time) {
	fmt.Fprintln(w, "QUEUE\tKIND\tCONSUMERS\tREADY\tUNACKED\tWAITING\tPARKED\tDISCARDED\tNEXT DUE\tPOLICY\tRETRIES")
	for _, q := range all {
		kind, consumers, ready, unacked := "?", "?", "?", "?"
		if b := q.Broker; b != nil && b.Exists {
			kind, consumers, ready, unacked = plain(b.Kind), count(b.Consumers), count(b.Ready), count(b.Unacked)
		} else if b != nil {
			kind, consumers, ready, unacked = "not there", "-", "-", "-"
		}
		retries := "yes"
		if limit := q.Throttle.Limit(); limit != "" {
			retries = "yes, " + limit
		}
		if why := q.Throttle.Says(); why != "" {
			retries = why
		}
		if q.Blocked != "" { // as on the page: it must be repaired first
			retries = "no: " + q.Blocked
		}
		if h := q.Pause; h != nil {
			retries = fmt.Sprintf("paused %s by %s", ago(&h.Since, now), h.By)
			if h.Reason != "" {
				retries += ": " + h.Reason
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cell(q.Name, 40), kind, consumers, ready, unacked, count(q.Waiting), count(q.Parked), count(q.Discarded), ago(q.NextDue, now), cell(q.Policy, 20), cell(retries, 80))
	}
}
