package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// shortestWatch keeps a typing error from asking the service thousands of times a second.
const shortestWatch = 100 * time.Millisecond

// clearScreen moves a terminal's cursor to its top left, and removes what is below.
const clearScreen = "\x1b[H\x1b[2J"

// watched adds --watch to a command that shows something: it runs again and again until Ctrl-C. A
// service that does not answer for a while ends it only at its first answer.
func (p *program) watched(c *cobra.Command) *cobra.Command {
	var every time.Duration
	c.Flags().DurationVar(&every, "watch", 0, "show it again and again until Ctrl-C, this often")
	c.Flags().Lookup("watch").NoOptDefVal = "2s"
	once := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if !c.Flags().Changed("watch") {
			return once(c, args)
		}
		if every < shortestWatch {
			return fmt.Errorf("--watch=%s: expected %s or more: %w", every, shortestWatch, errUsage)
		}
		return p.repeat(c.Context(), every, func() error { return once(c, args) })
	}
	return c
}

func (p *program) repeat(ctx context.Context, every time.Duration, show func() error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for first := true; ; first = false {
		if isTerminal(p.out) {
			fmt.Fprint(p.out, clearScreen)
		}
		err := show()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			p.printError(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
