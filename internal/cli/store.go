package cli

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/server"
)

func (p *program) store() *cobra.Command {
	c := &cobra.Command{
		Use:   "store",
		Short: "Check and salvage a data folder, while no service uses it",
		Long: `Check and salvage a data folder (store.disk), while no service uses it.

A service refuses a folder that lacks synced data, and one that it cannot open. A block
that cannot be read costs the messages in it, and the service continues: the block is read
as empty, counts are rebuilt at the next start, and the table is kept in the folder
"damaged" until you remove it.`,
	}
	c.AddCommand(p.storeCheck(), p.storeSalvage(), p.storeAcceptLoss())
	return commandGroup(c)
}

// log is what a store writes to while a command uses it.
func (p *program) log(least slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(p.err, &slog.HandlerOptions{Level: least, ReplaceAttr: hint.Attr}))
}

func (p *program) storeCheck() *cobra.Command {
	return &cobra.Command{
		Use:     "check DIR",
		Short:   "Read a whole data folder, and report what is missing or cannot be read",
		Long:    "Read a whole data folder, and report what is missing or cannot be read: the exit code is\nthen 5. Stop the service first.",
		Example: "  redrive store check /var/lib/redrive",
		Args:    exactArgs(1, "a data folder"),
		RunE: func(c *cobra.Command, args []string) error {
			found, err := server.CheckStore(c.Context(), args[0], p.log(slog.LevelError))
			if err != nil {
				return exitError{ExitPrecondition, err}
			}
			wrong := len(found.Damage)
			for i := range found.Lines {
				l := &found.Lines[i]
				fmt.Fprintf(p.out, "%s: %s kept", plain(l.Queue), messages(int(l.Kept())))
				if off := l.Off(); off != 0 {
					wrong++
					fmt.Fprintf(p.out, ", and %d that came cannot be found", off)
				}
				fmt.Fprintln(p.out)
			}
			for _, place := range slices.Sorted(maps.Keys(found.Damage)) {
				fmt.Fprintf(p.out, "cannot be read: %s: %s\n", plain(place), plain(found.Damage[place]))
			}
			if wrong > 0 {
				return exitErrorf(ExitPrecondition, "%s is damaged: `redrive store salvage %s --to NEW-FOLDER` saves everything that can be read", args[0], args[0])
			}
			fmt.Fprintln(p.out, "nothing is missing")
			return nil
		},
	}
}

func (p *program) storeSalvage() *cobra.Command {
	var to string
	c := &cobra.Command{
		Use:   "salvage DIR --to DIR",
		Short: "Save everything that can be read in a damaged data folder to a new one",
		Long: `Save everything that can be read in a damaged data folder to a new one. Nothing is removed
from the old one. The new ledger starts with the saved messages; the history of retried
messages is not saved.

If the database itself cannot be opened, or lacks synced data, the command searches each of
its files for messages. Some of these may have been retried or discarded already, and are
retried again, with the same x-redrive-id.

Stop the service first, and then set store.disk to the new folder. The exit code is 3 when
something could not be read.`,
		Example: "  redrive store salvage /var/lib/redrive --to /var/lib/redrive-2",
		Args:    exactArgs(1, "a data folder, and --to"),
		RunE: func(c *cobra.Command, args []string) error {
			if to == "" || to == args[0] {
				return fmt.Errorf("%s needs --to, a new folder: %w", c.CommandPath(), errUsage)
			}
			done, err := server.SalvageStore(c.Context(), args[0], to, p.log(slog.LevelError))
			if err != nil {
				return err
			}
			fmt.Fprintf(p.out, "%s saved to %s", messages(int(done.Messages)), plain(to))
			if done.Loose > 0 {
				fmt.Fprintf(p.out, ", %d of them from files that the database does not refer to: a part of those may have been retried already", done.Loose)
			}
			fmt.Fprintln(p.out)
			for _, place := range slices.Sorted(maps.Keys(done.Unread)) {
				fmt.Fprintf(p.out, "could not be read: %s: %s\n", plain(place), plain(done.Unread[place]))
			}
			if len(done.Unread) > 0 {
				return exitErrorf(ExitPartly, "not all of %s could be read", args[0])
			}
			return nil
		},
	}
	c.Flags().StringVar(&to, "to", "", "the new data folder")
	return c
}

func (p *program) storeAcceptLoss() *cobra.Command {
	return &cobra.Command{
		Use:   "accept-loss DIR",
		Short: "Use a data folder without its missing data",
		Long: `Use a data folder without its missing data. A service refuses a folder that lacks synced
data: after this command it starts with what is there. Messages that redrive store salvage
could have saved are removed then.`,
		Example: "  redrive store accept-loss /var/lib/redrive",
		Args:    exactArgs(1, "a data folder"),
		RunE: func(_ *cobra.Command, args []string) error {
			lost, err := server.AcceptLoss(args[0], p.log(slog.LevelError))
			switch {
			case err != nil:
				return err
			case lost == nil:
				fmt.Fprintf(p.err, "Nothing is missing of %s: nothing was changed.\n", plain(args[0]))
			default:
				fmt.Fprintf(p.err, "Services can use %s again, without the last %d of its commits.\n", plain(args[0]), lost.Commits)
			}
			return nil
		},
	}
}
