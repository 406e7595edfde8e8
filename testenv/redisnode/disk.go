package redisnode

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// logs is where servers keep their append-only files, in their folders.
const logs = "appendonlydir"

// growing opens the append-only file that a server writes to, and says how long it is.
func growing(dir string) (f *os.File, size int64, err error) {
	all, err := filepath.Glob(filepath.Join(dir, logs, "*.incr.aof"))
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%d append-only files grow in %s, not one", len(all), dir)
	}
	if err != nil {
		return nil, 0, err
	}
	if f, err = os.OpenFile(all[0], os.O_RDWR, 0); err != nil {
		return nil, 0, err
	}
	size, err = f.Seek(0, io.SeekEnd)
	return f, size, err
}

// Written is how much it has written to its append-only file, in bytes.
func (s *Server) Written() (int64, error) {
	f, size, err := growing(s.dir)
	if f != nil {
		f.Close()
	}
	return size, err
}

// AfterPowerCut starts another server on a copy of a server's disk, of whose append-only
// file just so many bytes had reached the disk when the power failed.
func AfterPowerCut(t testing.TB, s *Server, synced int64) *Server {
	t.Helper()
	o := s.opts
	o.disk = func(dir string) error {
		if err := os.CopyFS(filepath.Join(dir, logs), os.DirFS(filepath.Join(s.dir, logs))); err != nil {
			return err
		}
		f, size, err := growing(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		if size < synced {
			return fmt.Errorf("%s has %d bytes, not %d", f.Name(), size, synced)
		}
		return f.Truncate(synced)
	}
	return begin(t, o, "")
}

// HasCutOff tells whether a start has cut off the end of the append-only file, where the last
// write was not whole, as far as the end of its log says.
func (s *Server) HasCutOff() bool { return strings.Contains(s.LastWords(), "Truncating the AOF") }

// RewriteLog has it write its append-only file again from what it has in memory, and waits.
func (s *Server) RewriteLog(ctx context.Context) error {
	if _, err := s.Do(ctx, "BGREWRITEAOF"); err != nil {
		return err
	}
	is := func(field, want string) bool { return s.Info(ctx, "persistence", field) == want }
	if err := until(ctx, "the append-only file is rewritten", func() bool {
		return is("aof_rewrite_scheduled", "0") && is("aof_rewrite_in_progress", "0")
	}); err != nil {
		return err
	}
	if !is("aof_last_bgrewrite_status", "ok") {
		return fmt.Errorf("rewriting the append-only file failed:\n%s", s.LastWords())
	}
	return nil
}
