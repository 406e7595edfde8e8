package cli

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// errDeclined: a person was asked, and did not say yes.
var errDeclined = fmt.Errorf("nothing was changed")

// withYes adds the flag that answers confirm.
func (p *program) withYes(c *cobra.Command, usage string) {
	c.Flags().BoolVar(&p.yes, "yes", false, usage)
}

// confirm asks a person, unless --yes was given.
func (p *program) confirm(ctx context.Context, question string) error {
	if p.yes {
		return nil
	}
	return p.prompt(ctx, question)
}

// prompt asks a person; without a terminal it is an error.
func (p *program) prompt(ctx context.Context, question string) error {
	if !isTerminal(p.in) {
		return fmt.Errorf("this is not a terminal, so it cannot ask: give --yes or --dry-run: %w", errUsage)
	}
	fmt.Fprintf(p.err, "%s [y/N] ", plain(question))
	answer := make(chan string, 1)
	// Reading cannot be cancelled: after Ctrl-C the process exits while this goroutine reads.
	go func() {
		line, _ := bufio.NewReader(p.in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(p.err)
	}
	return errDeclined
}
