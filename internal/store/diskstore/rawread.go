package diskstore

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/wal"
	"github.com/google/uuid"
)

// loose reads records out of files, without the database that would say which of them
// still count: of each key the newest write does.
type loose struct {
	fs     *pebbleFS
	bad    *badBlocks
	folder string
	tables []string
	blobs  []string // with the large records of tables
	logs   bool     // the logs as well
	unread map[string]string
}

// write is one of a key, as a file has it.
type write struct {
	seq uint64
	set bool
}

func tablesOf(names []string) []string { return filesOf(names, ".sst") }

func filesOf(names []string, suffix string) (files []string) {
	for _, name := range names {
		if strings.HasSuffix(name, suffix) {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	return files
}

// records visits the records that no newer write has taken away. It goes through all files
// twice, so that their keys are in memory and the records are not.
func (l *loose) records(visit func(key, value []byte) error) error {
	newest := map[string]write{}
	ids := map[uint64]uuid.UUID{} // by what keys end with
	err := l.each(func(key []byte, w write, _ []byte) error {
		if key[0] == prefixID {
			ids[seqOf(key)] = uuid.UUID(key[1:])
			return nil
		}
		if was, ok := newest[string(key)]; !ok || w.seq > was.seq {
			newest[string(key)] = w
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.each(func(key []byte, w write, value []byte) error {
		if key[0] == prefixID || newest[string(key)] != w || !w.set {
			return nil
		}
		delete(newest, string(key)) // the same write may be in two files
		if at, ok := blobPlaceOf(value); ok {
			var err error
			if value, err = l.largeRecord(key, at, ids[seqOf(key)]); err != nil {
				l.unread[fmt.Sprintf("message %x", key)] = err.Error()
				return nil
			}
		}
		return visit(key, value)
	})
}

// each visits all writes to records, and to the index of their ids.
func (l *loose) each(visit func(key []byte, w write, value []byte) error) error {
	sift := func(kind pebble.InternalKeyKind, key []byte, seq uint64, value []byte) error {
		if id := len(key) == len(idKey(uuid.UUID{}, 0)) && key[0] == prefixID; !id && !isRecord(key) {
			return nil
		}
		switch kind {
		case pebble.InternalKeyKindSet, pebble.InternalKeyKindSetWithDelete:
			return visit(key, write{seq, true}, value)
		case pebble.InternalKeyKindDelete, pebble.InternalKeyKindSingleDelete, pebble.InternalKeyKindDeleteSized:
			return visit(key, write{seq, false}, nil)
		}
		return nil
	}
	for _, name := range l.tables {
		path := l.fs.PathJoin(l.folder, name)
		stopped, err := l.table(path, sift)
		if err != nil {
			return err
		}
		if stopped != nil {
			l.unread[path] = stopped.Error()
		}
	}
	if !l.logs {
		return nil
	}
	logs, err := wal.Scan(wal.Dir{FS: l.fs, Dirname: l.folder})
	if err != nil {
		return err
	}
	for _, log := range logs {
		if err := l.log(log, sift); err != nil {
			return err
		}
	}
	return nil
}

// visitor receives one write.
type visitor func(kind pebble.InternalKeyKind, key []byte, seq uint64, value []byte) error

// flippedBack is said of a table of which nothing was lost.
const flippedBack = "a flipped bit was turned back"

// table reads a table from its begin and, from damage on, from its end. stopped is why
// not all of it was read.
func (l *loose) table(path string, visit visitor) (stopped, err error) {
	defer recovered(&stopped)
	f, err := l.fs.Open(path)
	if err != nil {
		return err, nil
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return err, f.Close()
	}
	r, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{Merger: adder})
	if err != nil {
		if closed := readable.Close(); closed == nil && l.bad.repairedFooter(l.fs.FS, path) {
			l.unread[path] = flippedBack
			return l.table(path, visit)
		}
		return err, nil
	}
	defer r.Close()
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.DebugHandlesBlobContext)
	if err != nil {
		return err, nil
	}
	defer it.Close()
	last := ""
	for kv := it.First(); kv != nil; kv = it.Next() {
		value, _, err := kv.Value(nil)
		if err == nil {
			err = visit(kv.Kind(), kv.K.UserKey, uint64(kv.SeqNum()), value)
		}
		if err != nil {
			return nil, err
		}
		last = string(kv.K.UserKey)
	}
	if stopped = it.Error(); stopped == nil {
		return nil, nil
	}
	if _, repaired, _ := l.bad.found(l.fs.FS, path, stopped); repaired {
		l.unread[path] = flippedBack
		return l.table(path, visit)
	}
	for kv := it.Last(); kv != nil && string(kv.K.UserKey) > last; kv = it.Prev() {
		value, _, err := kv.Value(nil)
		if err == nil {
			err = visit(kv.Kind(), kv.K.UserKey, uint64(kv.SeqNum()), value)
		}
		if err != nil {
			return nil, err
		}
	}
	return stopped, nil
}

// log reads a log up to where it ends, or is damaged.
func (l *loose) log(log wal.LogicalLog, visit visitor) error {
	r := log.OpenForRead()
	defer r.Close()
	for {
		record, at, err := r.NextRecord()
		var b []byte
		if err == nil {
			b, err = io.ReadAll(record)
		}
		if err != nil {
			if pebble.IsCorruptionError(err) {
				l.unread[at.PhysicalFile] = err.Error()
			}
			return nil
		}
		h, ok := batchrepr.ReadHeader(b)
		if !ok {
			continue
		}
		writes := batchrepr.Read(b)
		for seq := uint64(h.SeqNum); ; seq++ {
			kind, key, value, ok, err := writes.Next()
			if err != nil || !ok {
				break
			}
			if err := visit(kind, key, seq, value); err != nil {
				return err
			}
		}
	}
}
