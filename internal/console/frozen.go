package console

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// chunk is how many messages one entry names. All entries but the last are full.
	chunk = 1000
	// inMemory is how many messages are brought in order at a time: what is more is
	// written in order, and merged.
	inMemory = 100_000
)

// frozen is one message of a plan: what it was when the plan was made.
type frozen struct {
	failed time.Time
	id     string
	queue  int // index in Plan.Queues
	state  store.State
	key    store.Key
}

// freezer writes the messages that a plan is about, those that failed first first.
// Its memory does not grow with their number.
type freezer struct {
	c     *Console
	parts string
	most  int // in memory
	batch []frozen
	runs  int
	n     int64
}

func (f *freezer) add(ctx context.Context, m frozen) error {
	f.n++
	if f.batch = append(f.batch, m); len(f.batch) < f.most {
		return nil
	}
	return f.flush(ctx, fmt.Sprintf("run/%06d/", f.runs))
}

// flush writes what is in memory in order.
func (f *freezer) flush(ctx context.Context, under string) error {
	slices.SortFunc(f.batch, compareFrozen)
	w := chunks{f: f, under: under}
	for _, m := range f.batch {
		if err := w.add(ctx, m); err != nil {
			return err
		}
	}
	f.batch = f.batch[:0]
	f.runs++
	return w.flush(ctx)
}

func compareFrozen(a, b frozen) int {
	return cmp.Or(a.failed.Compare(b.failed), cmp.Compare(a.key, b.key))
}

// end merges what was written in pieces.
func (f *freezer) end(ctx context.Context) error {
	if f.runs == 0 {
		return f.flush(ctx, "keys/")
	}
	if err := f.flush(ctx, fmt.Sprintf("run/%06d/", f.runs)); err != nil {
		return err
	}
	type run struct {
		chunks int64
		some   []frozen
		ended  bool
	}
	runs := make([]run, f.runs)
	more := func(i int) (bool, error) {
		if len(runs[i].some) > 0 || runs[i].ended {
			return !runs[i].ended, nil
		}
		var err error
		runs[i].some, err = f.c.readChunk(ctx, fmt.Sprintf("%srun/%06d/%s", f.parts, i, chunkName(runs[i].chunks)))
		runs[i].chunks++
		runs[i].ended = len(runs[i].some) == 0
		return !runs[i].ended, err
	}
	w := chunks{f: f, under: "keys/"}
	for range f.n {
		first := -1
		for i := range runs { // few: one for 100,000 messages
			switch there, err := more(i); {
			case err != nil:
				return err
			case there && (first < 0 || compareFrozen(runs[i].some[0], runs[first].some[0]) < 0):
				first = i
			}
		}
		if err := w.add(ctx, runs[first].some[0]); err != nil {
			return err
		}
		runs[first].some = runs[first].some[1:]
	}
	if err := w.flush(ctx); err != nil {
		return err
	}
	return f.c.Store.DeleteEntries(ctx, f.parts+"run/")
}

// chunks writes messages as entries.
type chunks struct {
	f     *freezer
	under string
	line  bytes.Buffer
	n     int64
	ready []store.Entry
}

func chunkName(n int64) string { return fmt.Sprintf("%09d", n) }

func (w *chunks) add(ctx context.Context, m frozen) error {
	fmt.Fprintf(&w.line, "%d %s %d %d %s\n", m.failed.UnixMicro(), m.id, m.queue, m.state, m.key)
	if w.n++; w.n%chunk == 0 {
		w.put()
	}
	if len(w.ready) < 16 {
		return nil
	}
	return w.flush(ctx)
}

func (w *chunks) put() {
	if w.line.Len() > 0 {
		name := w.f.parts + w.under + chunkName((w.n-1)/chunk)
		w.ready = append(w.ready, store.Entry{Name: name, Value: bytes.Clone(w.line.Bytes())})
		w.line.Reset()
	}
}

// flush writes what is ready; a chunk that is not full ends it.
func (w *chunks) flush(ctx context.Context) error {
	w.put()
	if len(w.ready) == 0 {
		return ctx.Err()
	}
	err := w.f.c.Store.PutEntries(ctx, w.ready)
	w.ready = nil
	return err
}

// readChunk is nil where there is none.
func (c *Console) readChunk(ctx context.Context, name string) ([]frozen, error) {
	value, err := c.Store.Entry(ctx, name)
	if err != nil {
		return nil, err
	}
	var all []frozen
	for line := range strings.Lines(string(value)) {
		m, ok := parseFrozen(strings.TrimSuffix(line, "\n"))
		if !ok {
			return nil, fmt.Errorf("%s is damaged", name)
		}
		all = append(all, m)
	}
	return all, nil
}

func parseFrozen(line string) (m frozen, ok bool) {
	f := strings.SplitN(line, " ", 5)
	if len(f) != 5 {
		return m, false
	}
	failed, err1 := strconv.ParseInt(f[0], 10, 64)
	queue, err2 := strconv.Atoi(f[2])
	state, err3 := strconv.ParseUint(f[3], 10, 8)
	return frozen{time.UnixMicro(failed), f[1], queue, store.State(state), store.Key(f[4])}, err1 == nil && err2 == nil && err3 == nil && queue >= 0
}
