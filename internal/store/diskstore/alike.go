package diskstore

import (
	"strings"
	"sync"

	"github.com/redrive-mq/redrive/internal/group"
	"github.com/redrive-mq/redrive/internal/store"
)

// alike knows the groups of failures that were seen lately. Most failures are like
// one of these to the letter, and to find what is the same in two errors costs more
// than all else that is counted of them.
type alike struct {
	mu  sync.Mutex
	own map[likeness]group.Group
}

// likeness is what makes a group.
type likeness struct{ queue, reason, error, kind string }

const (
	alikeKept = 1024
	alikeLong = 512 // longer ones are not kept
)

// of is a record's own group.
func (a *alike) of(r *store.Record) group.Group {
	if len(r.Error)+len(r.Message.Type) > alikeLong {
		return r.Group()
	}
	l := likeness{r.Queue, r.Reason, r.Error, r.Message.Type}
	a.mu.Lock()
	own, known := a.own[l]
	a.mu.Unlock()
	if known {
		return own
	}
	// A record's strings are pieces of a large one, which these would keep.
	l = likeness{strings.Clone(l.queue), strings.Clone(l.reason), strings.Clone(l.error), strings.Clone(l.kind)}
	own = group.Of(l.queue, l.reason, l.error, l.kind)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.own == nil || len(a.own) == alikeKept {
		a.own = map[likeness]group.Group{}
	}
	a.own[l] = own
	return own
}
