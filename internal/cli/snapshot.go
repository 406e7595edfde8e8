package cli

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
)

func (p *program) snapshot() *cobra.Command {
	c := p.withClient(&cobra.Command{
		Use:   "snapshot DIR",
		Short: "Copy the data folder of the running service",
		Long: `The running service writes a copy of its data folder (store.disk), as it is at one moment,
to DIR on the service's machine: the absolute path of a folder that does not exist or is
empty. The service continues meanwhile. Administrators only.

DIR is then a data folder by itself: waiting, parked and discarded messages, the ledger,
history, pauses, operations, tokens, audit log. The config is not in it. On the
same file system DIR shares files with the data folder until the service replaces its
own: copy DIR to another disk or machine. See docs/how-to/backup.md for how to restore it.`,
		Example: "  redrive snapshot /var/backups/redrive-2026-11-22\n  redrive store check /var/backups/redrive-2026-11-22",
		Args:    exactArgs(1, "a folder on the service's machine"),
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		if !filepath.IsAbs(args[0]) {
			return fmt.Errorf("%q is not an absolute path, and the service may run elsewhere: %w", args[0], errUsage)
		}
		made, err := client.Snapshot(ctx, args[0])
		if err != nil {
			return err
		}
		return write(p, made, func(s actions.SnapshotMade) string { return s.Folder }, func(w io.Writer) {
			fmt.Fprintf(w, "%s written to %s, in %.1f s\n", messages(int(made.Messages)), plain(made.Folder), made.Seconds)
		})
	})
	return p.withOutput(c)
}
