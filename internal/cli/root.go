// Package cli is the command line.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/api"
	"github.com/redrive-mq/redrive/internal/config"
)

// Exit codes.
const (
	ExitOK          = 0
	ExitError       = 1
	ExitUsage       = 2
	ExitUnreachable = 7
)

// errUsage marks what the caller got wrong.
var errUsage = errors.New("see --help")

// program is what the commands share.
type program struct {
	version string
	out     io.Writer // data
	err     io.Writer // all else
	getenv  func(string) string
	address string
}

// Run runs the command line args and returns its exit code.
func Run(ctx context.Context, args []string, out, errOut io.Writer, version string) int {
	p := &program{version: version, out: out, err: errOut, getenv: os.Getenv}
	root := p.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	// An error may quote a broker, another service or an argument.
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(errOut, "redrive: %s\n", plain(line))
	}
	switch {
	case errors.Is(err, errUsage):
		return ExitUsage
	case errors.Is(err, api.ErrUnreachable):
		return ExitUnreachable
	}
	return ExitError
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "redrive",
		Short: "Brings failed RabbitMQ messages back to their queue, and parks what keeps failing",
		Long: `Redrive brings failed RabbitMQ messages back to their queue after a delay that
grows, and parks what keeps failing where people can see it and send it back.

Exit codes: 0 done, 1 error, 2 wrong usage, 7 no service answers.`,
		Version:       p.version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%s: %v: %w", c.CommandPath(), err, errUsage)
	})
	root.AddCommand(p.serve(), p.check(), p.status(), p.messages(), p.replay(), p.enroll(), p.unenroll(), p.topology(), p.token(), p.audit(), p.decode(), p.demo())
	return group(root)
}

// group makes a command that has only commands refuse any other; left alone,
// cobra shows the help and calls that a success.
func group(c *cobra.Command) *cobra.Command {
	c.SuggestionsMinimumDistance = 2
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		hint := ""
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			hint = fmt.Sprintf(" (did you mean %q?)", near[0])
		}
		return fmt.Errorf("%s has no command %q%s: %w", c.CommandPath(), args[0], hint, errUsage)
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return c
}

// withAddress adds the flag that says which service to ask.
func (p *program) withAddress(c *cobra.Command) *cobra.Command {
	def := p.getenv("REDRIVE_ADDRESS")
	if def == "" {
		def = config.Default().Listen
	}
	c.Flags().StringVar(&p.address, "address", def, "where the service listens; or REDRIVE_ADDRESS")
	return c
}

func (p *program) client() api.Client { return api.Client{Addr: p.address} }

func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return fmt.Errorf("%s takes %s: %w", c.CommandPath(), what, errUsage)
		}
		return nil
	}
}
