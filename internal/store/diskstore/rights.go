package diskstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/hint"
)

// private is the disk, with files that only this user may read: they hold bodies, and
// Pebble leaves their rights to the umask.
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

// ErrOpenFolder is a data folder that any user may write to.
var ErrOpenFolder = errors.New("any user may write to it")

// isStoreFolder tells whether a folder is a store's, or is to be: one with other things in it, by
// a wrong path perhaps, keeps its rights.
func isStoreFolder(folder string) (bool, error) {
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return errors.Is(err, fs.ErrNotExist), nil // what is wrong with it is said when it is used
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

// isStoreFile tells whether a file in a data folder is of the store.
func isStoreFile(name string) bool {
	switch filepath.Ext(name) {
	case ".log", ".sst", ".blob":
		return true
	}
	return name == "LOCK" || name == witnessName || strings.HasPrefix(name, "MANIFEST-") || strings.HasPrefix(name, "OPTIONS-") || strings.HasPrefix(name, "marker.")
}

// restrict takes the rights of other users to a store's folder and to its files away.
// Where the folder is somebody else's, as a volume's often is, that is only reported:
// the files are closed all the same. One that everyone may write to is refused.
func restrict(folder string, log *slog.Logger) error {
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	switch had := info.Mode().Perm(); {
	case had&otherUsers == 0:
	case os.Chmod(folder, privateFolder) == nil:
		log.Info("other users had rights to the data folder: they are taken away", "folder", folder, "had", fmt.Sprintf("%#o", had), "has", fmt.Sprintf("%#o", privateFolder))
	case had&0o002 != 0:
		return hint.Errorf(fmt.Sprintf("run chmod 0700 %s as its owner", folder), "data folder %s: %w, and it belongs to another user", folder, ErrOpenFolder)
	default:
		log.Warn("other users have rights to the data folder, which belongs to another user: its files are closed to them", "folder", folder, "has", fmt.Sprintf("%#o", had))
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
			if err := os.Chmod(filepath.Join(in, f.Name()), privateFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
