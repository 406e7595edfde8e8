package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md")

// reference is all commands, as their --help has them.
func reference(c *cobra.Command) string {
	var b strings.Builder
	if c.Runnable() && (c.Parent() != nil) {
		long := c.Long
		if long == "" {
			long = c.Short + "."
		}
		fmt.Fprintf(&b, "### %s\n\n```\n%s\n```\n\n%s\n\n", c.CommandPath(), c.UseLine(), long)
		if c.Example != "" {
			fmt.Fprintf(&b, "```sh\n%s\n```\n\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
		}
		c.InitDefaultHelpFlag()
		for _, name := range []string{"help", "address", "ca-file"} { // said once, above
			if f := c.Flags().Lookup(name); f != nil {
				f.Hidden = true
			}
		}
		if flags := c.LocalFlags().FlagUsages(); strings.TrimSpace(flags) != "" {
			fmt.Fprintf(&b, "```\n%s```\n\n", flags)
		}
	}
	for _, sub := range c.Commands() {
		b.WriteString(reference(sub))
	}
	return b.String()
}

func TestTheReference(t *testing.T) {
	const file, begin = "../../docs/reference/cli.md", "<!-- go test ./internal/cli -run TestTheReference -update writes what follows -->\n"
	root := Commands()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, is, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no place for the reference", file)
	}
	want := "\n```\n" + exitCodes + "\n```\n\n" + strings.TrimSuffix(reference(root), "\n")
	switch {
	case is == want:
	case *update:
		if err := os.WriteFile(file, []byte(before+begin+want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the commands: go test ./internal/cli -run TestTheReference -update writes it", file)
	}
	for _, c := range root.Commands() {
		if !strings.Contains(before, "redrive "+c.Name()) && c.Name() != "help" {
			t.Errorf("%s does not mention redrive %s before the reference", file, c.Name())
		}
	}
}
