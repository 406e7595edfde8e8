package hint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/hint"
)

// However an error is wrapped, its remedy is in its text once, and apart.
func TestARemedyIsApart(t *testing.T) {
	locked := hint.Errorf("stop the other one", "data folder %s: %w", "d", io.ErrClosedPipe)
	for _, c := range []struct {
		err               error
		all, text, remedy string
	}{
		{errors.New("plain; with a semicolon"), "plain; with a semicolon", "plain; with a semicolon", ""},
		{locked, "data folder d: io: read/write on closed pipe; stop the other one", "data folder d: io: read/write on closed pipe", "stop the other one"},
		{fmt.Errorf("start: %w", locked), "start: data folder d: io: read/write on closed pipe; stop the other one", "start: data folder d: io: read/write on closed pipe", "stop the other one"},
		{fmt.Errorf("%w (since 12:00)", locked), "data folder d: io: read/write on closed pipe; stop the other one (since 12:00)", "data folder d: io: read/write on closed pipe (since 12:00)", "stop the other one"},
	} {
		if c.err.Error() != c.all || hint.Text(c.err) != c.text || hint.Of(c.err) != c.remedy {
			t.Errorf("%q is %q, with the hint %q", c.err, hint.Text(c.err), hint.Of(c.err))
		}
	}
	if !errors.Is(locked, io.ErrClosedPipe) {
		t.Error("the cause is hidden")
	}
}

// Logs have the remedy as an attribute, beside others and within groups.
func TestLogsHaveTheHint(t *testing.T) {
	err := fmt.Errorf("start: %w", hint.Errorf("stop the other one", "locked"))
	for want, handler := range map[string]func(io.Writer, *slog.HandlerOptions) slog.Handler{
		`queue=q error="start: locked" hint="stop the other one" n=1`:           func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(w, o) },
		`"queue":"q","error":"start: locked","hint":"stop the other one","n":1`: func(w io.Writer, o *slog.HandlerOptions) slog.Handler { return slog.NewJSONHandler(w, o) },
	} {
		var b bytes.Buffer
		slog.New(handler(&b, &slog.HandlerOptions{ReplaceAttr: hint.Attr})).With("queue", "q").Warn("it fails", "error", err, "n", 1)
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s, want %s", &b, want)
		}
	}
}

// told is an error as another process told it: its code.
type told string

func (t told) Error() string        { return string(t) }
func (t told) Is(target error) bool { return hint.HasCode(target, string(t)) }

// Each reader finds the first kind that it tells apart, also in what another process told.
func TestTheFirstKindCounts(t *testing.T) {
	gone, other := hint.New("not_found", "no such queue"), hint.New("not_found", "no such token")
	denied := fmt.Errorf("%w: %w", hint.New("denied", "no permission"), context.Canceled)
	exit := func(err error) int { return hint.KindOf(err, func(k hint.Kind) bool { return k.Exit != 0 }).Exit }
	for _, c := range []struct {
		err          error
		code         string
		status, exit int
	}{
		{gone, "not_found", 404, 6},
		{hint.Errorf("name another", "%w: orders", gone), "not_found", 404, 6},
		{fmt.Errorf("%w: %w", hint.New("malformed", "a body"), os.ErrDeadlineExceeded), "timeout", 408, 1},
		{fmt.Errorf("%w: %w", hint.New("no_audit", "no log"), context.DeadlineExceeded), "no_audit", 503, 1},
		{denied, "stopping", 503, 4},
		{told("not_found"), "not_found", 404, 6},
		{told("anything"), "internal", 500, 1},
		{errors.New("anything"), "internal", 500, 1},
	} {
		k := hint.HTTP(c.err)
		if k.Code != c.code || k.Status != c.status || exit(c.err) != c.exit {
			t.Errorf("%v: %s, %d, exit code %d, want %v", c.err, k.Code, k.Status, exit(c.err), c)
		}
	}
	if of := told("not_found"); errors.Is(gone, other) || !errors.Is(of, gone) || !errors.Is(of, other) ||
		errors.Is(of, denied) || errors.Is(told("internal"), errors.New("anything")) {
		t.Error("errors are mistaken for each other")
	}
}

// An error of a kind that has no row is reported as internal.
func TestEachErrorHasARow(t *testing.T) {
	made, found := regexp.MustCompile(`hint\.New\("(\w+)"`), 0
	err := filepath.WalkDir("..", func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range made.FindAllSubmatch(source, -1) {
			found++
			if !slices.ContainsFunc(hint.Kinds, func(k hint.Kind) bool { return k.Code == string(m[1]) && k.Err == nil }) {
				t.Errorf("%s: there is no kind %q", path, m[1])
			}
		}
		return err
	})
	if err != nil || found < 20 {
		t.Fatal(found, err)
	}
}
