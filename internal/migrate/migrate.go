// Package migrate moves all that one store keeps to another, which may be of another
// kind: records with their keys, the side table, receipts, ledger, groups and
// history. It goes on where it was when it is started again, whatever ended it, and
// nothing serves from either store meanwhile: each has an entry that says so, and
// that services refuse to start on.
package migrate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

// EntryName is the entry of the side table that says that a store takes part in a
// migration, or was moved by one.
const EntryName = "migration"

var (
	// ErrMoved: a service must not use this store. The message says where its
	// messages are.
	ErrMoved = errors.New("the store takes part in a migration")
	// ErrRefused: these two stores cannot be migrated as they are. Nothing was
	// changed.
	ErrRefused = errors.New("cannot be migrated")
	// ErrDiffers: the target does not hold what the source does. Neither can be used
	// by a service until the same command has ended well, or Abort was called.
	ErrDiffers = errors.New("the target differs from the source")
	// ErrDamaged: the source has messages that cannot be read, so not all can be moved.
	ErrDamaged = errors.New("not all messages can be read")
)

// mark is an entry's value.
type mark struct {
	ID       uuid.UUID `json:"id"`
	From, To string
	Began    time.Time
	Source   bool   // of the source's entry
	Done     bool   // … all is in the target
	After    string `json:",omitempty"` // of the target's: up to this record all are copied
	Taken    int64  `json:",omitempty"`
}

// Refuse says ErrMoved of a store that a service must not use.
func Refuse(ctx context.Context, s store.Store) error {
	m, err := readMark(ctx, s)
	switch {
	case err != nil || m == nil:
		return err
	case m.Done:
		return hint.Errorf("use that", "%w: what it kept was moved to %s on %s", ErrMoved, m.To, m.Began.Format(time.DateOnly))
	}
	return hint.Errorf("run the same `redrive migrate` again, or end it with --abort", "%w from %s to %s, begun %s, which has not ended", ErrMoved, m.From, m.To, m.Began.Format(time.DateTime))
}

func readMark(ctx context.Context, s store.Store) (*mark, error) {
	v, err := s.Entry(ctx, EntryName)
	if err != nil || v == nil {
		return nil, err
	}
	m := new(mark)
	if err := json.Unmarshal(v, m); err != nil {
		return nil, fmt.Errorf("the entry %q is damaged: %w", EntryName, err)
	}
	return m, nil
}

func (m *mark) write(ctx context.Context, s store.Store) error {
	v, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return s.PutEntries(ctx, []store.Entry{{Name: EntryName, Value: v}})
}

func unmark(ctx context.Context, s store.Store) error {
	return s.PutEntries(ctx, []store.Entry{{Name: EntryName}})
}

// Migration copies one store to another. Nothing else may use either while it runs.
type Migration struct {
	From     store.Store
	To       store.CopyTarget
	FromName string // as people know them, without secrets
	ToName   string
	// Report, when not nil, receives the progress after each batch.
	Report func(Progress)
}

// Progress is how far a migration is.
type Progress struct {
	Step string // in words
	Done int64  // records, of
	All  int64
}

const (
	batchCount = 500
	batchBytes = 16 << 20
)

// Plan is what there is to be copied.
type Plan struct {
	Queues []store.QueueCount
	Taken  int64 // records that an earlier run copied
	All    int64
}

// Check refuses what cannot be done, and changes nothing.
func (m *Migration) Check(ctx context.Context) (*Plan, error) {
	_, to, err := m.marks(ctx)
	if err != nil {
		return nil, err
	}
	p := &Plan{}
	if p.Queues, err = m.From.Counts(ctx); err != nil {
		return nil, err
	}
	for _, q := range p.Queues {
		p.All += q.Waiting + q.Parked + q.Discarded
	}
	for _, at := range []struct {
		name string
		s    store.Store
	}{{m.FromName, m.From}, {m.ToName, m.To}} {
		if err := checkUnused(ctx, at.name, at.s); err != nil {
			return nil, err
		}
	}
	if to != nil {
		p.Taken = to.Taken
		return p, nil
	}
	if err := m.checkOwner(ctx); err != nil {
		return nil, err
	}
	empty, err := isEmpty(ctx, m.To)
	if err == nil && !empty {
		err = fmt.Errorf("%w: %s keeps messages or settings already: a target must be new", ErrRefused, m.ToName)
	}
	return p, err
}

