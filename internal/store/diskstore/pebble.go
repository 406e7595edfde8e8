package diskstore

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Memory is what the stores of one process read and write with, as much for all of them
// as one alone would have. Close it after them.
type Memory struct {
	cache *pebble.Cache
	table uint64
}

// Memory of one store: some 64 MiB in all.
const (
	cacheSize  = 64 << 20
	tableSize  = 24 << 20
	leastTable = 4 << 20
)

// leastReserve has room for a table in memory, and for a compaction while both its input and
// its output are on the disk.
const leastReserve = 32 << 20

// NewMemory is for so many stores.
func NewMemory(stores int) *Memory {
	return &Memory{pebble.NewCache(cacheSize), max(tableSize/uint64(stores), leastTable)}
}

// Close frees it, once no store has it any more.
func (m *Memory) Close() { m.cache.Unref() }

// pebbleOptions bound memory (cache and memtables) and keep the number of files small.
func pebbleOptions(o Options, files *pebbleFS, damaged *damage, lock *pebble.Lock) *pebble.Options {
	p := &pebble.Options{
		FS: files, Lock: lock, Merger: adder,
		FormatMajorVersion: pebble.FormatNewest,
		Cache:              o.Memory.cache,
		// What upkeep writes at a time has to fit into the reserve.
		MemTableSize:                min(o.Memory.table, o.Reserve/8),
		LBaseMaxBytes:               int64(min(o.Reserve/4, 64<<20)),
		ErrorIfNotExists:            o.Existing,
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       64,
		MaxOpenFiles:                500,
		Logger:                      logger{o.Log, new(sync.Map)},
		// Without one, Pebble calls Fatalf for each damaged block that is read.
		EventListener: &pebble.EventListener{DataCorruption: damaged.found},
	}
	// A large body has a file of its own: compactions leave it where it is, where each
	// would have those of all its tables in memory at once.
	p.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{Enabled: true, MinimumSize: largeValue, MaxBlobReferenceDepth: 16, RewriteMinimumAge: time.Minute, TargetGarbageRatio: 0.3}
	}
	for i := range p.Levels {
		// Claims read on from where they were: large blocks are fewer reads.
		p.Levels[i].BlockSize = 32 << 10
	}
	return p
}

// logger passes on what a person should know. Pebble calls Fatalf when its log
// cannot be written: what is in memory and what is on disk may then differ, and
// the only honest thing is to end and start again from the disk. Nothing that
// was acknowledged is lost by it.
type logger struct {
	log  *slog.Logger
	said *sync.Map // when what was: Pebble tries again at once, for as long as it fails
}

func (logger) Infof(string, ...any) {}

func (l logger) Errorf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if last, _ := l.said.Load(text); last != nil && time.Since(last.(time.Time)) < time.Minute {
		return
	}
	l.said.Store(text, time.Now())
	l.log.Warn("store: " + text)
}

func (l logger) Fatalf(format string, args ...any) {
	l.log.Error("store: the disk failed; ending, nothing that was acknowledged is lost: " + fmt.Sprintf(format, args...))
	os.Exit(1)
}
