package server

import (
	"context"
	"errors"
	"log/slog"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
)

// StoreCheck is what is wrong with a store on disk that no service uses.
type StoreCheck struct {
	Lines  []store.LedgerLine // counted one by one
	Damage map[string]string  // what cannot be read, and how
}

// CheckStore reads all of a store on disk.
func CheckStore(ctx context.Context, folder string, log *slog.Logger) (c StoreCheck, err error) {
	s, err := diskstore.Open(folder, diskstore.Options{Log: log, Existing: true})
	if err != nil {
		return c, err
	}
	defer s.Close()
	if err := s.Scan(ctx, store.Range{Body: true}, func(store.Listed) (bool, error) { return true, nil }); err != nil {
		return c, err
	}
	if c.Lines, err = s.Recount(ctx); err != nil {
		return c, err
	}
	c.Damage = s.Damage()
	return c, nil
}

// SalvageStore saves what can be read of a store on disk to a new one.
func SalvageStore(ctx context.Context, from, to string, log *slog.Logger) (diskstore.Salvaged, error) {
	return diskstore.Salvage(ctx, from, to, diskstore.Options{Log: log})
}

// AcceptLoss makes a store on disk usable without its missing commits, and returns how many those
// are; nil when none is missing.
func AcceptLoss(folder string, log *slog.Logger) (lost *diskstore.LostError, err error) {
	o := diskstore.Options{Log: log, Existing: true}
	s, err := diskstore.Open(folder, o)
	if errors.As(err, &lost) {
		o.AcceptLoss = true
		s, err = diskstore.Open(folder, o)
	}
	if err != nil {
		return nil, err
	}
	return lost, s.Close()
}
