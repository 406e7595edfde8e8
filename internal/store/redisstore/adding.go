package redisstore

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

// adding knows the batches that this process has sent and that Redis may have, though
// its answer was lost or it could not say that they are safe. Who adds such a batch again
// means the same one: it would else be there once for each try, for as long as Redis is in
// trouble. Redis remembers the last batch of each lane of a process, so a batch
// keeps its lane until it is known what became of it.
type adding struct {
	mu    sync.Mutex
	lanes []bool // those in use
	open  []attempt
}

type attempt struct {
	of    [sha256.Size]byte // see printOf
	token string
	lane  int
	again bool // it was in doubt before
}

const (
	// openMost is how many batches may be in doubt; the oldest are forgotten.
	openMost = 64
	// addedFor is how long Redis remembers the batches of a process that adds no more.
	addedFor = time.Hour
)

// printOf tells one batch from others.
func printOf(records []*store.Record) (of [sha256.Size]byte) {
	h := sha256.New()
	var b []byte
	for _, r := range records {
		b = binary.AppendVarint(append(append(b[:0], r.ID[:]...), r.Queue...), int64(r.Attempt))
		h.Write(b)
	}
	h.Sum(of[:0])
	return of
}

// begin is the attempt that a batch was in doubt of, or a new one.
func (a *adding) begin(of [sha256.Size]byte, token string) attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.IndexFunc(a.open, func(was attempt) bool { return was.of == of }); i >= 0 {
		was := a.open[i]
		a.open = slices.Delete(a.open, i, i+1)
		was.again = true
		return was
	}
	lane := slices.Index(a.lanes, false)
	if lane < 0 {
		lane = len(a.lanes)
		a.lanes = append(a.lanes, false)
	}
	a.lanes[lane] = true
	return attempt{of: of, token: token, lane: lane}
}

// end tells whether what became of it is known.
func (a *adding) end(what attempt, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !known {
		a.open = append(a.open, what)
		if len(a.open) <= openMost {
			return
		}
		what = a.open[0]
		a.open = slices.Delete(a.open, 0, 1)
	}
	a.lanes[what.lane] = false
}

// undone tells that an error came before anything was done.
func undone(err error) bool {
	var op *net.OpError
	_, said := rueidis.IsRedisErr(err)
	return said || errors.Is(err, store.ErrFull) || errors.As(err, &op) && op.Op == "dial"
}
