package hint_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
