package notify

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

const (
	// seen + a queue's name, below prefix, is the entry with how many of its messages the ledger had ever parked
	// when it was last read. No route has that name, and store.OtherQueues always has an entry.
	seen       = "(parked)"
	seenPrefix = prefix + seen + "/"
	// maxRead is how many parked records are read after one reading of the ledger, for their errors.
	maxRead       = 256
	longestReason = 1 << 10 // bytes of an error that are read
	baseTimeout   = 5 * time.Second
)

// parkedCounts are how many messages of each queue were ever parked.
type parkedCounts map[string]int64

// parkedCounts reads them from the ledger. The line of OtherQueues is that of queues forgotten, and not of
// messages that are parked now.
func (e *Engine) parkedCounts(ctx context.Context) (parkedCounts, error) {
	lines, err := e.Store.Ledger(ctx)
	all := parkedCounts{}
	for i := range lines {
		if n := lines[i].Sums[store.EverParked]; n > 0 {
			all[lines[i].Queue] = n
		}
	}
	all[store.OtherQueues] = 0
	return all, err
}

// readBase reads where routes begin to count that have never run.
func (e *Engine) readBase() parkedCounts {
	ctx, cancel := context.WithTimeout(context.Background(), baseTimeout)
	defer cancel()
	base, err := e.parkedCounts(ctx)
	if err != nil {
		return nil // they begin with the first reading
	}
	return base
}

// parkedReader finds what was parked since the last reading.
type parkedReader struct {
	*Engine
	set *routeSet

	mu     sync.Mutex   // guards the rest
	last   parkedCounts // of the last reading; nil: not read yet
	stored bool         // last is stored
	at     time.Time    // of the last reading
}

// load reads what the last run stored.
func (in *parkedReader) load(ctx context.Context) error {
	last := parkedCounts{}
	err := in.Store.Entries(ctx, seenPrefix, "", func(en store.Entry) (bool, error) {
		last[strings.TrimPrefix(en.Name, seenPrefix)], _ = strconv.ParseInt(string(en.Value), 10, 64)
		return true, nil
	})
	if err != nil {
		return err
	}
	if in.stored = len(last) > 0; !in.stored {
		last = in.set.base
	}
	in.last = last
	return nil
}

// read passes what was parked since the last reading to the routes.
func (in *parkedReader) read(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	began := time.Now()
	if in.last == nil {
		if err := in.load(ctx); err != nil {
			return err
		}
	}
	now, err := in.parkedCounts(ctx)
	if err != nil {
		return err
	}
	if in.last == nil {
		in.last = now
	}
	var changed []store.Entry
	grown := map[string]int64{}
	for queue, n := range now {
		was, ok := in.last[queue]
		if !in.stored || !ok || was != n {
			changed = append(changed, store.Entry{Name: seenPrefix + queue, Value: strconv.AppendInt(nil, n, 10)})
		}
		if n < was { // the queue was forgotten meanwhile, or the counts were lost
			was = 0
		}
		if n > was {
			grown[queue] = n - was
		}
	}
	for queue := range in.last {
		if _, ok := now[queue]; !ok {
			changed = append(changed, store.Entry{Name: seenPrefix + queue})
		}
	}
	if len(changed) > 0 {
		// Stored first: a former leader is refused that, so nothing is sent twice.
		if err := in.Store.PutEntries(context.WithoutCancel(ctx), changed); err != nil {
			return err
		}
	}
	before := in.at
	in.last, in.stored, in.at = now, true, began
	each := max(1, maxRead/max(1, len(grown)))
	left := maxRead
	for queue, n := range grown {
		k := key{Kind: Parked, Queue: queue}
		var t *tally
		for _, r := range in.set.routes {
			if !in.wants(r, k) {
				continue
			}
			if t == nil {
				t = in.describe(context.WithoutCancel(ctx), queue, n, min(each, left), before)
				left -= min(each, left)
			}
			r.count(k, t)
		}
	}
	return nil
}

// parkReason is why a message was parked: its consumer's error, or ours.
type parkReason struct {
	text string
	ours bool
}

// describe returns when and why n messages were parked, by the newest of the queue, atMost of them. before is
// when the ledger was read before.
func (in *parkedReader) describe(ctx context.Context, queue string, n int64, atMost int, before time.Time) *tally {
	now := time.Now()
	t := &tally{N: n, First: now, Last: now}
	reasons, found := map[parkReason]int64{}, int64(0)
	newest := store.Range{State: store.Parked, Queues: []string{queue}, NewestFirst: true}
	most := min(n, int64(atMost))
	visit := func(l store.Listed) (bool, error) {
		r := l.Record
		if r.Due.Before(now) { // or some clock was wrong
			if t.First = r.Due; found == 0 {
				t.Last = r.Due
			}
		}
		why := parkReason{text: r.Error}
		if why.text == "" {
			why = parkReason{text: r.ParkedFor, ours: true}
		}
		why.text = why.text[:min(len(why.text), longestReason)]
		reasons[why]++
		found++
		return found < most, nil
	}
	if most > 0 {
		_ = in.Store.Scan(ctx, newest, visit) // a notification without its errors is one
	}
	if found < n && !before.IsZero() && before.Before(t.First) {
		t.First = before
	}
	for why, some := range reasons {
		if text := commonError(queue, why); text != "" {
			t.addError(some*n/found, text)
		}
	}
	return t
}

// commonError is the error that messages of one error group share.
func commonError(queue string, why parkReason) string {
	if p := errorgroup.Of(queue, "", why.text, "").Pattern; p != "" && !why.ours {
		why.text = p
	}
	return clean(why.text, longestError)
}
