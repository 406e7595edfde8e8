package store

import (
	"context"
	"time"
)

// Limits of one Change: keys, and bytes of bodies in memory.
const (
	MaxChange      = 1000
	MaxChangeBytes = 64 << 20
)

type Changer interface {
	// Change passes each record to edit and applies the Edit that it returns, all in one
	// step that survives a crash. On an error nothing is changed.
	//
	//   - edit is called with nil for a record that is claimed, not stored, or whose key is
	//     already earlier in keys. For an unreadable record it is called with a record that
	//     has Unreadable alone, and its Edit is ignored.
	//   - edit may change its record, except the ID and the shared parts of its Message:
	//     it replaces Body and Headers, and never writes into them.
	//   - entries, when not nil, is called once, after all edits. The entries that it
	//     returns are written in the same step, so that an operation's progress always
	//     matches its work.
	//   - edit and entries must not change the store.
	//   - At most MaxChange keys are changed, and MaxChangeBytes of bodies: with larger
	//     bodies, fewer records. n returns how many of keys were, from the first on; entries
	//     is called with it.
	//   - ErrFull when there is no room. Adding records needs as much room as Add;
	//     changing them may use half of the reserve, and deleting them all of it.
	//   - A server's answer may be lost. Change then returns an error though all may have
	//     been changed: read an entry that entries has written to find out. Entry answers
	//     only once the change is done or can no longer happen.
	Change(
		ctx context.Context, keys []Key, edit func(Key, *Record) Edit, entries func(n int) []Entry,
	) (n int, err error)

	SideTable

	// NewestNumber returns the number of the newest key, for Range.Upto. A record that is added meanwhile is either
	// stored and within the bound when it returns, or above the bound.
	NewestNumber(ctx context.Context) (uint64, error)

	// Forget deletes discarded records that can no longer be restored (Due ≤ now), in
	// durable batches. It returns how many, also with an error.
	Forget(ctx context.Context, now time.Time) (int, error)
}

// SideTable holds what belongs to messages but is not one, as entries.
type SideTable interface {
	EntryReader
	// PutEntries writes entries durably, all or none. A nil Value deletes. It returns ErrFull when there is no room. It
	// may use a quarter of the reserve, so that an operation that frees room can start; 4 KiB may always be written, so
	// that one can be paused.
	PutEntries(ctx context.Context, entries []Entry) error
	// DeleteEntries deletes all entries whose names begin with prefix, in one step.
	DeleteEntries(ctx context.Context, prefix string) error
}

type EntryReader interface {
	// Entry returns a value of the side table; nil when there is none.
	Entry(ctx context.Context, name string) ([]byte, error)
	// Entries visits the entries whose names begin with prefix and come after after, in
	// the order of names. It sees one moment, except in an engine that several processes
	// share, where it may see some of what is written meanwhile.
	Entries(ctx context.Context, prefix, after string, visit func(Entry) (more bool, err error)) error
}

// Edit is what Change does with a record.
type Edit struct {
	// Keep stores the record as edit left it. Delete deletes it. With neither it stays as it
	// was; with both, Keep applies.
	Keep, Delete bool
	// Forwarded, with Delete, is when RabbitMQ confirmed the message where a person sent it; zero: it is discarded for
	// good.
	Forwarded time.Time
	// Add are new records to store in the same step.
	Add []*Record
}

// Entry is a value of a store's side table: operations, pauses, notes, tokens. Names are paths
// such as "operation/<id>/outcome/000000000012".
type Entry struct {
	Name  string
	Value []byte
}

// PausePrefix + a queue's name is the entry of a person's pause of its retries. It is declared here because actions and
// scheduler share only the store.
const PausePrefix = "pause/"

// FollowPrefix + a queue's name is the entry of a dead-letter queue that a person has the service follow.
const FollowPrefix = "follow/"

// ExpiredPrefix + a queue's name is the entry that counts its parked messages discarded at the end of their
// retention.
const ExpiredPrefix = "expired/"

// BreakerPrefix + a queue's name is the entry of a circuit breaker that a person has set.
const BreakerPrefix = "breaker/"

// GroupStatePrefix + an error group's ID is the entry of the state that a person has set.
const GroupStatePrefix = "group-state/"

// OwnerEntry is the entry with the name of the messages' virtual host, which the first service
// that uses the store writes.
const OwnerEntry = "vhost"

// forgetStep is how many messages Forget deletes at a time: few, since others wait meanwhile.
const forgetStep = 256

func Forget(ctx context.Context, s interface {
	Scanner
	Changer
}, now time.Time) (n int, err error) {
	var keys []Key
	forget := func() error {
		for len(keys) > 0 {
			gone := 0
			taken, err := s.Change(ctx, keys, func(_ Key, r *Record) Edit {
				over := r != nil && r.State == Discarded && !r.Due.After(now)
				if over {
					gone++
				}
				return Edit{Delete: over}
			}, nil)
			if err != nil {
				return err
			}
			n, keys = n+gone, keys[taken:]
		}
		return nil
	}
	err = s.Scan(ctx, Range{State: Discarded, To: now.Add(time.Microsecond)}, func(l Listed) (bool, error) {
		if keys = append(keys, l.Key); len(keys) < forgetStep {
			return true, nil
		}
		return true, forget()
	})
	if err != nil {
		return n, err
	}
	return n, forget()
}
