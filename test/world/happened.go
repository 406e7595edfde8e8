package world

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// Happened counts what happened in one run or in many, by name: what is in none of them is not
// checked by them.
type Happened map[string]int

// Add adds what happened in another run.
func (h Happened) Add(other Happened) {
	for what, n := range other {
		h[what] += n
	}
}

// Write writes a table.
func (h Happened) Write(to io.Writer) error {
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, what := range slices.Sorted(maps.Keys(h)) {
		fmt.Fprintf(t, "%d\t  %s\n", h[what], what)
	}
	return t.Flush()
}

// happened is what has happened in this run.
func (w *World) happened() Happened {
	s := w.scenario
	h := Happened{
		"world: on RabbitMQ " + s.version:  1,
		"world: store " + s.storeName():    1,
		"world: minutes of its own time":   int(time.Since(w.ledger.start).Minutes()),
		"message: published by a producer": len(s.messages),
		"message: hostile":                 len(s.hostile),
	}
	for _, q := range s.queues {
		where := "waits in " + q.waitsIn()
		if q.library != nil {
			where = "its consumer is the library (" + q.library.name + ")"
		}
		h["queue: "+q.kind+", "+where]++
	}
	for _, f := range s.faults {
		h["fault: "+f.name()]++
	}
	for _, a := range s.actions {
		h["person: "+a.verb.String()]++
	}
	for event, n := range w.ledger.eventsSoFar() {
		h["service: "+event] += n
	}
	for outcome, n := range w.ledger.outcomes {
		h["library: "+string(outcome)] += n
	}
	return h
}