// marks reads the marks of both stores, which must be of this migration.
func (m *Migration) marks(ctx context.Context) (from, to *mark, err error) {
	if from, err = readMark(ctx, m.From); err != nil {
		return nil, nil, err
	}
	if to, err = readMark(ctx, m.To); err != nil {
		return nil, nil, err
	}
	other := func(at string, k *mark) error {
		return fmt.Errorf("%w: %s takes part in another migration, from %s to %s", ErrRefused, at, k.From, k.To)
	}
	switch {
	case from == nil && to == nil:
	case from != nil && (!from.Source || from.To != m.ToName):
		return nil, nil, other(m.FromName, from)
	case to != nil && (to.Source || to.From != m.FromName || from != nil && to.ID != from.ID):
		return nil, nil, other(m.ToName, to)
	case to == nil && from.Done:
		return nil, nil, fmt.Errorf("%w: it is done: %s was moved to %s", ErrRefused, m.FromName, m.ToName)
	}
	return from, to, nil
}

// checkUnused refuses a store that services use now. One on disk belongs to one process.
func checkUnused(ctx context.Context, name string, s store.Store) error {
	shared, ok := s.(store.Shared)
	if !ok {
		return nil
	}
	const me = "migrate"
	alive, err := shared.Beat(ctx, me, nil, time.Minute)
	if err != nil {
		return err
	}
	if err := shared.Leave(ctx, me); err != nil {
		return err
	}
	for _, r := range alive {
		if r.ID != me {
			return hint.Errorf("stop all services that do", "%w: the service %s uses %s", ErrRefused, r.ID, name)
		}
	}
	return nil
}

// checkOwner refuses a target of another virtual host. A target that a service of the same
// virtual host has opened is as good as new. Where the source has no owner, the target's stays.
func (m *Migration) checkOwner(ctx context.Context) error {
	from, err := m.From.Entry(ctx, store.OwnerEntry)
	if err != nil {
		return err
	}
	to, err := m.To.Entry(ctx, store.OwnerEntry)
	if err == nil && from != nil && to != nil && !bytes.Equal(from, to) {
		err = fmt.Errorf("%w: %s %w %q, and %s those of %q", ErrRefused, m.FromName, store.ErrOwner, from, m.ToName, to)
	}
	return err
}

// isEmpty tells whether a store has nothing but its owner.
func isEmpty(ctx context.Context, s store.Store) (bool, error) {
	lines, err := s.Ledger(ctx)
	if err != nil || len(lines) > 0 {
		return false, err
	}
	empty := true
	err = s.Entries(ctx, "", "", func(e store.Entry) (bool, error) {
		empty = e.Name == store.OwnerEntry || e.Name == store.ServersEntry
		return empty, nil
	})
	return empty, err
}

// Run does all that is left to do, and verifies it: every record, every entry and
// the ledger are read from both once more.
func (m *Migration) Run(ctx context.Context) error {
	p, err := m.Check(ctx)
	if err != nil {
		return err
	}
	from, to, err := m.marks(ctx)
	if err != nil {
		return err
	}
	// The target first: a source that is marked has a target that is.
	if to == nil {
		to = &mark{ID: uuid.New(), From: m.FromName, To: m.ToName, Began: time.Now().UTC()}
		if from != nil { // it was aborted, or the target is another one
			to.ID, to.Began = from.ID, from.Began
		}
		if err := to.write(ctx, m.To); err != nil {
			return err
		}
	}
	if from == nil {
		from = &mark{ID: to.ID, From: to.From, To: to.To, Began: to.Began, Source: true}
		if err := from.write(ctx, m.From); err != nil {
			return err
		}
	}
	if err := m.receipts(ctx); err != nil {
		return err
	}
	if err := m.entries(ctx); err != nil {
		return err
	}
	if err := m.records(ctx, p, to); err != nil {
		return err
	}
	metadata, err := store.MetadataOf(ctx, m.From)
	if err != nil {
		return err
	}
	if err := m.To.SetMetadata(ctx, metadata); err != nil {
		return err
	}
	if err := m.verify(ctx, p.All); err != nil {
		return err
	}
	from.Done = true
	if err := from.write(ctx, m.From); err != nil {
		return err
	}
	return unmark(ctx, m.To)
}

