package diskstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// contents are all that is in a store, in words.
func contents(t *testing.T, s *diskstore.Store) string {
	t.Helper()
	var all strings.Builder
	for _, state := range []store.State{store.Waiting, store.Parked} {
		err := s.Scan(ctx, store.Range{State: state, Body: true}, func(l store.Listed) (bool, error) {
			body := l.Record.Message.Body
			fmt.Fprintf(&all, "%v %s %.10s of %d bytes\n", state, l.Key, body, len(body))
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	lines, err := s.Ledger(ctx)
	fmt.Fprintln(&all, lines, err)
	err = s.Entries(ctx, "", "", func(e store.Entry) (bool, error) {
		fmt.Fprintf(&all, "%s=%s\n", e.Name, e.Value)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.EachPastFailure(ctx, func(p store.PastFailure) (bool, error) {
		fmt.Fprintln(&all, "ended", p.ID)
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// A folder of another format than this version's is refused with what to do, and stays as it is: the version that wrote it, and its witness, find it unchanged. A
// snapshot from before the upgrade opens: that is the way back.
func TestAFolderOfAnotherFormatIsRefused(t *testing.T) {
	folder := t.TempDir()
	path, before := filepath.Join(folder, "data"), filepath.Join(folder, "before")
	s := openAt(t, path, diskstore.Options{Reserve: 1})
	err := s.Add(ctx, []*store.Record{storetest.Waiting("q", 0, "kept")})
	if _, snapErr := s.Snapshot(ctx, before); errors.Join(err, snapErr) != nil {
		t.Fatal(err, snapErr)
	}
	want := contents(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	witness, err := os.ReadFile(filepath.Join(path, "witness"))
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range [][]byte{{1}, {3}, {5}, {250}, {4, 1}, {0}, {}} {
		if err := diskstore.AsFormat(path, format...); err != nil {
			t.Fatal(err)
		}
		for _, o := range []diskstore.Options{{Reserve: 1}, {Reserve: 1, AcceptLoss: true}} {
			_, err := diskstore.Open(path, o)
			if !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), fmt.Sprintf("data folder %s", path)) ||
				!strings.Contains(err.Error(), fmt.Sprintf("format %s, and this version of Redrive reads format 4. Nothing was changed", strings.Trim(fmt.Sprint(format), "[]"))) || !strings.Contains(err.Error(), "a snapshot from before its upgrade") {
				t.Errorf("format %v: %v", format, err)
			}
		}
		if now, err := os.ReadFile(filepath.Join(path, "witness")); err != nil || !bytes.Equal(now, witness) {
			t.Errorf("format %v: its witness was written, %v", format, err)
		}
	}
	if err := diskstore.AsFormat(path, 4); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{path, before} {
		s := openAt(t, at, diskstore.Options{Reserve: 1})
		if got := contents(t, s); got != want {
			t.Errorf("%s has\n%s\nwant\n%s", at, got, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestTheGuideToUpgradesNamesTheFormat(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/how-to/backup.md")
	if err != nil {
		t.Fatal(err)
	}
	if now := fmt.Sprintf("format number, now %d.", diskstore.FormatVersion); !strings.Contains(string(guide), now) {
		t.Errorf("docs/how-to/backup.md does not say %q", now)
	}
}
