package inspect

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/store"
)

// LedgerLine accounts for all messages that came for a queue.
type LedgerLine struct {
	Queue     string `json:"queue"`
	In        int64  `json:"in" doc:"Messages that failed, or were made by people; the sum of the others."`
	Retried   int64  `json:"retried" doc:"RabbitMQ confirmed them in their work queue."`
	Forwarded int64  `json:"forwarded" doc:"RabbitMQ confirmed them where the policy, or a person, sent them."`
	Waiting   int64  `json:"waiting"`
	Parked    int64  `json:"parked"`
	Discarded int64  `json:"discarded" doc:"They can still be restored."`
	Expired   int64  `json:"expired,omitempty" doc:"Of discarded and forgotten: for their policy's retention."`
	Forgotten int64  `json:"forgotten" doc:"They were discarded, and their time to be restored is over."`
	Delayed   int64  `json:"delayed" doc:"They wait, or waited, in RabbitMQ."`
	Dropped   int64  `json:"dropped" doc:"Their policy discarded them at once."`
	Moved     int64  `json:"moved,omitempty" doc:"They count as in of another queue now."`
	Off       int64  `json:"off" doc:"In, less all other columns. 0 is right."`
}

// LedgerColumns show the lines of the ledger, on the page and on the command line.
var LedgerColumns = []Column[LedgerLine]{
	{Field: "Queue"}, {Field: "In"}, {Field: "Retried"}, {Field: "Forwarded", Narrow: 3}, {Field: "Waiting"},
	{Field: "Parked"}, {Field: "Discarded", Narrow: 1}, {Field: "Forgotten", Narrow: 5},
	{Field: "Expired", Narrow: 6, Help: "Of those discarded or forgotten: their retention was over"},
	{Head: "In RabbitMQ", Field: "Delayed", Narrow: 2, Help: "Delayed: they wait, or waited, in RabbitMQ"},
	{Field: "Dropped", Narrow: 4, Help: "Their policy discards them at once"}, {Field: "Moved", Narrow: 7},
	{Head: "Unaccounted", Field: "Off", Help: "Messages that came in and are in no other column; negative: too many"},
}

// Ledger counts all messages by what became of them.
type Ledger struct {
	Recounted *time.Time   `json:"recounted,omitempty" doc:"When what is kept was last counted, and compared."`
	Total     LedgerLine   `json:"total" doc:"The sum of all pages; off: of absolute values."`
	OffQueues []LedgerLine `json:"off_queues,omitempty" doc:"Lines that are off, on whatever page; at most 100."`
	Queues    []LedgerLine `json:"queues"`
	After     string       `json:"after,omitempty" doc:"Ask with it for the next page; absent on the last."`
}

// Columns are LedgerColumns without the rare ones that are 0 here.
func (l *Ledger) Columns() []Column[LedgerLine] {
	return slices.DeleteFunc(slices.Clone(LedgerColumns), func(c Column[LedgerLine]) bool {
		return c.Field == "Expired" && l.Total.Expired == 0
	})
}

// maxOff is how many lines that are off are shown on every page.
const maxOff = 100

// Ledger tells, for each queue, what came and what became of it: a page of limit lines,
// ordered by name; 0: MostQueues. With recount it counts all that is kept first.
func (in *Inspector) Ledger(
	ctx context.Context, by auth.Caller, recount bool, after string, limit int,
) (Ledger, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return Ledger{}, err
	}
	if recount {
		if err := in.recount(ctx); err != nil {
			return Ledger{}, err
		}
	}
	lines, err := in.Store.Ledger(ctx)
	if err != nil {
		return Ledger{}, err
	}
	expired := map[string]int64{}
	if err := in.Store.Entries(ctx, store.ExpiredPrefix, "", func(e store.Entry) (bool, error) {
		expired[strings.TrimPrefix(e.Name, store.ExpiredPrefix)], _ = strconv.ParseInt(string(e.Value), 10, 64)
		return true, nil
	}); err != nil {
		return Ledger{}, err
	}
	if in.Changed != nil {
		if err := in.ReadRecount(ctx); err != nil {
			return Ledger{}, err
		}
	}
	in.recounts.mu.Lock()
	defer in.recounts.mu.Unlock()
	l := Ledger{Queues: []LedgerLine{}}
	if at := in.recounts.at; !at.IsZero() {
		l.Recounted = &at
	}
	var mine []store.LedgerLine
	sums := store.LedgerLine{}
	for i := range lines {
		s := &lines[i]
		if !by.Sees(s.Queue) {
			continue
		}
		mine = append(mine, *s)
		sums.Sums.Add(&s.Sums)
		if off := in.recounts.offOf(s); off != 0 {
			l.Total.Off += max(off, -off)
			if len(l.OffQueues) < maxOff {
				l.OffQueues = append(l.OffQueues, lineOf(s, off))
			}
		}
	}
	l.Total = lineOf(&sums, l.Total.Off)
	for queue, n := range expired {
		if by.Sees(queue) {
			l.Total.Expired += n
		}
	}
	page, next, err := pageOf(mine, func(s store.LedgerLine) string { return s.Queue }, after, limit)
	for i := range page {
		line := lineOf(&page[i], in.recounts.offOf(&page[i]))
		line.Expired = expired[line.Queue]
		l.Queues = append(l.Queues, line)
	}
	l.After = next
	return l, err
}

// offOf is by how much a line is off. The caller holds mu.
func (r *recounts) offOf(s *store.LedgerLine) int64 {
	if found := r.off[s.Queue]; found != 0 {
		return found
	}
	return s.Off()
}

func lineOf(s *store.LedgerLine, off int64) LedgerLine {
	return LedgerLine{Queue: s.Queue, In: s.Sums[store.In], Retried: s.Sums[store.Retried],
		Forwarded: s.Sums[store.Forwarded],
		Waiting:   s.Sums[store.Waiting], Parked: s.Sums[store.Parked], Discarded: s.Sums[store.Discarded],
		Forgotten: s.Sums[store.Forgotten],
		Delayed:   s.Sums[store.Delayed], Dropped: s.Sums[store.DiscardedAtOnce], Moved: s.Sums[store.Moved], Off: off}
}
