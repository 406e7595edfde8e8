package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// event is one line of the display.
type event struct {
	at    time.Time
	kind  string // of colours
	queue string
	text  string
}

// display shows what happens: on a terminal as a picture that is drawn again and again, elsewhere
// as lines. Its methods are safe for concurrent use.
type display struct {
	out      io.Writer
	terminal bool
	began    time.Time

	mu     sync.Mutex
	recent []event
	queues map[string]*counts
	down   bool
}

// counts of one queue.
type counts struct {
	waiting, parked            int // as the service says: people act on them too
	failed, retried, succeeded int
}

func newDisplay(out io.Writer, terminal bool) *display {
	d := &display{out: out, terminal: terminal, began: time.Now(), queues: map[string]*counts{}}
	for _, q := range queues {
		d.queues[q] = &counts{}
	}
	return d
}

const recentLines = 14

// colours, on a terminal, of each kind of event.
var colours = map[string]string{"fails": "31", "waits": "33", "is retried": "36", "succeeds": "32", "is parked": "35", "breaker": "1;34", "goes down": "1;31", "recovers": "1;32"}

// say shows an event.
func (d *display) say(e event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.at = time.Now()
	switch e.kind {
	case "goes down", "recovers":
		d.down = e.kind == "goes down"
	case "succeeds":
		d.queues[e.queue].succeeded++
	}
	if e.text == "" {
		return // it is counted, and not shown
	}
	d.recent = append(d.recent, e)
	d.recent = d.recent[max(0, len(d.recent)-recentLines):]
	if !d.terminal {
		fmt.Fprintln(d.out, d.line(e))
	}
}

// redrive shows what the service does.
func (d *display) redrive(e retry.Event) {
	d.mu.Lock()
	c := d.queues[e.Queue]
	if c == nil {
		d.mu.Unlock()
		return
	}
	shown := event{queue: e.Queue}
	switch e.Kind {
	case retry.Failed:
		c.failed++
	case retry.Waiting:
		shown.kind, shown.text = "waits", fmt.Sprintf("%s before attempt %d", policy.FormatDuration(e.Delay.Round(10*time.Millisecond)), e.Failures+1)
	case retry.Retried:
		c.retried++
		shown.kind, shown.text = "is retried", fmt.Sprintf("for attempt %d", e.Failures+1)
	case retry.Parked:
		shown.kind, shown.text = "is parked", e.Why
	case retry.Opened:
		shown.kind, shown.text = "breaker", "open: "+e.Why+", so retries are paused"
	case retry.HalfOpened:
		shown.kind, shown.text = "breaker", "half-open: "+e.Why
	case retry.Ramping:
		shown.kind, shown.text = "breaker", "ramp: "+e.Why
	case retry.Closed:
		shown.kind, shown.text = "breaker", "closed: "+e.Why
	}
	d.mu.Unlock()
	if shown.kind != "" {
		d.say(shown)
	}
}

func (d *display) line(e event) string {
	who := strings.TrimPrefix(e.queue, "redrive-demo.")
	if who == "" {
		who = "upstream"
	}
	what := fmt.Sprintf("%-10s", e.kind)
	if d.terminal {
		what = "\x1b[" + colours[e.kind] + "m" + what + "\x1b[0m"
	}
	return fmt.Sprintf("%6.1fs  %-10s %s  %s", e.at.Sub(d.began).Seconds(), who, what, e.text)
}

// draw draws the picture, with what the service keeps.
func (d *display) draw(hint string, kept []store.QueueCount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, c := range d.queues {
		c.waiting, c.parked = 0, 0
		for _, k := range kept {
			if k.Queue == name {
				c.waiting, c.parked = int(k.Waiting), int(k.Parked)
			}
		}
	}
	var b strings.Builder
	b.WriteString("\x1b[H\x1b[J")
	state := "\x1b[32mup\x1b[0m"
	if d.down {
		state = "\x1b[1;31mDOWN\x1b[0m"
	}
	fmt.Fprintf(&b, "\x1b[1mRedrive demo\x1b[0m  %s   payment service: %s\n\n", policy.FormatDuration(time.Since(d.began).Round(time.Second)), state)
	fmt.Fprintf(&b, "  %-10s %8s %8s %9s %10s %8s   waiting now\n", "queue", "failed", "waiting", "retried", "succeeded", "parked")
	for _, q := range slices.Sorted(slices.Values(queues)) {
		c := d.queues[q]
		fmt.Fprintf(&b, "  %-10s %8d \x1b[33m%8d\x1b[0m %9d \x1b[32m%10d\x1b[0m \x1b[35m%8d\x1b[0m   \x1b[33m%s\x1b[0m\n", strings.TrimPrefix(q, "redrive-demo."),
			c.failed, c.waiting, c.retried, c.succeeded, c.parked, strings.Repeat("▪", min(c.waiting, 24)))
	}
	b.WriteString("\n")
	for _, e := range d.recent {
		b.WriteString("  " + d.line(e) + "\n")
	}
	b.WriteString("\n" + hint + "\n")
	io.WriteString(d.out, b.String())
}
