package diskstore

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/hint"
)

// pebbleFS is the file system that Pebble uses. It yields to other work while Pebble makes tables,
// which takes seconds. It removes no file before keepNoMore: with a damaged MANIFEST
// Pebble takes files that it has lost track of for obsolete.
type pebbleFS struct {
	vfs.FS
	making background.Work
	bad    badBlocks
	lost   *lostBlocks // nil: none
	room   room

	mu   sync.Mutex
	kept []string // to be removed by keepNoMore
	sure bool     // keepNoMore was called
}

func newPebbleFS(fs vfs.FS) *pebbleFS {
	return &pebbleFS{FS: fs, making: background.Work{For: time.Millisecond, Rest: time.Millisecond},
		bad: badBlocks{by: map[block]*badBlock{}}}
}

func (t *pebbleFS) Remove(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.sure {
		t.kept = append(t.kept, name)
		return nil
	}
	return t.remove(name)
}

func (t *pebbleFS) remove(name string) error {
	if t.lost != nil && t.lost.of(t.FS.PathBase(name)) {
		return t.lost.setAside(name)
	}
	return t.FS.Remove(name)
}

// keepNoMore removes what Pebble wanted removed so far, and ends the delay. Pebble tries again
// at the next start what cannot be removed.
func (t *pebbleFS) keepNoMore() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range t.kept {
		_ = t.remove(name)
	}
	t.kept, t.sure = nil, true
}

func (t *pebbleFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	var f vfs.File
	err := t.untilRoom(name, func() (err error) {
		f, err = t.FS.Create(name, c)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case strings.HasSuffix(name, ".sst"):
		return table{File: f, making: &t.making}, nil
	case strings.HasSuffix(name, ".log"):
		return &logFile{File: vitalFile{f, name, t}}, nil
	}
	return vitalFile{f, name, t}, nil
}

// ReuseForWrite implements vfs.FS: Pebble reuses an obsolete log as the next one.
func (t *pebbleFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	var f vfs.File
	err := t.untilRoom(name, func() (err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		f, err = t.FS.ReuseForWrite(old, name, c)
		return err
	})
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &logFile{File: vitalFile{f, name, t}, room: info.Size()}, nil
}

// emptyLogs truncates the logs in folder that Pebble keeps for reuse. live returns how many
// logs are in use: the newest ones.
func (t *pebbleFS) emptyLogs(folder string, live func() int) {
	names, err := t.List(folder)
	if err != nil {
		return
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".log") })
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	// Ask after listing: a log that has become live since is not in the list by its new name.
	old := names[:max(0, len(names)-live())]
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range old {
		path := t.PathJoin(folder, name)
		if info, err := t.Stat(path); err != nil || info.Size() == 0 {
			continue // reused by now, or empty
		}
		if f, err := t.FS.Create(path, vfs.WriteCategoryUnspecified); err == nil {
			_ = f.Close()
		}
	}
}

// logFile preallocates in steps as it grows. Pebble would preallocate the size of a memtable for
// each log: after a few restarts a small disk was full of nothing. Syncs are faster in
// preallocated room.
type logFile struct {
	vfs.File
	written, room int64
}

const logStep = 4 << 20

func (l *logFile) Preallocate(int64, int64) error { return nil }

func (l *logFile) Write(p []byte) (int, error) {
	for l.room < l.written+int64(len(p)) {
		_ = l.File.Preallocate(l.room, logStep) // the write will report a full disk
		l.room += logStep
	}
	n, err := l.File.Write(p)
	l.written += int64(n)
	return n, err
}

// Open implements vfs.FS. Compactions read tables sequentially; all other reads are lookups,
// which do not yield.
func (t *pebbleFS) Open(name string, options ...vfs.OpenOption) (vfs.File, error) {
	f, err := t.FS.Open(name, options...)
	if err == nil && strings.HasSuffix(name, ".blob") {
		return blobFile{f}, nil
	}
	if err != nil || !strings.HasSuffix(name, ".sst") {
		return f, err
	}
	made := table{File: f, name: name, bad: &t.bad}
	if slices.Contains(options, vfs.SequentialReadsOption) {
		made.making = &t.making
	}
	return made, nil
}

type table struct {
	vfs.File
	making *background.Work // nil: does not yield
	name   string
	bad    *badBlocks
}

func (t table) Write(p []byte) (int, error) {
	t.making.Pause()
	return t.File.Write(p)
}

func (t table) ReadAt(p []byte, at int64) (int, error) {
	if t.making != nil {
		t.making.Pause()
	}
	if t.bad == nil {
		return t.File.ReadAt(p, at)
	}
	return t.bad.read(t.File, t.name, p, at)
}

// private makes files that only this user may read: they contain bodies, and Pebble leaves their rights to the umask.
type private struct{ vfs.FS }

const (
	privateFile   fs.FileMode = 0o600
	privateFolder fs.FileMode = 0o700
	otherUsers    fs.FileMode = 0o077
)

func (p private) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := p.FS.Create(name, category)
	return makePrivate(name, f, err)
}

func (p private) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := p.FS.OpenReadWrite(name, category, opts...) // which makes it, too
	return makePrivate(name, f, err)
}

func (p private) Unwrap() vfs.FS { return p.FS }

func makePrivate(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(name, privateFile); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

var ErrOpenFolder = errors.New("any user may write to it")

// isStoreFolder reports whether a folder is a store's, or may become one: a folder with other files,
// from a wrong path perhaps, keeps its rights.
func isStoreFolder(folder string) (bool, error) {
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return errors.Is(err, fs.ErrNotExist), nil // opening will report other errors
	}
	all, err := os.ReadDir(folder)
	others := 0
	for _, f := range all {
		switch name := f.Name(); {
		case strings.HasPrefix(name, "marker.manifest."): // Pebble's
			return true, nil
		case name != "LOCK" && name != "lost+found":
			others++
		}
	}
	return others == 0, err
}

func isStoreFile(name string) bool {
	switch filepath.Ext(name) {
	case ".log", ".sst", ".blob":
		return true
	}
	return name == "LOCK" || name == witnessName || strings.HasPrefix(name, "MANIFEST-") ||
		strings.HasPrefix(name, "OPTIONS-") || strings.HasPrefix(name, "marker.")
}

// restrict removes the rights of other users to a store's folder and files. A folder that
// belongs to another user, as a volume often does, is only logged, and its files are
// restricted all the same. A folder that everyone may write to is refused.
func restrict(folder string, log *slog.Logger) error {
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	switch had := info.Mode().Perm(); {
	case had&otherUsers == 0:
	case os.Chmod(folder, privateFolder) == nil:
		log.Info("other users had rights to the data folder, which were removed", "folder", folder, "had",
			fmt.Sprintf("%#o", had), "has", fmt.Sprintf("%#o", privateFolder))
	case had&0o002 != 0:
		return hint.Errorf(fmt.Sprintf("run chmod 0700 %s as its owner", folder),
			"data folder %s: %w, and it belongs to another user", folder, ErrOpenFolder)
	default:
		log.Warn("other users have rights to the data folder, which belongs to another user: they cannot read its "+
			"files", "folder", folder, "has", fmt.Sprintf("%#o", had))
	}
	for _, in := range []string{folder, filepath.Join(folder, historyName)} {
		all, err := os.ReadDir(in)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, f := range all {
			if !f.Type().IsRegular() || in == folder && !isStoreFile(f.Name()) {
				continue
			}
			if err := os.Chmod(filepath.Join(in, f.Name()), privateFile); err != nil &&
				!errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
