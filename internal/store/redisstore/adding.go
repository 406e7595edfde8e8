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
// trouble. Redis remembers the last batch at each position of a process, so a batch
// keeps its position until it is known what became of it.
type adding struct {
	mu        sync.Mutex
	positions []bool // those in use
	open      []pendingBatch
}

type pendingBatch struct {
	of         [sha256.Size]byte // see printOf
	token      string
	position   int
	wasInDoubt bool
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
		b = binary.AppendVarint(append(append(b[:0], r.ID[:]...), r.Queue...), int64(r.Failures))
		h.Write(b)
	}
	h.Sum(of[:0])
	return of
}

// begin returns what is known of a batch that was in doubt, or a new pendingBatch.
func (a *adding) begin(of [sha256.Size]byte, token string) pendingBatch {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.IndexFunc(a.open, func(was pendingBatch) bool { return was.of == of }); i >= 0 {
		was := a.open[i]
		a.open = slices.Delete(a.open, i, i+1)
		was.wasInDoubt = true
		return was
	}
	position := slices.Index(a.positions, false)
	if position < 0 {
		position = len(a.positions)
		a.positions = append(a.positions, false)
	}
	a.positions[position] = true
	return pendingBatch{of: of, token: token, position: position}
}

// end ends a try to add a batch; known tells whether it is known what became of it.
func (a *adding) end(what pendingBatch, known bool) {
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
	a.positions[what.position] = false
}

// undone tells that an error came before anything was done.
func undone(err error) bool {
	var op *net.OpError
	_, said := rueidis.IsRedisErr(err)
	return said || errors.Is(err, store.ErrFull) || errors.As(err, &op) && op.Op == "dial"
}
