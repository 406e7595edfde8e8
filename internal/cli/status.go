package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/policy"
)

func (p *program) status() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the service: connection, and per queue what waits, returns and is parked",
		Args:  exactArgs(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := p.client()
			if err != nil {
				return err
			}
			st, err := client.Overview(c.Context())
			if err != nil {
				return err
			}
			return list(p, format, st, st.Queues, queueName, func(w io.Writer) { status(w, st, time.Now()) })
		},
	}
	return withOutput(p.withAddress(c), &format)
}

func status(w io.Writer, st console.Overview, now time.Time) {
	fmt.Fprintf(w, "redrive %s, up %s, RabbitMQ at %s\n", plain(st.Version), policy.FormatDuration(now.Sub(st.Since).Round(time.Second)), plain(st.Broker))
	if len(st.Problems) == 0 {
		fmt.Fprintln(w, "ready: nothing is wrong")
	}
	for _, problem := range st.Problems {
		fmt.Fprintf(w, "not ready: %s\n", plain(problem))
	}
	for _, notice := range st.Notices {
		fmt.Fprintf(w, "notice: %s\n", plain(notice))
	}
	if len(st.Queues) == 0 {
		fmt.Fprintln(w, "no message has failed yet")
		return
	}
	fmt.Fprintln(w, "\nQUEUE\tPOLICY\tWAIT\tWAITING\tNEXT DUE\tOLDEST\tPARKED\tFAILED/MIN\tRETURNED/MIN\tPARKED/MIN")
	elsewhere := false
	for _, q := range st.Queues {
		next, oldest := "-", "-"
		if q.NextDue != nil {
			next = in(*q.NextDue, now)
			oldest = policy.FormatDuration(now.Sub(*q.Oldest).Round(time.Second))
		}
		waiting := strconv.FormatInt(q.Waiting, 10)
		if q.Way != "" && q.Way != "disk" {
			elsewhere, waiting = true, waiting+" + RabbitMQ's"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\n", cell(q.Name, 40), cell(q.Policy, 20), cell(q.Way, 20), waiting, next, oldest, q.Parked, q.Failed, q.Returned, q.ParkedIn)
	}
	if elsewhere {
		fmt.Fprintln(w, "\nWhat waits in RabbitMQ, and comes back from there, is not counted here; its queues redrive.delay.* show it.")
	}
}