// Abort lets services use the source again, unless the migration is done. What was copied
// stays in the target, which must be emptied before it is used.
func (m *Migration) Abort(ctx context.Context) error {
	from, _, err := m.marks(ctx)
	switch {
	case err != nil:
		return err
	case from == nil:
		return fmt.Errorf("%w: %s takes part in none", ErrRefused, m.FromName)
	case from.Done:
		return hint.Errorf("run the command without --abort", "%w: it is done", ErrRefused)
	}
	return unmark(ctx, m.From)
}

// receipts copies receipts, unless an earlier run did: they would be stored twice.
func (m *Migration) receipts(ctx context.Context) error {
	receipts, err := m.From.Receipts(ctx)
	if err != nil {
		return err
	}
	taken, err := m.To.Receipts(ctx)
	if err != nil || slices.Equal(taken, receipts) {
		return err
	}
	return m.To.Remember(ctx, receipts)
}

func (m *Migration) entries(ctx context.Context) error {
	var batch []store.Entry
	size := 0
	put := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := m.To.PutEntries(ctx, batch)
		batch, size = nil, 0
		return err
	}
	err := m.From.Entries(ctx, "", "", func(e store.Entry) (bool, error) {
		if e.Name == EntryName {
			return true, nil
		}
		batch = append(batch, e)
		if size += len(e.Value); len(batch) < batchCount && size < batchBytes {
			return true, nil
		}
		return true, put()
	})
	if err != nil {
		return err
	}
	return put()
}

// records copies records in the order of a scan; to says where an earlier run ended.
func (m *Migration) records(ctx context.Context, p *Plan, to *mark) error {
	var batch []store.Listed
	size := 0
	take := func() error {
		if len(batch) == 0 {
			return nil
		}
		if err := m.To.AddListed(ctx, batch); err != nil {
			return err
		}
		to.After, to.Taken = batch[len(batch)-1].Cursor, to.Taken+int64(len(batch))
		batch, size = batch[:0], 0
		m.report("moving", to.Taken, p.All)
		return to.write(ctx, m.To)
	}
	err := m.From.Scan(ctx, store.Range{After: to.After, Body: true}, func(l store.Listed) (bool, error) {
		batch = append(batch, l)
		if size += l.BodySize; len(batch) < batchCount && size < batchBytes {
			return true, nil
		}
		return true, take()
	})
	if err != nil {
		return err
	}
	return take()
}

// checkDamage returns ErrDamaged when a scan of the source has met records that cannot be read,
// which it leaves out: people would give up the source, and those with it.
func (m *Migration) checkDamage() error {
	d, ok := m.From.(store.Damageable)
	if !ok {
		return nil
	}
	damage := d.Damage()
	if len(damage) == 0 {
		return nil
	}
	first, more := slices.Min(slices.Collect(maps.Keys(damage))), ""
	if n := len(damage) - 1; n > 0 {
		more = fmt.Sprintf(", and at %d more", n)
	}
	return hint.Errorf("run the same command with --abort, and services can use the source again. Of a data folder, `redrive store salvage` saves what can be read to a new one, which can be migrated",
		"%w: %s is damaged at %s (%s)%s", ErrDamaged, m.FromName, first, damage[first], more)
}

func (m *Migration) report(doing string, done, all int64) {
	if m.Report != nil {
		m.Report(Progress{doing, done, all})
	}
}
