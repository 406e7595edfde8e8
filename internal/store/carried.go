package store

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/errorgroup"
)

// A retried message is not kept, and its next failure is a new record. What people did to it before is in entries by
// its ID, since a publisher can forge whatever its headers say.
const (
	// madePrefix + an ID is the entry with its MadeFrom.
	madePrefix = "made/"
	// notedPrefix + an ID + "/" + the ID of an error group is the entry of a message that a person replayed while this
	// group had a note.
	notedPrefix = "noted/"
)

// carriedFor is how long those entries are kept after the message was last kept or written about.
const carriedFor = 30 * 24 * time.Hour

// Carry returns the entries from which the next failure of a record learns its MadeFrom and, if its group is noted,
// that.
func Carry(r *Record, noted bool, now time.Time) (all []Entry) {
	if r.MadeFrom != uuid.Nil {
		all = append(all, carried(madePrefix+r.ID.String(), now, append(r.MadeFrom[:], r.Queue...)))
	}
	if noted {
		all = append(all, carried(notedPrefix+r.ID.String()+"/"+r.Group().ID.String(), now, []byte(r.Queue)))
	}
	return all
}

func carried(name string, at time.Time, what []byte) Entry {
	return Entry{Name: name, Value: append(binary.BigEndian.AppendUint64(nil, uint64(at.Unix())), what...)}
}

// readCarried returns when an entry was written, and what; ok is false if it is damaged.
func readCarried(value []byte) (at time.Time, what []byte, ok bool) {
	if len(value) < 8 {
		return at, nil, false
	}
	return time.Unix(int64(binary.BigEndian.Uint64(value)), 0), value[8:], true
}

// CarriedMadeFrom returns the MadeFrom of earlier records of this message; uuid.Nil: none is known. Another queue's
// message with its ID is another.
func CarriedMadeFrom(ctx context.Context, s EntryReader, r *Record) (from uuid.UUID, err error) {
	value, err := s.Entry(ctx, madePrefix+r.ID.String())
	if _, what, ok := readCarried(value); ok && len(what) >= len(from) && string(what[len(from):]) == r.Queue {
		copy(from[:], what)
	}
	return from, err
}

// NotedGroups returns the groups of earlier records of this message that had a note when a person replayed them.
func NotedGroups(ctx context.Context, s EntryReader, r *Record) (groups []errorgroup.ID, err error) {
	prefix := notedPrefix + r.ID.String() + "/"
	return groups, s.Entries(ctx, prefix, "", func(e Entry) (bool, error) {
		group, err := errorgroup.Parse(strings.TrimPrefix(e.Name, prefix))
		if _, what, ok := readCarried(e.Value); ok && err == nil && string(what) == r.Queue {
			groups = append(groups, group)
		}
		return true, nil
	})
}

// ForgetCarried deletes the entries of Carry that are carriedFor old, and renews those of messages that are kept.
func ForgetCarried(ctx context.Context, s interface {
	Scanner
	SideTable
}, now time.Time) error {
	var old []Entry
	step := func() error {
		err := s.PutEntries(ctx, old)
		old = old[:0]
		return err
	}
	for _, prefix := range []string{madePrefix, notedPrefix} {
		err := s.Entries(ctx, prefix, "", func(e Entry) (bool, error) {
			at, what, ok := readCarried(e.Value)
			if ok && now.Sub(at) <= carriedFor {
				return true, nil
			}
			text, _, _ := strings.Cut(strings.TrimPrefix(e.Name, prefix), "/")
			id, err := uuid.Parse(text)
			if e.Value = nil; ok && err == nil {
				kept, err := s.Find(ctx, id)
				switch {
				case len(kept) > 0, errors.Is(err, ErrUnreadable):
					e = carried(e.Name, now, what)
				case err != nil:
					return false, err
				}
			}
			if old = append(old, e); len(old) < forgetStep {
				return true, nil
			}
			return true, step()
		})
		if err != nil {
			return err
		}
	}
	if len(old) == 0 {
		return nil
	}
	return step()
}
