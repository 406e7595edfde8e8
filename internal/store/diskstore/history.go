package diskstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"slices"
	"strconv"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// history keeps past failures in files of their own beside the database, which would
// write each of them several times and sync them. After a commit what ended in it
// is appended with one write, and that is all: a killed process loses what ended in
// its last commit at most, a power cut what the machine had not written yet.
//
// A file is a row of chunks, one a commit: its length, a checksum, the past failures. The
// row ends at the first that does not fit, and the next is written there. A file's
// name is how many past failures were written before it. The oldest are removed as soon
// as the others hold enough.
type history struct {
	fs     vfs.FS
	folder string
	log    *slog.Logger

	mu      sync.Mutex
	files   []uint64           // the names, oldest first
	hints   map[uint64]*idHint // of each file
	out     vfs.File           // the newest one, once something was written
	size    int64              // of the newest one
	written uint64             // how many past failures were written, ever
	failing bool               // the last write did
}

const historyName = "history" // the folder of what ended

const (
	// historyFile is how long a file gets, but for its last chunk.
	historyFile = 4 << 20
	chunkHead   = 8 // length and checksum
)

var checksums = crc32.MakeTable(crc32.Castagnoli)

func (h *history) path(name uint64) string {
	return h.fs.PathJoin(h.folder, fmt.Sprintf("%016x", name))
}

// load finds the files, and the end of the newest one.
func (h *history) load() error {
	if err := h.fs.MkdirAll(h.folder, 0o700); err != nil {
		return err
	}
	names, err := h.fs.List(h.folder)
	if err != nil {
		return err
	}
	for _, text := range names {
		if name, err := strconv.ParseUint(text, 16, 64); err == nil && len(text) == 16 {
			h.files = append(h.files, name)
		}
	}
	slices.Sort(h.files)
	h.hints = map[uint64]*idHint{}
	var data []byte
	for _, name := range h.files {
		if data, err = h.read(name, data); err != nil {
			return err
		}
		h.written, h.size, h.hints[name] = name, 0, new(idHint)
		for c := range chunks(data) {
			ids, _, _ := splitPastFailures(c)
			h.hints[name].add(ids)
			h.written += uint64(len(ids) / idSize)
			h.size += int64(chunkHead + len(c))
		}
	}
	return nil
}

// idHint says of an id that a file cannot have it: to look for a message's past in all files
// would read some ten megabytes. A bit stands for all ids that end alike, and the ids of most
// messages end at random, so few files are read that do not have the id.
type idHint [1 << 20 / 64]uint64

func hintBit(id []byte) (word int, bit uint64) {
	n := binary.BigEndian.Uint32(id[idSize-4:])
	return int(n >> 6 & (1<<14 - 1)), 1 << (n & 63)
}

func (h *idHint) add(ids []byte) {
	for ; len(ids) > 0; ids = ids[idSize:] {
		word, bit := hintBit(ids[:idSize])
		h[word] |= bit
	}
}

func (h *idHint) mayHave(id []byte) bool {
	word, bit := hintBit(id)
	return h[word]&bit != 0
}

// write keeps past failures. It fails nothing: what ended has ended, and history, which
// has a hole then, is no reason to stop.
func (h *history) write(p *pastFailures) {
	if p.n == 0 {
		return
	}
	b := p.append(make([]byte, chunkHead, chunkHead+binary.MaxVarintLen32+len(p.ids)+len(p.rest)))
	binary.BigEndian.PutUint32(b, uint32(len(b)-chunkHead))
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[chunkHead:], checksums))
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.append(b)
	if err == nil {
		h.written += uint64(p.n)
		h.size += int64(len(b))
		h.hints[h.files[len(h.files)-1]].add(p.ids)
	} else if !h.failing {
		h.log.Warn("store: what was retried cannot be remembered, so the history of messages will lack it; waiting and parked messages are not concerned", "folder", h.folder, "error", err)
	}
	h.failing = err != nil
}

func (h *history) append(chunk []byte) error {
	if len(h.files) == 0 || h.size >= historyFile {
		if out := h.out; out != nil {
			h.out = nil
			if err := out.Close(); err != nil {
				return err
			}
		}
		if len(h.files) == 0 || h.files[len(h.files)-1] < h.written {
			h.files = append(h.files, h.written)
		}
		h.hints[h.files[len(h.files)-1]] = new(idHint)
		h.size = 0
		if err := h.forget(); err != nil {
			return err
		}
	}
	if h.out == nil {
		f, err := h.fs.OpenReadWrite(h.path(h.files[len(h.files)-1]), vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		h.out = f
	}
	_, err := h.out.WriteAt(chunk, h.size)
	return err
}

// forget removes files while the ones after them hold enough.
func (h *history) forget() error {
	for len(h.files) > 1 && h.written-h.files[1] >= store.PastFailuresKept {
		if err := h.fs.Remove(h.path(h.files[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		delete(h.hints, h.files[0])
		h.files = h.files[1:]
	}
	return nil
}

// close makes what was written durable: an orderly end loses nothing.
func (h *history) close() error {
	if h.out == nil {
		return nil
	}
	return errors.Join(h.out.Sync(), h.out.Close(), syncFolder(h.fs, h.folder))
}

// names are those of all files, oldest first.
func (h *history) names() []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.files)
}

// namesFor are of the files that may have past failures of id, oldest first.
func (h *history) namesFor(id uuid.UUID) (names []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.files {
		if h.hints[name].mayHave(id[:]) {
			names = append(names, name)
		}
	}
	return names
}

// read is what is in a file, in buf when that has room for it; nothing when the file
// was forgotten meanwhile.
func (h *history) read(name uint64, buf []byte) ([]byte, error) {
	f, err := h.fs.Open(h.path(name), vfs.SequentialReadsOption)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	buf = slices.Grow(buf[:0], int(info.Size()))[:info.Size()]
	n, err := io.ReadFull(f, buf)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	return buf[:n], err
}

// chunks are the whole ones of a file.
func chunks(b []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(b) > chunkHead {
			size, sum := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
			if b = b[chunkHead:]; size == 0 || uint64(size) > uint64(len(b)) ||
				crc32.Checksum(b[:size], checksums) != sum || !yield(b[:size]) {
				return
			}
			b = b[size:]
		}
	}
}
