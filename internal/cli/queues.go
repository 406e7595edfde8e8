package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
)

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
		return listColumns(p, all, all.Queues, queueColumns(time.Now()))
	})))
}

func queueColumns(now time.Time) []column[inspect.Queue] {
	columns := []column[inspect.Queue]{{Head: "Queue", Field: "Name"}}
	for _, c := range append([]column[inspect.AtBroker]{{Field: "Kind"}}, inspect.BrokerColumns...) {
		columns = append(columns, column[inspect.Queue]{Head: cmp.Or(c.Head, c.Field), Value: func(q inspect.Queue) any {
			switch b := q.Broker; {
			case b == nil || b.Exists && c.Of(*b) == "":
				return nil
			case b.Exists:
				return c.Of(*b)
			case c.Field == "Kind":
				return "not there"
			}
			return ""
		}})
	}
	return append(append(columns, inspect.QueueCounts...), []column[inspect.Queue]{
		{Field: "Discarded"}, {Head: "Next due", Field: "NextDue"}, {Field: "Policy"},
		{Head: "Retries", Value: func(q inspect.Queue) any { return retries(q, now) }},
	}...)
}

// retries says whether a queue's messages are retried.
func retries(q inspect.Queue, now time.Time) string {
	state := q.Throttle.Text()
	switch h := q.Pause; {
	case h != nil:
		return strings.TrimSuffix(fmt.Sprintf("paused %s by %s: %s", ago(&h.Since, now), h.By, h.Reason), ": ")
	case q.Unreachable != "": // as on the page: it must be repaired first
		return "no: " + q.Unreachable
	case q.Throttle.KeepsBack():
		return state
	}
	texts := slices.DeleteFunc([]string{"yes", q.Throttle.LimitText(), state}, func(s string) bool { return s == "" })
	return strings.Join(texts, ", ")
}
