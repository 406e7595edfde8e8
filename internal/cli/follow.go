package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/operations"
)

const (
	// firstPoll is the first interval between two polls: most operations are over at once.
	firstPoll = 50 * time.Millisecond
	lastPoll  = time.Second
	// noAnswerFor is how long a service that does not answer is polled: it may be restarting, and
	// continues its operations then.
	noAnswerFor = time.Minute
)

// stillRunning is why an operation is no longer watched, though it has not ended.
type stillRunning struct{ error }

func (s *stillRunning) Unwrap() error { return s.error }

// follow shows an operation's progress until it has ended.
func (p *program) follow(ctx context.Context, client httpapi.Client, op operations.Operation) (operations.Operation, error) {
	show := p.operationProgress()
	defer func() { show.end() }()
	answered := time.Now()
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		if show.update(op); op.Ended != nil {
			return op, nil
		}
		select {
		case <-ctx.Done():
			return op, &stillRunning{exitErrorf(ExitPartly, "operation %s has not ended", op.ID)}
		case <-time.After(wait):
		}
		now, err := client.Operation(ctx, op.ID)
		switch {
		case err == nil:
			op, answered = now, time.Now()
		case ctx.Err() != nil: // the select above returns
		case !errors.Is(err, httpapi.ErrUnreachable) || time.Since(answered) > noAnswerFor:
			return op, &stillRunning{err}
		}
	}
}

// progress is how an operation is shown while it runs.
type progress interface {
	update(operations.Operation)
	end()
}

func (p *program) operationProgress() progress {
	if p.draws() {
		return &bar{w: p.err}
	}
	return &jsonLines{w: p.err}
}

// draws tells whether a line on standard error can be overwritten.
func (p *program) draws() bool { return isTerminal(p.err) && p.getenv("TERM") != "dumb" }

// jsonLines writes a line per second, for programs.
type jsonLines struct {
	w    io.Writer
	last time.Time
	was  string
}

func (j *jsonLines) update(op operations.Operation) {
	if now := time.Now(); op.State != j.was || now.Sub(j.last) >= lastPoll-firstPoll {
		j.last, j.was = now, op.State
		line, err := jsonOf(struct {
			Operation string  `json:"operation"`
			State     string  `json:"state"`
			Why       string  `json:"why,omitempty"`
			Count     int64   `json:"count"`
			Done      int64   `json:"done"`
			Skipped   int64   `json:"skipped"`
			Failed    int64   `json:"failed"`
			PerSecond float64 `json:"per_second"`
			Left      string  `json:"left,omitempty"`
		}{op.ID, op.State, op.Why, op.Count, op.Done, op.SkippedN, op.Failed, op.PerSecond, op.Left}, "")
		if err == nil {
			fmt.Fprint(j.w, line)
		}
	}
}

func (*jsonLines) end() {}

// bar is a line that is overwritten, without escape sequences.
type bar struct {
	w     io.Writer
	drawn int
}

// meter shows the progress of a command: on a terminal in a line that is overwritten, elsewhere in a
// line per second.
type meter struct {
	p    *program
	bar  bar
	last time.Time
}

func (p *program) meter() *meter { return &meter{p: p, bar: bar{w: p.err}} }

// show shows a line, unless one was shown just now and this is not the last.
func (m *meter) show(line string, last bool) {
	every := lastPoll
	if m.p.draws() {
		every /= 4
	}
	if time.Since(m.last) < every && !last {
		return
	}
	m.last = time.Now()
	if m.p.draws() {
		m.bar.draw(line)
	} else {
		fmt.Fprintln(m.p.err, plain(line))
	}
}

func (m *meter) end() { m.bar.end() }

const barWidth = 30

func (b *bar) update(op operations.Operation) {
	processed := op.Done + op.SkippedN + op.Failed
	line := fmt.Sprintf("%s %s of %s", gauge(processed, op.Count), count(processed), count(op.Count))
	switch op.State {
	case operations.Running:
		line += fmt.Sprintf(", %.0f/s", op.PerSecond)
		if op.Left != "" {
			line += ", " + op.Left + " left"
		}
	case operations.Watching:
		line += ", waiting whether the first fail again"
	default:
		line += ", " + op.State
	}
	if op.Why != "" && op.Ended == nil {
		line += ": " + cut(cell(op.Why), 60)
	}
	b.draw(line)
}

func (b *bar) draw(line string) {
	line = plain(line)
	n := utf8.RuneCountInString(line)
	fmt.Fprint(b.w, "\r"+line+strings.Repeat(" ", max(0, b.drawn-n)))
	b.drawn = n
}

func (b *bar) end() {
	if b.drawn > 0 {
		fmt.Fprintln(b.w)
	}
}

func gauge(n, of int64) string {
	full := int(min(n, of) * barWidth / max(of, 1))
	return strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
}
