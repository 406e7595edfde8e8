package redisstore

import (
	"crypto/sha256"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

// pendingBatches are the batches that this process has sent and that Redis may have, though
// its answer was lost or it could not say that they are safe. Who adds such a batch again
// means the same one: it would else be there once for each try, for as long as Redis is in
// trouble. Redis remembers the last batch at each position of a process, so a batch
// keeps its position until it is known what became of it, and longer: its first command may still
// be on its way, and would add it again where Redis remembers another batch by then.
type pendingBatches struct {
	mu        sync.Mutex
	positions []position
	open      []pendingBatch
}

type position struct {
	inUse bool
	rests time.Time // until then it is not used again
}

type pendingBatch struct {
	of         [sha256.Size]byte // see store.HashOf
	token      string
	position   int
	wasInDoubt bool
}

const (
	// openMost is how many batches may be in doubt; the oldest are forgotten.
	openMost = 64
	// addedFor is how long Redis remembers the batches of a process that adds no more.
	addedFor = time.Hour
	// lateMost is how long a command may take to Redis after its connection was given up.
	lateMost = addedFor / 4
)

// begin returns what is known of a batch that was in doubt, or a new pendingBatch.
func (p *pendingBatches) begin(of [sha256.Size]byte, token string) pendingBatch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.IndexFunc(p.open, func(was pendingBatch) bool { return was.of == of }); i >= 0 {
		was := p.open[i]
		p.open = slices.Delete(p.open, i, i+1)
		was.wasInDoubt = true
		return was
	}
	now := time.Now()
	at := slices.IndexFunc(p.positions, func(is position) bool { return !is.inUse && !now.Before(is.rests) })
	if at < 0 {
		at = len(p.positions)
		p.positions = append(p.positions, position{})
	}
	p.positions[at].inUse = true
	return pendingBatch{of: of, token: token, position: at}
}

// end ends a try to add a batch; known tells whether it is known what became of it.
func (p *pendingBatches) end(what pendingBatch, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !known {
		p.open = append(p.open, what)
		if len(p.open) <= openMost {
			return
		}
		what = p.open[0]
		p.open = slices.Delete(p.open, 0, 1)
		what.wasInDoubt = true
	}
	free := position{}
	if what.wasInDoubt {
		free.rests = time.Now().Add(lateMost)
	}
	p.positions[what.position] = free
}

// undone tells that an error came before anything was done.
func undone(err error) bool {
	var op *net.OpError
	_, said := rueidis.IsRedisErr(err)
	return said || errors.Is(err, store.ErrFull) || errors.As(err, &op) && op.Op == "dial"
}
