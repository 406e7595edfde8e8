package diskstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
)

// A folder of formats 1 to 3 is upgraded once and loses nothing: messages, large ones too,
// ledger, side table, history. What goes to a forward target is in its lane then.
func TestAFolderOfAnEarlierFormatIsUpgraded(t *testing.T) {
	for name, as := range map[string]func(path string) error{
		"2": diskstore.AsFormat2, "3": diskstore.AsFormat3,
		"3, cut short": func(path string) error { return diskstore.AsFormat(path, 3) },
	} {
		t.Run("format "+name, func(t *testing.T) { upgraded(t, as) })
	}
}

func upgraded(t *testing.T, as func(path string) error) {
	path := t.TempDir()
	s := openAt(t, path, diskstore.Options{Reserve: 1})
	for i := range 50 {
		body := fmt.Sprint(i)
		if i == 7 {
			body += strings.Repeat("x", 2<<20)
		}
		r := storetest.Waiting("q", time.Duration(i)*time.Second, body)
		if i%7 == 0 {
			r.Forward = &store.Destination{Exchange: "x", RoutingKey: "k"}
		}
		if err := s.Add(ctx, []*store.Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, time.Now().Add(1e6*time.Hour), 20, 1<<30)
	if err != nil || len(claims) != 20 {
		t.Fatalf("%d claims, %v", len(claims), err)
	}
	var out []store.Outcome
	for i, c := range claims {
		o := store.Outcome{Claim: c, At: time.Now()}
		if i%2 == 0 {
			o.Park = "for a look"
		}
		out = append(out, o)
	}
	if _, err := s.Finish(ctx, out); err != nil {
		t.Fatal(err)
	}
	if err := s.PutEntries(ctx, []store.Entry{{Name: "note", Value: []byte("known")}}); err != nil {
		t.Fatal(err)
	}
	want := contents(t, s)
	if err := errors.Join(s.Close(), as(path)); err != nil {
		t.Fatal(err)
	}
	for life := range 2 {
		var log bytes.Buffer
		s := openAt(t, path, diskstore.Options{Reserve: 1, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if got := contents(t, s); got != want {
			t.Errorf("life %d has\n%s\nwant\n%s", life, got, want)
		}
		storetest.Balances(t, s)
		groupsCount(t, s)
		if format, old, err := s.FormatOf(); string(format) != "\x04" || old != 0 || err != nil {
			t.Errorf("its format is %v, with %d receipts of before, %v", format, old, err)
		}
		if upgraded := strings.Count(log.String(), "upgrading the data folder"); upgraded != 1-life || strings.Contains(log.String(), "level=WARN") {
			t.Errorf("life %d logs:\n%s", life, &log)
		}
		if err := errors.Join(s.Check(), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

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

// A folder of a format that this version does not know is refused with what to do, and
// stays as it is: the version that wrote it, and its witness, find it unchanged. A
// snapshot from before the upgrade opens: that is the way back.
func TestAFolderOfALaterFormatIsRefused(t *testing.T) {
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
	for _, format := range [][]byte{{5}, {250}, {4, 1}, {0}, {}} {
		if err := diskstore.AsFormat(path, format...); err != nil {
			t.Fatal(err)
		}
		for _, o := range []diskstore.Options{{Reserve: 1}, {Reserve: 1, AcceptLoss: true}} {
			_, err := diskstore.Open(path, o)
			if !errors.Is(err, store.ErrFormat) || !strings.Contains(err.Error(), fmt.Sprintf("data folder %s", path)) ||
				!strings.Contains(err.Error(), fmt.Sprintf("format %s, and this version of Redrive reads formats 1 to 4", strings.Trim(fmt.Sprint(format), "[]"))) || !strings.Contains(err.Error(), "a snapshot from before its upgrade") {
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

// A folder of the first versions, which have the number of format 1 and another layout of
// records, is refused for that, and not called damaged.
func TestAFolderOfTheFirstVersionsIsNamed(t *testing.T) {
	path := t.TempDir()
	s := openAt(t, path, diskstore.Options{Reserve: 1})
	r := storetest.Waiting("q", 0, "kept")
	err := s.Add(ctx, []*store.Record{r})
	key, findErr := s.First("q")
	if err = errors.Join(err, findErr, s.Close()); err != nil {
		t.Fatal(err)
	}
	// A version, the state, the id, the fingerprint, and the queue with its length.
	record := append(append([]byte{1, byte(store.Waiting)}, r.ID[:]...), make([]byte, 16)...)
	record = append(record, 1, 'q')
	if err := diskstore.AsEarliest(path, key, record); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := diskstore.Open(path, diskstore.Options{Reserve: 1})
		if !errors.Is(err, store.ErrFormat) || errors.Is(err, diskstore.ErrDamaged) || !strings.Contains(err.Error(), "versions of before 2026-11-21") {
			t.Errorf("it is refused with %v", err)
		}
	}
}

func TestTheGuideToUpgradesNamesEachFormat(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/how-to/backup.md")
	if err != nil {
		t.Fatal(err)
	}
	for format := 1; format <= diskstore.FormatVersion; format++ {
		if !strings.Contains(string(guide), fmt.Sprintf("\n| %d | ", format)) {
			t.Errorf("docs/how-to/backup.md has no row for format %d", format)
		}
	}
	if now := fmt.Sprintf("format number, now %d.", diskstore.FormatVersion); !strings.Contains(string(guide), now) {
		t.Errorf("docs/how-to/backup.md does not say %q", now)
	}
}
