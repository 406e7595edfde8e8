package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options of a log; the zero value is ready for use.
type Options struct {
	// Rotate is the size, in bytes, from which on the next line begins a new file;
	// 0 is 32 MiB. Old files are never deleted: that is a person's to decide.
	Rotate int64
	// Log receives where the chain ends, now and then, and what needs a person; nil
	// is slog.Default.
	Log *slog.Logger
}

// Log appends to the audit log of one service. All methods may be called at once.
type Log struct {
	folder string
	rotate int64
	log    *slog.Logger
	open   func(name string) (file, error)
	lock   io.Closer

	// writing is held by the one that writes; it guards what follows.
	writing sync.Mutex
	file    file
	head    head
	end     int64    // of what is written and synced
	dirty   bool     // there may be more in the file: a write failed
	late    []*Entry // outcomes that could not be written yet: the next write has them first
	closed  bool

	mu    sync.Mutex
	next  *batch   // gathers while another is written
	files []string // for readers: paths, oldest first,
	until int64    // … and where the last one ends
}

// batch is what is written and synced together.
type batch struct {
	lines []*Entry
	ready chan struct{} // closed when it is, or cannot be
	err   error
}

// file is what a log needs of an *os.File.
type file interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

// ErrClosed: the log was closed.
var ErrClosed = errors.New("the audit log is closed")

// Open opens the log in a folder, or makes it. What a crash has left of a line stays where it is,
// and a line of repair after it describes it.
func Open(folder string, o Options) (*Log, error) { return open(folder, o, openFile) }

func openFile(name string) (file, error) { return os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600) }

func open(folder string, o Options, openFile func(string) (file, error)) (*Log, error) {
	l := &Log{folder: folder, rotate: cmp.Or(o.Rotate, 32<<20), log: cmp.Or(o.Log, slog.Default()), open: openFile}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of the audit log: %w: audit.folder must be a folder on a local disk that this user may write", err)
	}
	var err error
	if l.lock, err = vfs.Default.Lock(filepath.Join(folder, "LOCK")); err != nil {
		return nil, fmt.Errorf("the audit log %s cannot be locked; another service may be writing it: %w", folder, err)
	}
	if err := l.load(); err != nil {
		if l.file != nil {
			err = errors.Join(err, l.file.Close())
		}
		return nil, errors.Join(fmt.Errorf("the audit log %s: %w", folder, err), l.lock.Close())
	}
	l.log.Info("the audit log is open", "folder", folder, "mark", l.head.mark())
	return l, nil
}

// Begin writes that something is about to be done, and returns when that is durable; on an error
// it must not be done. done writes the outcome, once; if that cannot be written now, it is written
// before the next line that can be.
func (l *Log) Begin(e Entry) (done func(outcome string, count int64), err error) {
	e.At, e.Of, e.Outcome = time.Now(), 0, "begun"
	if err := l.add(&e); err != nil {
		return nil, err
	}
	var once sync.Once
	return func(outcome string, count int64) {
		once.Do(func() {
			e := e
			e.At, e.Of, e.Outcome, e.Count, e.Why = time.Now(), e.N, outcome, count, ""
			if len(e.On) > 1024 {
				e.On = "" // the line with number Of has it
			}
			if err := l.add(&e); err != nil {
				l.writing.Lock()
				l.late = append(l.late, &e)
				l.writing.Unlock()
				l.log.Error("what came of an action is not in the audit log yet", "did", e.Did, "of", e.Of, "outcome", outcome, "error", err)
			}
		})
	}, nil
}

// add writes a line, together with those that others add meanwhile, and gives the
// entry its number.
func (l *Log) add(e *Entry) error {
	l.mu.Lock()
	b := l.next
	first := b == nil
	if first {
		b = &batch{ready: make(chan struct{})}
		l.next = b
	}
	b.lines = append(b.lines, e)
	l.mu.Unlock()
	if first {
		l.writing.Lock()
		l.mu.Lock()
		l.next = nil
		l.mu.Unlock()
		b.err = l.write(b.lines)
		l.writing.Unlock()
		close(b.ready)
	}
	<-b.ready
	return b.err
}

// write makes lines durable, all or none.
func (l *Log) write(entries []*Entry) error {
	if l.closed {
		return ErrClosed
	}
	if err := l.clean(); err != nil {
		return err
	}
	if l.end >= l.rotate {
		if err := l.begin(); err != nil {
			return err
		}
		l.log.Info("the audit log goes on in another file", "file", l.files[len(l.files)-1], "mark", l.head.mark())
	}
	entries = append(l.late, entries...)
	var lines []byte
	h, numbers := l.head, make([]int64, len(entries))
	for i, e := range entries {
		line, next, err := h.next(*e)
		if err != nil {
			return err
		}
		h, numbers[i] = next, next.n
		lines = append(lines, line...)
	}
	if err := l.append(lines, h); err != nil {
		return err
	}
	for i, e := range entries {
		e.N = numbers[i]
	}
	l.late = nil
	return nil
}

// append writes at the end of the file, and moves the end when that is durable.
func (l *Log) append(lines []byte, h head) error {
	l.dirty = true
	_, err := l.file.WriteAt(lines, l.end)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		// No caller has an answer that it is durable.
		return errors.Join(fmt.Errorf("writing the audit log: %w", err), l.clean())
	}
	l.dirty, l.head, l.end = false, h, l.end+int64(len(lines))
	l.mu.Lock()
	l.until = l.end
	l.mu.Unlock()
	return nil
}

// clean removes what a failed write left.
func (l *Log) clean() error {
	if !l.dirty {
		return nil
	}
	err := l.file.Truncate(l.end)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("repairing the audit log after a failed write: %w", err)
	}
	l.dirty = false
	return nil
}

// mark proves later, when it is kept elsewhere, that nothing up to there was cut off or rewritten.
func (h head) mark() string { return fmt.Sprintf("%d:%s", h.n, h.hash) }

// Close waits for what is being written.
func (l *Log) Close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.closed {
		return nil
	}
	var err error
	if len(l.late) > 0 {
		err = l.write(nil)
	}
	l.closed = true
	l.log.Info("the audit log is closed", "mark", l.head.mark())
	return errors.Join(err, l.file.Close(), l.lock.Close())
}
