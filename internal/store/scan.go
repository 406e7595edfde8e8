package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

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

// PastFailuresKept is how many of the newest past failures a store keeps at least.
const PastFailuresKept = 200_000

// Ending is how an attempt's wait ended.
type Ending uint8

// Endings. Their numbers are on disk.
const (
	EndedRetried   Ending = 1 // RabbitMQ confirmed it in its work queue
	EndedForwarded Ending = 2 // RabbitMQ confirmed it where its policy, or a person, sent it
	EndedDiscarded Ending = 3 // for good: its time to be restored is over
)

// PastFailure is one attempt of a message that has ended: a failure that is no longer kept, because
// the message was retried, forwarded, or discarded for good. It has no body and no headers.
type PastFailure struct {
	ID       uuid.UUID
	Queue    string
	Failures int
	Reason   string
	Error    string // its first 200 bytes or so
	Policy   string
	FailedAt time.Time
	Due      time.Time // when it was to be retried
	Ended    time.Time
	Ending   Ending
}

// pastError is how much of an error a past failure keeps.
const pastError = 200

// PastFailureOf returns what is kept of a record that ended.
func PastFailureOf(r *Record, ended time.Time, how Ending) PastFailure {
	p := PastFailure{ID: r.ID, Queue: r.Queue, Failures: r.Failures, Reason: r.Reason, Error: r.Error, Policy: r.Policy,
		FailedAt: r.FailedAt, Due: r.Due, Ended: ended, Ending: how}
	if len(p.Error) > pastError {
		end := pastError
		for end > pastError-utf8.UTFMax && !utf8.RuneStart(p.Error[end]) {
			end--
		}
		p.Error = p.Error[:end]
	}
	return p
}

// AppendPastFailure appends a past failure.
func AppendPastFailure(b []byte, p PastFailure) []byte {
	b = append(append(b, byte(p.Ending)), p.ID[:]...)
	b = AppendTexts(b, p.Queue, p.Reason, p.Error, p.Policy)
	b = binary.AppendVarint(b, int64(p.Failures))
	for _, at := range [...]time.Time{p.FailedAt, p.Due, p.Ended} {
		b = binary.AppendVarint(b, at.UnixMicro())
	}
	return b
}

// ReadPastFailure reads what AppendPastFailure wrote.
func ReadPastFailure(text string) (p PastFailure, err error) {
	d := &Decoder{data: []byte(text), text: text}
	p.Ending = Ending(d.Byte())
	copy(p.ID[:], d.take(len(p.ID)))
	for _, s := range [...]*string{&p.Queue, &p.Reason, &p.Error, &p.Policy} {
		*s = d.Text()
	}
	p.Failures = int(d.Varint())
	for _, at := range [...]*time.Time{&p.FailedAt, &p.Due, &p.Ended} {
		*at = FromMicros(d.Varint())
	}
	if d.torn {
		return p, fmt.Errorf("a past failure: %w", ErrTorn)
	}
	return p, nil
}

// FromMicros is the time of microseconds since 1970, and keeps the zero time.
func FromMicros(n int64) time.Time {
	if n == (time.Time{}).UnixMicro() {
		return time.Time{}
	}
	return time.UnixMicro(n)
}

// GroupCount is what is kept of one group.
type GroupCount struct {
	errorgroup.Group
	Waiting, Parked, Discarded int64
	First, Last                time.Time // when one of it failed, to within a minute
	// Hours is how many failed in each of the last 24 hours, the current one last.
	Hours [24]int64
	Note  string // a person's
	// Reasons are all that its members ever failed for.
	Reasons Reasons
}

// GroupsKept is how many groups a store counts apart.
const GroupsKept = 10_000

// GroupFor returns the group in which a failure is counted: its own, or the other errors of its
// queue. A record must be taken out of the very group it was put into, and
// nothing but its content tells which that was. So once a queue has other errors, its new
// groups count there too until that is empty: then a record is in its own group exactly when
// that is known. inUse tells whether a group that is known has something; room, whether one
// more may have counts of its own.
func GroupFor(own errorgroup.Group, find func(errorgroup.ID) (known, inUse bool), room bool) errorgroup.Group {
	if known, _ := find(own.ID); known {
		return own
	}
	other := errorgroup.Other(own.Queue, GroupsKept)
	if _, inUse := find(other.ID); inUse || !room {
		return other
	}
	return own
}

// GroupNotes are what people have noted of groups, by ID.
func GroupNotes(ctx context.Context, s Changer) (map[string]string, error) {
	notes := map[string]string{}
	return notes, s.Entries(ctx, "group/", "", func(e Entry) (bool, error) {
		if id, ok := strings.CutSuffix(strings.TrimPrefix(e.Name, "group/"), "/note"); ok {
			notes[id] = string(e.Value)
		}
		return true, nil
	})
}

// AppendGroup appends what the members of a group share, all but its ID.
func AppendGroup(b []byte, g errorgroup.Group) []byte {
	return AppendTexts(b, g.Queue, g.Reason, g.Pattern, g.Type)
}

// ReadGroup reads what AppendGroup wrote.
func ReadGroup(id errorgroup.ID, b []byte) (errorgroup.Group, error) {
	g := errorgroup.Group{ID: id}
	if _, ok := ReadTexts(b, &g.Queue, &g.Reason, &g.Pattern, &g.Type); !ok {
		return g, fmt.Errorf("what the members of group %s share is damaged", id)
	}
	return g, nil
}

// Minute is the time of a minute since 1970; 0 is the zero time.
func Minute(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(n*60, 0)
}
