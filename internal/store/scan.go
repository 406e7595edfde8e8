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

// ErrCursor is returned for a Range.After that is no Cursor of that range.
var ErrCursor = errors.New("not the end of a page")

// Scanner searches kept messages. A search may take long while others write. It sees one
// moment, except in an engine that several processes share: there it visits once what is
// kept throughout, at most once what changes meanwhile, and nothing that was never there.
type Scanner interface {
	// Scan visits the records of a range in its order until visit returns false or an error, or ctx ends. Bodies are
	// left out unless the range asks for them. visit may keep the Listed and may call the store. The first visit comes
	// at once, whatever the range and the number of records (there is an index), except for waiting records of a group:
	// they are searched among their queue's.
	Scan(ctx context.Context, r Range, visit func(Listed) (more bool, err error)) error

	// Find returns the records with this id, with bodies, in the order they were added (several only after a crash, or
	// when a publisher forged an id); none is no error.
	Find(ctx context.Context, id uuid.UUID) ([]Listed, error)

	// Get returns one record with its body; ErrNotFound when it is no longer kept.
	Get(ctx context.Context, key Key) (Listed, error)
}

type Searcher interface {
	Scanner

	// Groups returns every group with a kept message or a failure within a day. Beyond GroupsKept groups, a failure
	// counts as one of its queue's other errors.
	Groups(ctx context.Context) ([]GroupCount, error)

	// GroupOf returns the group that a kept record counts in: its own, or its queue's
	// other errors.
	GroupOf(r *Record) errorgroup.ID

	// CountDue counts the waiting records of queues by Due: counts[i] are due before edges[i]
	// and not before edges[i-1], but at most limit. Edges ascend.
	CountDue(ctx context.Context, queues []string, edges []time.Time, limit int64) (counts []int64, err error)

	// PastFailures returns the earlier failures of a message and how each wait ended, oldest first. At least the newest
	// PastFailuresKept of all messages are known. History is not promised: a killed process may lose its last moment,
	// and a power cut about the last half minute. Records and counts of groups stay exact.
	PastFailures(ctx context.Context, id uuid.UUID) ([]PastFailure, error)

	// EachPastFailure visits the past failures of all messages, newest first.
	EachPastFailure(ctx context.Context, visit func(PastFailure) (more bool, err error)) error
}

// Range chooses records by what is indexed. Zero fields choose all.
type Range struct {
	State   State
	Without State
	// Queues and Groups: of any of these; nil: of all.
	Queues []string
	Groups []errorgroup.ID
	// From and To bound Due: From ≤ Due < To.
	From, To time.Time
	// NewestFirst orders by Due from the latest on, otherwise from the earliest on, over all queues together. Of
	// records with the same Due, the last added is the latest.
	NewestFirst bool
	// After continues after the record with this Cursor.
	After string
	Body  bool
	// Upto leaves out records added after NewestNumber returned this; nil: none. A record that is changed keeps its
	// number.
	Upto *uint64
}

func (r *Range) Of(s State) bool { return (r.State == 0 || r.State == s) && r.Without != s }

// Has reports whether the record with this number had been added by Upto.
func (r *Range) Has(seq uint64) bool { return r.Upto == nil || seq <= *r.Upto }

// PastFailuresKept is how many past failures a store keeps at least, the newest ones.
const PastFailuresKept = 200_000

type Ending uint8

// Endings. Their numbers are on disk.
const (
	EndedRetried   Ending = 1 // RabbitMQ confirmed it in its work queue
	EndedForwarded Ending = 2 // RabbitMQ confirmed it where its policy, or a person, sent it
	EndedDiscarded Ending = 3 // for good: its time to be restored is over
)

// PastFailure is a failure that is no longer kept, because the message was retried, forwarded, or discarded for good.
// It has no body and no headers.
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

func AppendPastFailure(b []byte, p PastFailure) []byte {
	b = append(append(b, byte(p.Ending)), p.ID[:]...)
	b = AppendTexts(b, p.Queue, p.Reason, p.Error, p.Policy)
	b = binary.AppendVarint(b, int64(p.Failures))
	for _, at := range [...]time.Time{p.FailedAt, p.Due, p.Ended} {
		b = binary.AppendVarint(b, at.UnixMicro())
	}
	return b
}

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

// FromMicros converts microseconds since 1970 to a time, and keeps the zero time.
func FromMicros(n int64) time.Time {
	if n == (time.Time{}).UnixMicro() {
		return time.Time{}
	}
	return time.UnixMicro(n)
}

type GroupCount struct {
	errorgroup.Group
	Waiting, Parked, Discarded int64
	First, Last                time.Time // failures, to the second
	// Hours counts failures in each of the last 24 hours, the current one last.
	Hours [24]int64
	Note  string // a person's
	// Error is Group.Everywhere before masks; package inspect fills it in.
	Error errorgroup.ID
	// Reasons are all reasons that its members ever failed for.
	Reasons Reasons
}

// GroupsKept is how many groups a store counts separately.
const GroupsKept = 10_000

// GroupFor returns the group in which a failure is counted: its own, or the other errors of its
// queue. A record must be removed from the group it was added to, which only its content
// tells. So once a queue has other errors, its new groups count there too until these are
// empty: a record is in its own group exactly when that group is known. inUse says that a known
// group counts something, room that one more group may be counted separately.
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

func GroupNotes(ctx context.Context, s EntryReader) (map[string]string, error) {
	notes := map[string]string{}
	return notes, s.Entries(ctx, "group/", "", func(e Entry) (bool, error) {
		if id, ok := strings.CutSuffix(strings.TrimPrefix(e.Name, "group/"), "/note"); ok {
			notes[id] = string(e.Value)
		}
		return true, nil
	})
}

func AppendGroup(b []byte, g errorgroup.Group) []byte {
	return AppendTexts(b, g.Queue, g.Reason, g.Pattern, g.Type)
}

func ReadGroup(id errorgroup.ID, b []byte) (errorgroup.Group, error) {
	g := errorgroup.Group{ID: id}
	if _, ok := ReadTexts(b, &g.Queue, &g.Reason, &g.Pattern, &g.Type); !ok {
		return g, fmt.Errorf("what the members of group %s share is damaged", id)
	}
	return g, nil
}
