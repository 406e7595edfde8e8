package diskstore_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

func openAt(t *testing.T, path string, o diskstore.Options) *diskstore.Store {
	t.Helper()
	s, err := diskstore.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDiskEngine(t *testing.T) {
	paths := map[store.Store]string{}
	open := func(t *testing.T, path string) store.Store {
		s := openAt(t, path, diskstore.Options{})
		paths[s] = path
		return s
	}
	storetest.Run(t, storetest.Engine{
		Name: "disk",
		Open: func(t *testing.T) store.Store { return open(t, filepath.Join(t.TempDir(), "data")) },
		Reopen: func(t *testing.T, s store.Store) store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			again := open(t, paths[s])
			t.Cleanup(func() { again.Close() })
			return again
		},
	})
}

func TestASecondOwnerIsRefused(t *testing.T) {
	path := t.TempDir()
	s := openAt(t, path, diskstore.Options{})
	if _, err := diskstore.Open(path, diskstore.Options{}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("a second open: %v", err)
	}
	s.Close()
	openAt(t, path, diskstore.Options{}).Close()
}

func TestAFullStoreTakesNothingAndGivesBack(t *testing.T) {
	path := t.TempDir()
	ctx := context.Background()
	s := openAt(t, path, diskstore.Options{})
	if err := s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "kept")}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = openAt(t, path, diskstore.Options{Reserve: 1 << 60})
	defer s.Close()
	if err := s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "refused")}); !errors.Is(err, store.ErrFull) {
		t.Errorf("adding without room: %v", err)
	}
	next, err := s.Next(ctx)
	if err != nil || len(next) != 1 {
		t.Fatal(next, err)
	}
	claims, err := s.Claim(ctx, "q", next[0].Due, 10, 1<<20)
	if err != nil || len(claims) != 1 {
		t.Fatalf("claimed %d, %v", len(claims), err)
	}
	if n, err := s.Settle(ctx, []store.Outcome{{Claim: claims[0]}}); n != 1 || err != nil {
		t.Errorf("settling without room for more: %d, %v", n, err)
	}
}
