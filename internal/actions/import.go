package actions

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

const (
	importBatch = 1000
	importBytes = 2 << 20
	// longLine is the length from which on a line is read only while nothing else of Config.Large is.
	longLine = 1 << 20
	// longestLine holds the largest body that RabbitMQ takes by default, 128 MiB, in
	// base64, and its headers.
	longestLine = 192 << 20
	// longestName is RabbitMQ's limit for names of queues and exchanges, and routing
	// keys, in bytes.
	longestName = 255
)

// Imported is the result of an import.
type Imported struct {
	Count  int64            `json:"count" doc:"Messages that are parked now; with dry_run: that would be."`
	Queues map[string]int64 `json:"queues" doc:"How many of each queue."`
	// Already are left out: the same messages were imported before.
	Already int64 `json:"already,omitempty" doc:"Messages that were imported before, and are skipped."`
}

// ImportOptions are how an import is made.
type ImportOptions struct {
	DryRun bool // only check all lines
	// AsIs keeps the messages with id, state, attempts and times as they are, to move a store. What
	// waits is retried when it is due, to the queue that the file says, so only an administrator may.
	AsIs bool
}

func (o ImportOptions) role() auth.Role {
	if o.AsIs {
		return auth.Admin
	}
	return auth.Editor
}

// Import parks what Export wrote: new messages, with new ids, that say which ones they were made
// from. A message that was imported before is left out, so an import that was cut short can be
// repeated. An error names the line; batches before it are kept, and Imported says how many
// messages they have.
func (a *Actions) Import(ctx context.Context, by auth.Caller, r io.Reader, o ImportOptions) (Imported, error) {
	im := Imported{Queues: map[string]int64{}}
	did := "import"
	if o.AsIs {
		did = "import as is"
	}
	if err := a.Permit(by, o.role(), did, ""); err != nil {
		return im, err
	}
	if o.DryRun {
		err := a.readLines(ctx, by, r, o, func(records []*store.Record) error {
			records, err := a.notImported(ctx, &im, records, o)
			im.add(records)
			return err
		})
		return im, err
	}
	end, err := a.Begin(by, did, "", 0, "")
	if err != nil {
		return im, err
	}
	err = a.readLines(ctx, by, r, o, func(records []*store.Record) error {
		records, err := a.notImported(ctx, &im, records, o)
		if err != nil || len(records) == 0 {
			return err
		}
		if err := a.Store.Add(context.WithoutCancel(ctx), records); err != nil {
			return err
		}
		im.add(records)
		return nil
	})
	if err != nil && im.Count > 0 {
		err = fmt.Errorf("%w (the first %d messages are imported)", err, im.Count)
	}
	for _, q := range slices.Sorted(maps.Keys(im.Queues)) {
		a.event(retry.Event{Kind: retry.Imported, Queue: q, N: int(im.Queues[q]), By: by.Name})
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

// failure identifies a failure of a message.
type failure struct {
	id    uuid.UUID
	queue string
	at    int64
}

// notImported returns the records that were not imported before, whatever became of them since.
func (a *Actions) notImported(
	ctx context.Context, im *Imported, records []*store.Record, o ImportOptions,
) (left []*store.Record, err error) {
	of := func(id uuid.UUID, queue string, at time.Time) failure {
		if !o.AsIs { // its id was made for this line
			return failure{id: id}
		}
		return failure{id, queue, at.UnixMicro()}
	}
	seen := map[failure]bool{}
	for _, r := range records {
		kept, err := a.Store.Find(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		for _, l := range kept {
			seen[of(l.Record.ID, l.Record.Queue, l.Record.FailedAt)] = true
		}
		past, err := a.Store.PastFailures(ctx, r.ID)
		if err != nil {
			return nil, err
		}
		for _, p := range past {
			seen[of(p.ID, p.Queue, p.FailedAt)] = true
		}
		if is := of(r.ID, r.Queue, r.FailedAt); seen[is] {
			im.Already++
		} else {
			seen[is] = true
			left = append(left, r)
		}
	}
	return left, nil
}

// readLines passes the records of an export to keep, a batch of checked lines at a time.
func (a *Actions) readLines(ctx context.Context, by auth.Caller, from io.Reader, o ImportOptions, keep func([]*store.Record) error) error {
	in := bufio.NewReaderSize(from, 64<<10)
	var batch []*store.Record
	size, leave := 0, func() {} // Config.Large
	defer func() { leave() }()
	flush := func() (err error) {
		if len(batch) > 0 {
			err = keep(batch)
		}
		batch, size = nil, 0
		leave()
		leave = func() {}
		return errors.Join(err, ctx.Err())
	}
	enter := func() error {
		if err := flush(); err != nil {
			return err
		}
		left, err := a.Large.Enter(ctx, by.ID(), a.Large.All)
		if err == nil {
			leave = left
		}
		return err
	}
	for n := 1; ; n++ {
		line, err := readLine(in, enter)
		if err != nil && err != io.EOF {
			return fmt.Errorf("line %d: %w", n, err)
		}
		ended := err == io.EOF
		if line = bytes.TrimSpace(line); len(line) > 0 {
			r, err := a.importLine(by, line, o)
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

// readLine calls long before it reads more than longLine. It keeps pieces, and joins them once: a
// slice that grows would be held twice.
func readLine(in *bufio.Reader, long func() error) ([]byte, error) {
	var pieces [][]byte
	size, entered := 0, false
	for {
		piece, err := in.ReadSlice('\n')
		size += len(piece)
		if size > longLine && !entered {
			if err := long(); err != nil {
				return nil, err
			}
			entered = true
		}
		switch {
		case size > longestLine:
			return nil, fmt.Errorf("%w: it is longer than %d MiB", inspect.ErrInvalid, longestLine>>20)
		case err != bufio.ErrBufferFull && pieces == nil:
			return bytes.Clone(piece), err
		}
		pieces = append(pieces, bytes.Clone(piece))
		if err != bufio.ErrBufferFull {
			return bytes.Join(pieces, nil), err
		}
	}
}

// importLine makes a record of a line. A file proves nothing, not that RabbitMQ dead-lettered it, nor
// that a policy sent it elsewhere, so it is parked; but for what an administrator imports as it is.
func (a *Actions) importLine(by auth.Caller, line []byte, o ImportOptions) (*store.Record, error) {
	r, err := parseLine(line)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", inspect.ErrInvalid, err)
	}
	r.Imported = true
	m := &r.Message
	switch {
	case r.Queue == "" || len(r.Queue) > longestName || !utf8.ValidString(r.Queue) || wire.OwnQueue(r.Queue):
		return nil, fmt.Errorf("%w: %q is not a work queue", inspect.ErrInvalid, r.Queue)
	case len(m.Exchange) > longestName || len(m.RoutingKey) > longestName:
		return nil, fmt.Errorf("%w: its exchange or routing key is longer than %d bytes", inspect.ErrInvalid, longestName)
	}
	if err := by.May(o.role(), r.Queue); err != nil {
		return nil, err
	}
	if o.AsIs {
		return r, valid(r)
	}
	// The same line gets the same id, so that a repeated import recognizes it.
	same, err := appendLine(nil, r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", inspect.ErrInvalid, err)
	}
	id := headers.BindID(uuid.NewHash(sha256.New(), importedIDs, same, 8), m)
	if was := r.State; was == store.Parked && r.ParkedFor != "" {
		r.Notes = append(r.Notes, "before it was imported it was parked: "+r.ParkedFor)
	} else {
		r.Notes = append(r.Notes, "before it was imported it was "+inspect.StateName(was))
	}
	if names := unproven(m); len(names) > 0 {
		r.Notes = append(r.Notes, "the file says so, not RabbitMQ: "+strings.Join(names, ", "))
	}
	now := a.now()
	r.MadeFrom, r.MadeInto, r.ID = r.ID, uuid.Nil, id
	r.State, r.Due, r.ParkedFor = store.Parked, now, "imported by "+by.Name
	r.Forward, r.Proven, r.Fingerprint = nil, false, [16]byte{}
	for _, at := range []*time.Time{&r.FirstFailed, &r.FailedAt} {
		if at.IsZero() || at.After(now) {
			*at = now
		}
	}
	return r, valid(r)
}

func valid(r *store.Record) error {
	if _, err := store.AppendRecord(nil, r); err != nil {
		return fmt.Errorf("%w: %w", inspect.ErrInvalid, err)
	}
	return nil
}

// importedIDs is the name space of the ids of imported messages.
var importedIDs = uuid.MustParse("6f2b8a53-9a0e-4f0f-8f0e-0d5f7c1e2a44")

// unproven names the headers and properties that consumers believe RabbitMQ or Redrive has set:
// of an import, only the file says so.
func unproven(m *wire.Message) (names []string) {
	if m.UserID != "" {
		names = append(names, fmt.Sprintf("user_id %.100q", m.UserID))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if strings.HasPrefix(name, "x-redrive-") || name == "x-death" || strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-") {
			names = append(names, name)
		}
	}
	return names
}
