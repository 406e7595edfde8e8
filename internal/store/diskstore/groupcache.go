package diskstore

import (
	"hash/maphash"
	"strings"
	"sync"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
)

// groupCache knows the groups of failures that were seen lately. Most failures are like
// one of these to the letter, and to find what is the same in two errors costs more
// than all else that is counted of them.
type groupCache struct {
	mu   sync.Mutex
	own  map[likeness]errorgroup.Group
	seed maphash.Seed
	// seen has the hashes of errors of new failures. The second one with an error
	// makes it kept, so that errors of which no two are the same are not.
	seen [8 * groupsCached]uint64
}

// likeness is what makes a group.
type likeness struct{ queue, reason, error, kind string }

const (
	groupsCached  = 1024
	longestCached = 512 // longer ones are not kept
)

// of is a record's own group; fails tells that this is a new failure.
func (c *groupCache) of(r *store.Record, fails bool) errorgroup.Group {
	if len(r.Error)+len(r.Message.Type) > longestCached {
		return r.Group()
	}
	l := likeness{r.Queue, r.Reason, r.Error, r.Message.Type}
	c.mu.Lock()
	own, known := c.own[l]
	c.mu.Unlock()
	if known {
		return own
	}
	own = r.Group()
	if !fails {
		return own
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		c.own, c.seed = map[likeness]errorgroup.Group{}, maphash.MakeSeed()
	}
	hash := maphash.String(c.seed, r.Error)
	if seen := &c.seen[hash%uint64(len(c.seen))]; *seen != hash {
		*seen = hash
		return own
	}
	if len(c.own) == groupsCached {
		clear(c.own)
	}
	// A record's strings are pieces of a large one, which these would keep.
	l = likeness{strings.Clone(l.queue), strings.Clone(l.reason), strings.Clone(l.error), strings.Clone(l.kind)}
	c.own[l] = errorgroup.Of(l.queue, l.reason, l.error, l.kind)
	return own
}
