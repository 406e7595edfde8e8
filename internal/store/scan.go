package store

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
)

// ErrCursor is the error of a Range.After that no Scan of that range returned.
var ErrCursor = errors.New("not the end of a page")

// Scanner searches kept messages. That changes nothing, and may go on
// for long while others write. It sees one moment in time, except in an engine that
// several processes share: there it visits once what is kept all the while, at most
// once what is changed meanwhile, and nothing that was never there.
type Scanner interface {
	// Scan visits the records of a range in its order until visit says that it has
	// enough, visit fails, or ctx ends. Bodies are left out but where the range wants them. The
	// Listed is visit's to keep, and visit may call the store. The first visit comes
	// at once, whatever the range and the number of records (an index leads to it),
	// but for waiting records of a group: they are searched among their queue's.
	Scan(ctx context.Context, r Range, visit func(Listed) (more bool, err error)) error

	// Find is the records with this id in the order they were added (several only
	// after a crash, or where a publisher forged one), with bodies; none is no error.
	Find(ctx context.Context, id uuid.UUID) ([]Listed, error)

	// Get is one record with its body; ErrNotFound when it is not kept any more.
	Get(ctx context.Context, key Key) (Listed, error)
}

// Searcher reads and searches messages.
type Searcher interface {
	Scanner

	// Groups returns every group with a message that is kept, or a failure within a day. Beyond
	// GroupsKept of them a failure counts as one of its queue's other errors.
	Groups(ctx context.Context) ([]GroupCount, error)

	// GroupOf is the group that a kept record counts in: its own, or its queue's
	// other errors.
	GroupOf(r *Record) errorgroup.ID

	// CountDue counts the waiting records of queues by when they are due: counts[i] are
	// due before edges[i], and not before the edge in front of it; but no count is larger than
	// most. Edges ascend.
	CountDue(ctx context.Context, queues []string, edges []time.Time, most int64) (counts []int64, err error)

	// PastFailures returns the earlier failures of a message and how each wait ended, oldest
	// first. At least the newest PastFailuresKept of all messages are known. This is history, and
	// no promise: a killed process may leave out its last moment, and a power cut the last half
	// minute or so. What is kept, and how many of each group, stays exact.
	PastFailures(ctx context.Context, id uuid.UUID) ([]PastFailure, error)

	// EachPastFailure visits the past failures of all messages, newest first.
	EachPastFailure(ctx context.Context, visit func(PastFailure) (more bool, err error)) error
}

// Range chooses records by what is indexed. Zero fields choose all.
type Range struct {
	State State
	// Queues and Groups: of any of these; nil: of all.
	Queues []string
	Groups []errorgroup.ID
	// From and To bound Due: From ≤ Due < To.
	From, To time.Time
	// NewestFirst orders by Due from the latest on, else from the earliest on;
	// over all queues together. Of equal ones the last added is the latest.
	NewestFirst bool
	// After goes on behind a record that was visited: the Cursor of it.
	After string
	Body  bool
	// Upto leaves out what was added after NewestNumber returned this; nil: nothing is
	// left out. A record that is changed keeps its number.
	Upto *uint64
}

// Has tells whether the record with this number had been added by Upto.
func (r *Range) Has(seq uint64) bool { return r.Upto == nil || seq <= *r.Upto }
