package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
)

func (p *program) export() *cobra.Command {
	var asCSV bool
	c := p.withQuery(&cobra.Command{
		Use:   "export [QUERY]",
		Short: "Write messages with their bodies as lines of JSON, which import takes",
		Long: `Write messages as lines of JSON to standard output, each with everything that is known
about it, its body byte for byte. It changes none of them. --csv leaves the bodies out,
and turns formulas into text.`,
		Example: "  redrive export 'queue:orders state:parked' > orders.jsonl",
	}, func(ctx context.Context, client httpapi.Client, query string) error {
		format, safe, to := "jsonl", harmless, p.out
		if asCSV {
			format, safe = "csv", plainLines
		}
		if isTerminal(p.out) {
			to = &harmlessWriter{w: p.out, to: safe}
		}
		counting := &lineCounter{w: to, meter: p.meter(), shown: p.draws() && !isTerminal(p.out)}
		n, err := client.Export(ctx, query, format, counting)
		counting.end()
		if err != nil {
			return err
		}
		fmt.Fprintf(p.err, "%s exported\n", messages(n))
		return nil
	})
	c.Flags().BoolVar(&asCSV, "csv", false, "as CSV, without bodies")
	return c
}

// lineCounter shows how many lines have passed.
type lineCounter struct {
	*meter
	w     io.Writer
	lines int64
	shown bool
}

func (c *lineCounter) Write(b []byte) (int, error) {
	c.lines += int64(bytes.Count(b, []byte("\n")))
	if c.shown {
		c.show(count(c.lines)+" lines", false)
	}
	return c.w.Write(b)
}

func (p *program) importing() *cobra.Command {
	var o actions.ImportOptions
	c := p.withClient(&cobra.Command{
		Use:   "import FILE|-",
		Short: "Park the messages of an export: new messages that name the old ones",
		Long: `Park the messages of an export: new messages, with ids of their own, that name the
originals. A message that was imported before is skipped, so you can repeat an import that
was interrupted. A file is checked as a whole before the first message is stored; of
standard input (-) the messages before an invalid line are stored.

--as-is keeps the messages as they are in the export, with their ids, attempts and times, to
move them to another store: what was waiting is retried when it is due. Only an
administrator may, and the service of the old store must not run any more.`,
		Example: `  redrive import orders.jsonl
  redrive import --as-is --dry-run all.jsonl`,
		Args: exactArgs(1, "a file, or - for standard input"),
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		done, err := p.importFrom(ctx, client, args[0], o)
		var e exitError
		if err != nil && errors.Is(err, inspect.ErrInvalid) && !errors.As(err, &e) {
			err = exitError{ExitError, err} // the file is wrong, not the command
		}
		if err != nil {
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
				fmt.Fprintf(w, "%s imported before, and skipped\n", plural(done.Already, "message was", "messages were"))
			}
			for _, q := range slices.Sorted(maps.Keys(done.Queues)) {
				fmt.Fprintf(w, "%s\t%s\n", cell(q), count(done.Queues[q]))
			}
		})
	})
	c.Flags().BoolVar(&o.DryRun, "dry-run", false, "only check it, and show what would be done")
	c.Flags().BoolVar(&o.AsIs, "as-is", false, "keep ids, states, attempts and times")
	return p.withFormats(c, "table", "json", "yaml")
}

func (p *program) importFrom(ctx context.Context, client httpapi.Client, from string, o actions.ImportOptions) (done actions.Imported, err error) {
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
		if done, err = client.Import(ctx, p.measured(f, size), actions.ImportOptions{DryRun: true, AsIs: o.AsIs}); err != nil || o.DryRun {
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
	if !p.draws() {
		return io.MultiReader(r) // hides Close from net/http, and Len of a file that grows
	}
	meter, read := p.meter(), int64(0)
	meter.last = time.Now() // what is read at once needs no line
	return readerFunc(func(buf []byte) (int, error) {
		n, err := r.Read(buf)
		read += int64(n)
		line := count(read>>20) + " MiB"
		if size > 0 {
			line = gauge(read, size) + " " + line
		}
		meter.show(line, false)
		if err != nil {
			meter.end()
		}
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
