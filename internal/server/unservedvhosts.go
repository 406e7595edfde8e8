package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
)

// unservedIn returns notices of folders with messages of virtual hosts that are not served any
// more: nothing else looks at them.
func unservedIn(c *config.Config, served []*config.Config, log *slog.Logger) (notices []string) {
	if !c.Store.OnDisk() {
		return nil
	}
	folder := filepath.Join(c.Store.Disk, "vhosts")
	all, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return []string{fmt.Sprintf("the folder %s, of further virtual hosts, cannot be read: %v", folder, err)}
	}
	for _, at := range all {
		path := filepath.Join(folder, at.Name())
		if !at.IsDir() || slices.ContainsFunc(served, func(c *config.Config) bool { return filepath.Clean(c.Store.Disk) == path }) {
			continue
		}
		vhost, messages, err := heldIn(path, log)
		switch {
		case errors.Is(err, diskstore.ErrNone), errors.Is(err, store.ErrLocked): // another service has it
		case err != nil:
			notices = append(notices, fmt.Sprintf("the folder %s is of a virtual host that is not served, and cannot be looked at: %v", path, err))
		case messages > 0:
			notices = append(notices, fmt.Sprintf("the folder %s holds messages (%d) of the virtual host %q, which is not served: list it under broker.vhosts, or move the folder away", path, messages, vhost))
		}
	}
	return notices
}

// heldIn returns the owner of a store on disk, and how many messages are in it.
func heldIn(path string, log *slog.Logger) (vhost string, messages int64, err error) {
	s, err := diskstore.Open(path, diskstore.Options{Log: log, Existing: true})
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	owner, err := s.Entry(context.Background(), store.OwnerEntry)
	if err != nil {
		return "", 0, err
	}
	counts, err := s.Counts(context.Background())
	for _, c := range counts {
		messages += c.Waiting + c.Parked
	}
	return string(owner), messages, err
}
