// Package cli is the command line. Read it in this order:
//
//	root.go     all commands; exit.go: how they end; connect.go: which service they ask
//	output.go   data as a table (fit.go), JSON, YAML, CSV or names; plain.go: foreign text; watch.go: again and again
//	act.go      replay, discard, restore, copy: of messages that are named, or …
//	operate.go  … of all that a query finds: preview.go, ask.go, follow.go
//	messages.go and a file for each other group of commands
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// program is what the commands share.
type program struct {
	build  Build
	in     io.Reader
	out    io.Writer // data
	err    io.Writer // all else
	getenv func(string) string
	// of the flags that commands with a service have
	address, caFile string
	vhost           string // "": the first that is served; of doctor all
	// of the flags that many commands have
	config string // --config: the path of the config file; "": none
	format string // --output; "": a table
	wide   bool   // --wide: tables may be wider than the terminal
	yes    bool   // --yes: confirm does not ask
	// query is that of the command, for an error that points into it.
	query string
}

// Run runs the command line args and returns its exit code.
func Run(ctx context.Context, args []string, out, errOut io.Writer, build Build) int {
	info, _ := debug.ReadBuildInfo()
	p := &program{build: build.complete(info), in: os.Stdin, out: out, err: errOut, getenv: os.Getenv}
	root := p.root()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	p.printError(err)
	return codeOf(err)
}

// Commands returns the command line as its manual pages and completions are made of it.
func Commands() *cobra.Command {
	return (&program{getenv: func(string) string { return "" }}).root()
}

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "redrive",
		Short: "Retries failed RabbitMQ messages, and parks those that keep failing",
		Long: `Redrive retries failed RabbitMQ messages with backoff, and parks those that keep
failing, where people can see and replay them.

Data goes to standard output, everything else to standard error.

` + exitCodes,
		Version:       p.build.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().StringVar(&p.vhost, "vhost", "", "which of several virtual hosts; left out: that of broker.url")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if _, chooses := c.Annotations[choosesVHost]; p.vhost != "" && !chooses {
			return fmt.Errorf("%s is not about one virtual host: leave --vhost out: %w", c.CommandPath(), errUsage)
		}
		return nil
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		hint := ""
		if strings.Contains(c.Use, "QUERY") {
			hint = " (a query that begins with - comes after --)"
		}
		return fmt.Errorf("%s: %v%s: %w", c.CommandPath(), err, hint, errUsage)
	})
	for _, part := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"see", "See:", []*cobra.Command{p.status(), p.messages(), p.groups(), p.queues(), p.ledger(), p.open(), p.decode()}},
		{"act", "Act:", []*cobra.Command{p.replay(), p.edit(), p.discard(), p.restore(), p.copy(), p.pause(), p.resume(), p.breaker(), p.ops(), p.export(), p.importing()}},
		{"service", "The service:", []*cobra.Command{p.serve(), p.check(), p.simulate(), p.notify(), p.token(), p.audit(), p.snapshot(), p.store(), p.demo(), p.versionCommand()}},
		{"rabbitmq", "RabbitMQ:", []*cobra.Command{p.enroll(), p.unenroll(), p.move(), p.topology(), p.doctor(), p.permissions()}},
	} {
		root.AddGroup(&cobra.Group{ID: part.id, Title: part.title})
		for _, c := range part.commands {
			c.GroupID = part.id
			root.AddCommand(c)
		}
	}
	return commandGroup(root)
}

// commandGroup makes a command that has only commands refuse any other; left alone,
// cobra shows the help and calls that a success.
func commandGroup(c *cobra.Command) *cobra.Command {
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
	if c.RunE == nil {
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	return c
}

func exactArgs(n int, what string) cobra.PositionalArgs { return argsBetween(n, n, what) }

func argsBetween(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return fmt.Errorf("%s takes %s: %w", c.CommandPath(), what, errUsage)
		}
		return nil
	}
}
