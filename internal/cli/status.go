package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/policy"
)

func (p *program) status() *cobra.Command {
	var alive bool
	c := p.withClient(&cobra.Command{
		Use:   "status",
		Short: "Show the service: connection, and per queue the waiting, retried and parked messages",
		Long: `Show the service: connection, and per queue the waiting, retried and parked messages.

--alive is for health checks of containers: it shows nothing, needs no sign-in, and exits
with 0 when the service answers, ready or not, and with 7 when none does. With https:// on
this machine it does not verify the certificate.`,
		Args: exactArgs(0, "no arguments"),
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		if alive {
			return client.Alive(ctx)
		}
		st, err := client.Overview(ctx)
		if err != nil {
			return err
		}
		return list(p, st, st.Queues, func(q inspect.Queue) string { return q.Name }, func(w io.Writer) { status(w, st, time.Now()) })
	})
	c.Flags().BoolVar(&alive, "alive", false, "only find out whether the service answers")
	return p.watched(p.withOutput(c))
}

func status(w io.Writer, st inspect.Overview, now time.Time) {
	health(w, st, now)
	if len(st.Replicas) > 0 {
		replicas(w, st.Replicas, now)
	}
	switch unread := slices.ContainsFunc(st.Conditions, func(c condition.Condition) bool { return c.Kind == condition.Unread }); {
	case len(st.Queues) > 0:
		failing(w, st, now)
	case !unread:
		fmt.Fprintln(w, "no message has failed yet")
	}
}

// health says whether the service is ready, and what is wrong.
func health(w io.Writer, st inspect.Overview, now time.Time) {
	fmt.Fprintf(w, "redrive %s, up %s, RabbitMQ at %s\n", plain(st.Version), policy.FormatDuration(now.Sub(st.Since).Round(time.Second)), plain(st.Broker))
	switch {
	case !st.Ready && len(st.Conditions) == 0:
		fmt.Fprintln(w, "not ready")
	case st.Ready && len(st.Conditions) == 0:
		fmt.Fprintln(w, "ready: nothing is wrong")
	case st.Ready:
		fmt.Fprintln(w, "ready")
	}
	for _, c := range st.Conditions {
		line := c.String()
		if !st.Ready && c.NotReady {
			line = "not ready: " + line
		}
		fmt.Fprintln(w, plain(line))
	}
	for _, notice := range st.Notices {
		fmt.Fprintf(w, "notice: %s\n", plain(notice))
	}
}

func replicas(w io.Writer, all []inspect.Replica, now time.Time) {
	fmt.Fprintln(w, "\nREPLICA\tADDRESS\tVERSION\tUP\tLAST BEAT\tLEADS\tSTATE")
	for _, r := range all {
		leads, state := "-", "ready"
		if r.Leads {
			leads = "leads"
		}
		switch {
		case r.Silent(now):
			state = "not heard of"
		case !r.Ready:
			state = strings.Join(append([]string{"not ready"}, condition.Lines(r.Conditions[:min(1, len(r.Conditions))])...), ": ")
		case len(r.Conditions) > 0:
			state = "ready; " + r.Conditions[0].String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s ago\t%s\t%s\n", cell(r.ID), cell(r.Address), cell(r.Version), policy.FormatDuration(now.Sub(r.Since).Round(time.Second)),
			policy.FormatDuration(max(0, now.Sub(r.Beat)).Round(100*time.Millisecond)), leads, cell(state))
	}
	fmt.Fprintln(w)
}

// failing shows the queues with failed messages.
func failing(w io.Writer, st inspect.Overview, now time.Time) {
	fmt.Fprintln(w, "\nQUEUE\tPOLICY\tWAIT\tWAITING\tNEXT DUE\tITS FAILURE\tPARKED\tFAILED/MIN\tRETRIED/MIN\tPARKED/MIN")
	elsewhere := false
	for _, q := range st.Queues {
		next, failed := untilText(q.NextDue, now), "-"
		if q.Oldest != nil {
			failed = policy.FormatDuration(now.Sub(*q.Oldest).Round(time.Second)) + " ago" // the one due next
		}
		waiting := strconv.FormatInt(q.Waiting, 10)
		if q.Way != "" && q.Way != "disk" && q.Way != "redis" {
			elsewhere, waiting = true, waiting+" + RabbitMQ's"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\n", cell(q.Name), cell(q.Policy), cell(q.Way), waiting, next, failed, q.Parked, q.Failed, q.Retried, q.ParkedIn)
	}
	if st.MoreQueues > 0 {
		fmt.Fprintf(w, "\nand %d more: redrive queues\n", st.MoreQueues)
	}
	if elsewhere {
		fmt.Fprintln(w, "\nMessages that wait in RabbitMQ are not counted here; its queues redrive.delay.* and redrive.lane.* show them, but with delayed-exchange.")
	}
}
