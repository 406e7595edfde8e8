package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/server"
)

func (p *program) store() *cobra.Command {
	c := &cobra.Command{
		Use:   "store",
		Short: "Check and salvage a data folder, while no service uses it",
		Long: `A service refuses a folder (store.disk) that lacks synced data, and one that it cannot
open. A block that cannot be read costs the messages in it, and the service continues: the
block is read as empty, counts are rebuilt at the next start, and the table is kept in the
folder "damaged" until you remove it.`,
	}
	return commandGroup(c, p.storeCheck(), p.storeSalvage(), p.storeAcceptLoss())
}

func (p *program) storeCheck() *cobra.Command {
	return &cobra.Command{
		Use:     "check DIR",
		Short:   "Read a whole data folder, and report what is missing or cannot be read",
		Long:    "If something is, the exit code is 5. Stop the service first.",
		Example: "  redrive store check /var/lib/redrive",
		RunE: func(c *cobra.Command, args []string) error {
			found, err := server.CheckStore(c.Context(), args[0], p.logger(config.Log{Level: slog.LevelError}))
			if err != nil {
				return exitError{ExitPrecondition, err}
			}
			wrong := len(found.Damage)
			for i := range found.Lines {
				l, missing := &found.Lines[i], ""
				if off := l.Off(); off != 0 {
					wrong++
					missing = fmt.Sprintf(", and %d that came cannot be found", off)
				}
				fmt.Fprintf(p.out, "%s: %s kept%s\n", plain(l.Queue), messages(int(l.Kept())), missing)
			}
			p.places("cannot be read", found.Damage)
			if wrong > 0 {
				return exitErrorf(ExitPrecondition,
					"%s is damaged: `redrive store salvage %s --to NEW-FOLDER` saves everything that can be read",
					args[0], args[0])
			}
			fmt.Fprintln(p.out, "nothing is missing")
			return nil
		},
	}
}

// places lists what is wrong at places of a store.
func (p *program) places(what string, at map[string]string) {
	for _, place := range slices.Sorted(maps.Keys(at)) {
		fmt.Fprintf(p.out, "%s: %s: %s\n", what, plain(place), plain(at[place]))
	}
}

