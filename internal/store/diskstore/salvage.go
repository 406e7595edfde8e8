package diskstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/store"
)

// Salvaged is what Salvage has saved.
type Salvaged struct {
	// Messages were saved. Loose ones among them were in files that the database no longer
	// refers to: a part of them may have been retried or discarded since.
	Messages, Loose int64
	Entries         int
	// Unread is what could not be read, and why.
	Unread map[string]string
}

// Salvage saves all that can be read of the store in folder from to a new one in folder
// to, and changes nothing that is needed in the first. The new one's ledger begins with
// what was saved.
func Salvage(ctx context.Context, from, to string, o Options) (done Salvaged, err error) {
	files := o.FS
	if files == nil {
		files = private{vfs.Default}
	}
	if names, err := files.List(to); err == nil && len(names) > 0 {
		return done, fmt.Errorf("folder %s: it is not empty: a store is salvaged to a new folder", to)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return done, err
	}
	before, err := files.List(from)
	if err != nil {
		return done, err
	}
	o.Existing, o.salvage = true, true
	source, err := Open(from, o)
	if errors.Is(err, store.ErrLocked) || errors.Is(err, ErrNone) || errors.Is(err, store.ErrFormat) {
		return done, err
	}
	done.Unread = map[string]string{}
	if err != nil { // what files there are is all there is to go by
		done.Unread["database"] = err.Error()
	}
	o.Existing, o.salvage = false, false
	target, err := Open(to, o)
	if err != nil {
		if source != nil {
			err = errors.Join(err, source.Close())
		}
		return done, err
	}
	s := &salvage{Salvaged: &done, ctx: ctx, to: target}
	loose := loose{fs: newPebbleFS(files), folder: from, blobs: filesOf(before, ".blob"), unread: done.Unread, logs: source == nil}
	loose.bad = &loose.fs.bad
	if source != nil {
		err = s.copy(source)
		loose.tables = source.unreferenced(before)
	} else {
		loose.tables = tablesOf(before)
	}
	if err == nil {
		err = s.loose(&loose)
	}
	if err == nil {
		err = target.SetMetadata(ctx, store.Metadata{Newest: s.newest})
	}
	if source != nil {
		for place, how := range source.Damage() {
			done.Unread[place] = how
		}
		err = errors.Join(err, source.Close())
	}
	return done, errors.Join(err, target.Close())
}

// salvage is one under way.
type salvage struct {
	*Salvaged
	ctx    context.Context
	to     *Store
	newest uint64
	batch  []store.Listed
	size   int
}

const (
	salvageTogether = 500
	salvageBytes    = 16 << 20
)

// copy saves what the database has.
func (s *salvage) copy(from *Store) error {
	err := from.Scan(s.ctx, store.Range{Body: true}, func(l store.Listed) (bool, error) { return true, s.add(l) })
	if err == nil {
		err = s.flush()
	}
	if err != nil {
		return err
	}
	err = from.Entries(s.ctx, "", "", func(e store.Entry) (bool, error) {
		s.Entries++
		return true, s.to.PutEntries(s.ctx, []store.Entry{e})
	})
	if err != nil {
		return err
	}
	receipts, err := from.Receipts(s.ctx)
	if err != nil {
		s.Unread["receipts"] = err.Error() // a duplicate could have another id; nothing else
		return nil
	}
	return s.to.Remember(s.ctx, receipts)
}

// add keeps a message, once there are enough for a batch.
func (s *salvage) add(l store.Listed) error {
	if _, seq, ok := l.Key.Parts(); ok {
		s.newest = max(s.newest, seq)
	}
	s.batch = append(s.batch, l)
	if s.size += len(l.Record.Message.Body); len(s.batch) < salvageTogether && s.size < salvageBytes {
		return nil
	}
	return s.flush()
}

func (s *salvage) flush() error {
	if err := s.to.AddListed(s.ctx, s.batch); err != nil {
		return err
	}
	s.Messages += int64(len(s.batch))
	s.batch, s.size = s.batch[:0], 0
	return nil
}

// loose saves the messages that are in files the database does not refer to.
func (s *salvage) loose(from *loose) error {
	return from.records(func(key, value []byte) error {
		r, _, err := store.DecodeRecord(value, true)
		if err != nil {
			s.Unread[fmt.Sprintf("message %x", key)] = err.Error()
			return nil
		}
		there, err := s.to.get(idKey(r.ID, seqOf(key)))
		if err != nil || there != nil {
			return err
		}
		s.Loose++
		if err := s.add(store.Listed{Key: store.MakeKey(r.ID, seqOf(key)), Record: r}); err != nil {
			return err
		}
		return s.flush()
	})
}

// unreferenced are the tables among the names of a folder that the database does not
// know, where commits are missing: the end of a damaged MANIFEST. Elsewhere they are what
// compactions left behind.
func (s *Store) unreferenced(names []string) (loose []string) {
	was, _, err := s.witness.read()
	there, err2 := s.there()
	levels, err3 := s.db.SSTables()
	if errors.Join(err, err2, err3) != nil || was == nil || there.commits >= was.commits {
		return nil
	}
	live := map[string]bool{}
	for _, level := range levels {
		for _, t := range level {
			live[fmt.Sprintf("%06d.sst", uint64(t.BackingSSTNum))] = true
		}
	}
	return slices.DeleteFunc(tablesOf(names), func(name string) bool { return live[name] })
}
