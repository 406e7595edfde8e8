package diskstore

import (
	"context"
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

// history keeps past failures in files beside the database, which would write each of them several times and sync them.
// After a commit, one unsynced write appends its past failures: a killed process loses at most those of its last
// commit, a power cut what the machine had not written yet.
//
// A file is a sequence of chunks, one for each commit: length, checksum, past failures. It ends at the first chunk that
// does not fit, and the next is written there. A file's name is how many past failures were written before it. The
// oldest file is removed as soon as the others have enough.
type history struct {
	fs     vfs.FS
	folder string
	log    *slog.Logger

	mu      sync.Mutex
	files   []uint64 // names, oldest first
	hints   map[uint64]*idHint
	out     vfs.File // the newest file, once something was written
	size    int64    // of the newest file
	written uint64   // how many past failures were ever written
	failing bool
}

const historyName = "history"

const (
	// historyFile is the size of a file, except for its last chunk.
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

// idHint rules out files that cannot have an id: searching all files for a message's past would
// read some ten megabytes. A bit stands for all ids with the same end, and most ids end at random,
// so few files without the id are read.
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

// write appends past failures. It returns no error: the messages have ended, and a gap in the
// history is no reason to stop.
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
		h.log.Warn("store: past failures cannot be written, so the history of messages will lack them; waiting "+
			"and parked messages are not affected", "folder", h.folder, "error", err)
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

// close syncs what was written: a clean stop loses nothing.
func (h *history) close() error {
	if h.out == nil {
		return nil
	}
	return errors.Join(h.out.Sync(), h.out.Close(), syncFolder(h.fs, h.folder))
}

func (h *history) names() []uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.files)
}

// namesFor returns the files that may have past failures of id, oldest first.
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

// read returns a file's content, in buf if that has room; nothing when the file was forgotten
// meanwhile.
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

func (s *Store) PastFailures(ctx context.Context, id uuid.UUID) (found []store.PastFailure, err error) {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	// A kept message has failed again since its past failures, so the history has these. Those of any other message may
	// still be on their way, for as long as a commit takes.
	kept, err := s.keeps(id)
	if err != nil {
		return nil, err
	}
	if !kept {
		s.awaitHistory()
	}
	var data []byte
	for _, name := range s.history.namesFor(id) {
		if data, err = s.historyIn(ctx, name, data); err != nil {
			return nil, err
		}
		for c := range chunks(data) {
			ids, _, err := splitPastFailures(c)
			if err == nil && !hasID(ids, id) {
				continue
			}
			all, err := s.pastFailuresIn(name, c)
			if err != nil {
				return nil, err
			}
			for _, p := range all {
				if p.ID == id {
					found = append(found, p)
				}
			}
		}
	}
	return found, nil
}

func (s *Store) keeps(id uuid.UUID) (bool, error) {
	it, err := s.walk(s.db, idKey(id, 0), idsAfter(id))
	if err != nil {
		return false, err
	}
	return it.First(), it.Close()
}

func hasID(ids []byte, id uuid.UUID) bool {
	for ; len(ids) > 0; ids = ids[idSize:] {
		if [idSize]byte(ids) == id {
			return true
		}
	}
	return false
}

func (s *Store) EachPastFailure(ctx context.Context, visit func(store.PastFailure) (bool, error)) error {
	done, err := s.calls.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.awaitHistory()
	for _, name := range slices.Backward(s.history.names()) {
		data, err := s.historyIn(ctx, name, nil)
		if err != nil {
			return err
		}
		for _, c := range slices.Backward(slices.Collect(chunks(data))) {
			all, err := s.pastFailuresIn(name, c)
			if err != nil {
				return err
			}
			for _, p := range slices.Backward(all) {
				if err := ctx.Err(); err != nil {
					return err
				}
				if more, err := visit(p); err != nil || !more {
					return err
				}
			}
		}
	}
	return ctx.Err()
}

func (s *Store) historyIn(ctx context.Context, name uint64, buf []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	data, err := s.history.read(name, buf)
	if err != nil {
		return nil, fmt.Errorf("data folder %s, past failures from %d on: %w", s.path, name, err)
	}
	return data, nil
}

func (s *Store) pastFailuresIn(name uint64, chunk []byte) ([]store.PastFailure, error) {
	all, err := decodePastFailures(chunk)
	if err != nil {
		return nil, fmt.Errorf("data folder %s, past failures from %d on: %w", s.path, name, err)
	}
	return all, nil
}

// pastFailures encodes those of one commit: their number; all ids, so that one can be searched
// for without reading the rest; then each as its difference from the one before, since most
// share queue, reason and policy, and their times are near. A bit for each string says that it
// is the same again.
type pastFailures struct {
	n             int
	ids, rest     []byte
	strings       [4]string // of the last one
	failed, ended int64     // of the last one
}

const idSize = len(uuid.UUID{})

func (e *pastFailures) add(p store.PastFailure) {
	e.n++
	e.ids = append(e.ids, p.ID[:]...)
	b := e.rest
	at := len(b)
	b = append(b, 0, byte(p.Ending))
	for bit, s := range [...]string{p.Queue, p.Reason, p.Error, p.Policy} {
		if s == e.strings[bit] {
			b[at] |= 1 << bit
			continue
		}
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
		e.strings[bit] = s
	}
	failed, ended := p.FailedAt.UnixMicro(), p.Ended.UnixMicro()
	b = binary.AppendVarint(b, int64(p.Failures))
	b = binary.AppendVarint(b, failed-e.failed)
	b = binary.AppendVarint(b, p.Due.UnixMicro()-failed)
	e.rest = binary.AppendVarint(b, ended-e.ended)
	e.failed, e.ended = failed, ended
}

func (e *pastFailures) append(b []byte) []byte {
	return append(append(binary.AppendUvarint(b, uint64(e.n)), e.ids...), e.rest...)
}

var errPastFailures = errors.New("past failures are cut short or damaged")

// splitPastFailures returns the ids in what append wrote, and the rest.
func splitPastFailures(b []byte) (ids, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size)/uint64(idSize) {
		return nil, nil, errPastFailures
	}
	at := size + int(n)*idSize
	return b[size:at], b[at:], nil
}

func decodePastFailures(data []byte) (all []store.PastFailure, err error) {
	ids, b, err := splitPastFailures(data)
	if err != nil {
		return nil, err
	}
	all = make([]store.PastFailure, 0, len(ids)/idSize)
	var p store.PastFailure // each begins as the one before
	var failed, ended int64
	for d := store.Decode(b); ; ids = ids[idSize:] {
		if d.Torn() || len(ids) == 0 && d.More() {
			return nil, errPastFailures
		}
		if len(ids) == 0 {
			return all, nil
		}
		p.ID = uuid.UUID(ids[:idSize])
		same := d.Byte()
		p.Ending = store.Ending(d.Byte())
		for bit, s := range [...]*string{&p.Queue, &p.Reason, &p.Error, &p.Policy} {
			if same&(1<<bit) == 0 {
				*s = d.Text()
			}
		}
		p.Failures = int(d.Varint())
		failed += d.Varint()
		p.FailedAt, p.Due = store.FromMicros(failed), store.FromMicros(failed+d.Varint())
		ended += d.Varint()
		p.Ended = store.FromMicros(ended)
		all = append(all, p)
	}
}