func (p *program) storeSalvage() *cobra.Command {
	var to string
	c := &cobra.Command{
		Use:   "salvage DIR --to DIR",
		Short: "Save everything that can be read in a damaged data folder to a new one",
		Long: `Nothing is removed from the old one. The new ledger starts with the saved messages; the
history of retried messages is not saved.

If the database itself cannot be opened, or lacks synced data, the command searches each
of its files for messages. Some of these may have been retried or discarded already, and
are retried again, with the same x-redrive-id.

Stop the service first, and then set store.disk to the new folder. The exit code is 3 when
something could not be read.`,
		Example: "  redrive store salvage /var/lib/redrive --to /var/lib/redrive-2",
		RunE: func(c *cobra.Command, args []string) error {
			if to == "" || to == args[0] {
				return fmt.Errorf("%s needs --to, a new folder: %w", c.CommandPath(), errUsage)
			}
			done, err := server.SalvageStore(c.Context(), args[0], to, p.logger(config.Log{Level: slog.LevelError}))
			if err != nil {
				return err
			}
			loose := ""
			if done.Loose > 0 {
				loose = fmt.Sprintf(", %d of them from files that the database does not refer to: a part of those may "+
					"have been retried already", done.Loose)
			}
			fmt.Fprintf(p.out, "%s saved to %s%s\n", messages(int(done.Messages)), plain(to), loose)
			p.places("could not be read", done.Unread)
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
		Long: `A service refuses a folder that lacks synced data: after this command it starts with what
is there. Messages that redrive store salvage could have saved are removed then.`,
		Example: "  redrive store accept-loss /var/lib/redrive",
		RunE: func(_ *cobra.Command, args []string) error {
			lost, err := server.AcceptLoss(args[0], p.logger(config.Log{Level: slog.LevelError}))
			switch {
			case err != nil:
				return err
			case lost == nil:
				fmt.Fprintf(p.err, "Nothing is missing of %s: nothing was changed.\n", plain(args[0]))
			default:
				fmt.Fprintf(p.err, "Services can use %s again, without the last %d of its commits.\n", plain(args[0]),
					lost.Commits)
			}
			return nil
		},
	}
}

func (p *program) snapshot() *cobra.Command {
	c := p.withClient(&cobra.Command{
		Use:   "snapshot DIR",
		Short: "Copy the data folder of the running service",
		Long: `The service writes its data folder (store.disk), as it is at one moment, to DIR on its own
machine: the absolute path of a folder that does not exist or is empty. It continues
meanwhile. Administrators only.

DIR is then a data folder by itself: waiting, parked and discarded messages, the ledger,
history, pauses, operations, tokens, audit log. The config is not in it. On the same file
system DIR shares files with the data folder until the service replaces its own: copy DIR
to another disk or machine. See docs/how-to/backup.md for how to restore it.`,
		Example: "  redrive snapshot /var/backups/redrive-2026-11-22\n  redrive store check " +
			"/var/backups/redrive-2026-11-22",
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		if !filepath.IsAbs(args[0]) {
			return fmt.Errorf("%q is not an absolute path, and the service may run elsewhere: %w", args[0], errUsage)
		}
		made, err := client.Snapshot(ctx, args[0])
		if err != nil {
			return err
		}
		return write(p, made, func(s actions.SnapshotMade) string { return s.Folder }, func(w io.Writer) {
			fmt.Fprintf(w, "%s written to %s, in %.1f s\n", messages(int(made.Messages)), plain(made.Folder),
				made.Seconds)
		})
	})
	return p.withOutput(c)
}

func (p *program) export() *cobra.Command {
	var asCSV bool
	c := p.withQuery(&cobra.Command{
		Use:   "export [QUERY]",
		Short: "Write messages with their bodies as lines of JSON, which import takes",
		Long: `Each line has everything that is known about a message, its body byte for byte. The
messages are not changed. --csv leaves the bodies out, and turns formulas into text.`,
		Example: "  redrive export 'queue:orders state:parked' > orders.jsonl",
	}, func(ctx context.Context, client httpapi.Client, query string) error {
		format, safe := "jsonl", harmless
		if asCSV {
			format, safe = "csv", plainLines
		}
		meter, passed, terminal := p.meter(), 0, isTerminal(p.out)
		n, err := client.Export(ctx, query, format, &lineWriter{to: func(line []byte) error {
			if passed++; meter.draws && !terminal {
				meter.show(count(passed)+" lines", false)
			}
			if terminal {
				return p.print(safe(string(line)), nil)
			}
			_, err := p.out.Write(line)
			return err
		}})
		meter.end()
		if err != nil {
			return err
		}
		fmt.Fprintf(p.err, "%s exported\n", messages(n))
		return nil
	})
	c.Flags().BoolVar(&asCSV, "csv", false, "as CSV, without bodies")
	return c
}

func (p *program) importing() *cobra.Command {
	var o actions.ImportOptions
	c := p.withClient(&cobra.Command{
		Use:   "import FILE|-",
		Short: "Park the messages of an export: new messages that name the old ones",
		Long: `A message that was imported before is skipped, so you can repeat an import that was
interrupted. So is one that still waits or is parked here, unless you say --even-if-kept: a
replay of both would send it twice. A file is checked as a whole before the first message is
stored; of standard input (-) the messages before an invalid line are stored.

--as-is keeps the messages as they are in the export, with their ids, attempts and times,
to move them to another store: what was waiting is retried when it is due. Only an
administrator may, and the service of the old store must not run any more.`,
		Example: `  redrive import orders.jsonl
  redrive import --as-is --dry-run all.jsonl`,
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		done, err := p.importFrom(ctx, client, args[0], o)
		if errors.Is(err, inspect.ErrInvalid) && !errors.As(err, new(exitError)) {
			return exitError{ExitError, err} // the file is wrong, not the command
		} else if err != nil {
			return err
		}
		return write(p, done, func(actions.Imported) string { return "" }, func(w io.Writer) {
			does := "parked"
			if o.AsIs {
				does = "kept as exported"
			}
			if o.DryRun {
				fmt.Fprintf(w, "%s would be %s. Nothing is done yet.\n", messages(done.Count), does)
			} else {
				fmt.Fprintf(w, "%s %s\n", plural(done.Count, "message is", "messages are"), does)
			}
			if done.Already > 0 {
				fmt.Fprintf(w, "%s imported before, and skipped\n",
					plural(done.Already, "message was", "messages were"))
			}
			if done.Kept > 0 {
				fmt.Fprintf(w, "%s here, and skipped; --even-if-kept imports what is kept a second time\n",
					plural(done.Kept, "message still waits or is parked", "messages still wait or are parked"))
			}
			for _, q := range slices.SortedFunc(maps.Keys(done.Queues), hint.Natural) {
				fmt.Fprintf(w, "%s\t%s\n", cell(q), count(done.Queues[q]))
			}
		})
	})
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "only check it, and show what would be done")
	c.Flags().BoolVar(&o.AsIs, "as-is", false, "keep ids, states, attempts and times")
	c.Flags().BoolVar(&o.EvenIfKept, "even-if-kept", false, "also what still waits or is parked here, a second time")
	return p.withFormats(c, "table", "json", "yaml")
}

func (p *program) importFrom(
	ctx context.Context, client httpapi.Client, from string, o actions.ImportOptions,
) (done actions.Imported, err error) {
	if from == "-" {
		return client.Import(ctx, p.measured(p.in, 0), o)
	}
	f, err := os.Open(from)
	if err != nil {
		return done, fmt.Errorf("the export: %w", err)
	}
	defer f.Close()
	size := int64(0)
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		size = info.Size()
		checked := o
		checked.DryRun = true
		if done, err = client.Import(ctx, p.measured(f, size), checked); err != nil || o.DryRun {
			return done, err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return done, err
		}
	}
	return client.Import(ctx, p.measured(f, size), o)
}

// measured shows on a terminal how much of a file was read.
func (p *program) measured(r io.Reader, size int64) io.Reader {
	meter, read := p.meter(), int64(0)
	if !meter.draws {
		return io.MultiReader(r) // hides Close from net/http, and Len of a file that grows
	}
	meter.last = time.Now() // what is read at once needs no line
	return readerFunc(func(buf []byte) (int, error) {
		n, err := r.Read(buf)
		read += int64(n)
		line := count(read>>20) + " MiB"
		if size > 0 {
			line = gauge(read, size, barWidth) + " " + line
		}
		if meter.show(line, false); err != nil {
			meter.end()
		}
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
