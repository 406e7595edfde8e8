package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
)

func (p *program) ledger() *cobra.Command {
	var recount bool
	c := p.withClient(&cobra.Command{
		Use:   "ledger",
		Short: "Show, for each queue, how many messages came in and what became of them",
		Long: `Show, for each queue, how many messages came in since the ledger began and what became of
them: the other columns add up to IN. OFF is the difference, and should be 0. It is found
by counting the kept messages one by one, which the service does from time to time, and at
once with --recount. With an OFF other than 0 the exit code is 1.`,
		Args: exactArgs(0, "no arguments"),
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		l, err := client.Ledger(ctx, recount)
		if err != nil {
			return err
		}
		err = list(p, l, l.Queues, func(l inspect.LedgerLine) string { return l.Queue }, func(w io.Writer) { ledger(w, l, time.Now()) })
		if err != nil {
			return err
		}
		for _, line := range l.Queues {
			if line.Off != 0 {
				return hint.Errorf("see docs/how-to/alerts.md, RedriveLedgerOff", "the ledger is off by %d for the queue %q", line.Off, line.Queue)
			}
		}
		return nil
	})
	c.Flags().BoolVar(&recount, "recount", false, "count the kept messages one by one now")
	return p.withOutput(c)
}

func ledger(w io.Writer, l inspect.Ledger, now time.Time) {
	if len(l.Queues) == 0 {
		fmt.Fprintln(w, "no message has failed yet")
		return
	}
	rows(w, inspect.LedgerColumns, l.Queues, now)
	if l.Recounted != nil {
		fmt.Fprintf(w, "\nWhat is kept was counted one by one %s.\n", ago(l.Recounted, now))
	}
}
