package redisnode

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// logs is where servers keep their append-only files, in their folders.
const logs = "appendonlydir"

// growing is the append-only file that a server writes to.
func growing(dir string) (string, error) {
	all, err := filepath.Glob(filepath.Join(dir, logs, "*.incr.aof"))
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%d append-only files grow in %s, not one", len(all), dir)
	}
	if err != nil {
		return "", err
	}
	return all[0], nil
}

// Written is how much it has written to its append-only file, in bytes.
func (s *Server) Written() (int64, error) {
	path, err := growing(s.dir)
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// StartAfterPowerCut starts another server on a copy of its disk, of whose append-only
// file just so many bytes had reached the disk when the power failed.
func (s *Server) StartAfterPowerCut(ctx context.Context, synced int64) (*Server, error) {
	o := s.opts
	o.disk = func(dir string) error {
		if err := os.CopyFS(filepath.Join(dir, logs), os.DirFS(filepath.Join(s.dir, logs))); err != nil {
			return err
		}
		path, err := growing(dir)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if size, err := f.Seek(0, io.SeekEnd); err != nil || size < synced {
			return fmt.Errorf("%s has %d bytes, not %d: %w", path, size, synced, err)
		}
		return f.Truncate(synced)
	}
	return Start(ctx, o)
}

// HasCutOff tells whether a start has cut off the end of the append-only file, where the last
// write was not whole, as far as the end of its log says.
func (s *Server) HasCutOff() bool { return strings.Contains(s.LastWords(), "Truncating the AOF") }

// RewriteLog has it write its append-only file again from what it has in memory, and waits.
func (s *Server) RewriteLog(ctx context.Context) error {
	if _, err := s.Do(ctx, "BGREWRITEAOF"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for s.Info(ctx, "persistence", "aof_rewrite_scheduled") != "0" || s.Info(ctx, "persistence", "aof_rewrite_in_progress") != "0" {
		select {
		case <-ctx.Done():
			return fmt.Errorf("rewriting the append-only file: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
	if status := s.Info(ctx, "persistence", "aof_last_bgrewrite_status"); status != "ok" {
		return fmt.Errorf("rewriting the append-only file: %s", status)
	}
	return nil
}
