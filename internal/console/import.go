package console

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/flow"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

const (
	importBatch = 1000
	importBytes = 32 << 20
	// longestLine holds the largest body that RabbitMQ takes by default, 128 MiB, in
	// base64, and its headers.
	longestLine = 192 << 20
	// longestName is RabbitMQ's limit for names of queues and exchanges, and routing
	// keys, in bytes.
	longestName = 255
)

// Imported is what came of an import.
type Imported struct {
	Count  int64            `json:"count" doc:"Messages that are parked now; with dry_run: that would be."`
	Queues map[string]int64 `json:"queues" doc:"How many of each queue."`
}

// Import parks what Export wrote: new messages, with new ids, that say which ones
// they were made from. It checks each line before it keeps it. Where r can be read
// twice (a file), all lines are checked before the first is kept; else those before
// a bad line are kept, and Imported says how many. An error names the line.
func (c *Console) Import(ctx context.Context, by auth.Caller, r io.Reader, dryRun bool) (Imported, error) {
	im := Imported{Queues: map[string]int64{}}
	if err := c.permit(by, auth.Editor, "import", ""); err != nil {
		return im, err
	}
	if again, ok := r.(io.ReadSeeker); ok || dryRun {
		err := c.readLines(ctx, by, r, func(records []*store.Record) error {
			if dryRun {
				im.add(records)
			}
			return nil
		})
		if err != nil || dryRun {
			return im, err
		}
		if _, err := again.Seek(0, io.SeekStart); err != nil {
			return im, fmt.Errorf("reading it again from its start: %w", err)
		}
	}
	end, err := c.begin(by, "import", "", 0, "")
	if err != nil {
		return im, err
	}
	err = c.readLines(ctx, by, r, func(records []*store.Record) error {
		if err := c.Store.Add(context.WithoutCancel(ctx), records); err != nil {
			return err
		}
		im.add(records)
		return nil
	})
	if err != nil && im.Count > 0 {
		err = fmt.Errorf("%w (the first %d messages are imported)", err, im.Count)
	}
	for _, q := range slices.Sorted(maps.Keys(im.Queues)) {
		c.tell(flow.Event{Kind: flow.Imported, Queue: q, N: int(im.Queues[q]), By: by.Name})
	}
	end(err, im.Count)
	return im, err
}

func (im *Imported) add(records []*store.Record) {
	im.Count += int64(len(records))
	for _, r := range records {
		im.Queues[r.Queue]++
	}
}

// readLines hands the checked records of an export to keep, a batch at a time.
func (c *Console) readLines(ctx context.Context, by auth.Caller, from io.Reader, keep func([]*store.Record) error) error {
	in := bufio.NewReaderSize(from, 64<<10)
	var batch []*store.Record
	size := 0
	flush := func() error {
		if len(batch) == 0 {
			return ctx.Err()
		}
		err := keep(batch)
		batch, size = nil, 0
		return errors.Join(err, ctx.Err())
	}
	for n := 1; ; n++ {
		line, err := readLine(in)
		if err != nil && err != io.EOF {
			return fmt.Errorf("line %d: %w", n, err)
		}
		ended := err == io.EOF
		if line = bytes.TrimSpace(line); len(line) > 0 {
			r, err := c.imported(by, line)
			if err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
			batch = append(batch, r)
			size += len(line)
		}
		if ended || len(batch) >= importBatch || size >= importBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
	}
}

func readLine(in *bufio.Reader) (line []byte, err error) {
	for {
		piece, err := in.ReadSlice('\n')
		line = append(line, piece...)
		switch {
		case len(line) > longestLine:
			return nil, fmt.Errorf("%w: it is longer than %d MiB", ErrInvalid, longestLine>>20)
		case err != bufio.ErrBufferFull:
			return line, err
		}
	}
}

// imported makes a parked record of a line. A file proves nothing: not that
// RabbitMQ dead-lettered it, nor that a policy sent it elsewhere.
func (c *Console) imported(by auth.Caller, line []byte) (*store.Record, error) {
	r, err := parseLine(line)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	m := &r.Message
	switch {
	case r.Queue == "" || len(r.Queue) > longestName || wire.OwnQueue(r.Queue):
		return nil, fmt.Errorf("%w: %q is not a work queue", ErrInvalid, r.Queue)
	case len(m.Exchange) > longestName || len(m.RoutingKey) > longestName:
		return nil, fmt.Errorf("%w: its exchange or routing key is longer than %d bytes", ErrInvalid, longestName)
	}
	if err := by.May(auth.Editor, r.Queue); err != nil {
		return nil, err
	}
	if was := r.State; was == store.Parked && r.ParkedFor != "" {
		r.Notes = append(r.Notes, "before it was imported it was parked: "+r.ParkedFor)
	} else {
		r.Notes = append(r.Notes, "before it was imported it was "+stateNames[was])
	}
	now := c.Now()
	r.MadeFrom, r.MadeInto, r.ID = r.ID, uuid.Nil, uuid.Must(uuid.NewV7())
	r.State, r.Due, r.ParkedFor = store.Parked, now, "imported by "+by.Name
	r.Forward, r.Proven, r.Fingerprint = nil, false, [16]byte{}
	for _, at := range []*time.Time{&r.FirstFailed, &r.FailedAt} {
		if at.IsZero() || at.After(now) {
			*at = now
		}
	}
	if _, err := store.AppendRecord(nil, r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return r, nil
}
