package diskstore

import (
	"context"
	"encoding/binary"
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
		err = target.startAfter(ctx, s.newest)
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
	if err := s.to.addListed(s.ctx, s.batch); err != nil {
		return err
	}
	s.Messages += int64(len(s.batch))
	s.batch, s.size = s.batch[:0], 0
	return nil
}

// addListed stores records under the keys that they have, but for those that are stored already. The
// ledger counts each in In and in its state.
func (s *Store) addListed(ctx context.Context, records []store.Listed) error {
	done, err := s.beginChange(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.adding.RLock()
	defer s.adding.RUnlock()
	size := 0
	for _, l := range records {
		size += sizeOf([]*store.Record{l.Record})
	}
	if err := s.checkSpace(size, s.reserve); err != nil {
		return err
	}
	c := s.newWriteBatch(size)
	defer c.close()
	var keys [][]byte
	for _, l := range records {
		seq, err := l.Number()
		if err != nil {
			return err
		}
		there, err := s.get(idKey(l.Record.ID, seq))
		if err != nil {
			return err
		}
		if there != nil {
			continue
		}
		key := keyOf(l.Record, seq)
		if err := c.put(key, l.Record); err != nil {
			return err
		}
		c.count(store.In, l.Record.Queue, 1)
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil
	}
	if err := c.batch.Merge(keySeq, binary.AppendVarint(nil, int64(len(keys))), nil); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	s.added(keys)
	return nil
}

// startAfter makes the next records get numbers above newest, so that none is used twice, and the
// ledger begin with what is stored.
func (s *Store) startAfter(ctx context.Context, newest uint64) error {
	done, err := s.beginChange(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.adding.Lock()
	defer s.adding.Unlock()
	c := s.newWriteBatch(0)
	defer c.close()
	records := int64(0)
	s.mu.Lock()
	for _, q := range s.queues {
		records += q.kept.Records()
	}
	s.mu.Unlock()
	seq, err := s.number(keySeq)
	if err != nil {
		return err
	}
	after := max(seq, int64(newest))
	if err := c.batch.Merge(keySeq, binary.AppendVarint(nil, after-seq), nil); err != nil {
		return err
	}
	// In the same batch: see loadLedger.
	if err := c.batch.Set(keyOpened, binary.AppendVarint(nil, after-records), nil); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	s.seq.Store(max(s.seq.Load(), uint64(after)))
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
