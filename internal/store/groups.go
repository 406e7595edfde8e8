package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/errorgroup"
)

// GroupCount is what is kept of one group.
type GroupCount struct {
	errorgroup.Group
	Waiting, Parked, Discarded int64
	First, Last                time.Time // when one of it failed, to the second
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

// Second is the time of a second since 1970; 0 is the zero time.
func Second(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(n, 0)
}

// Seconds is what is stored of a time in seconds since 1970. Earlier builds stored minutes, and no
// time of theirs is as large as any since 2001 in seconds.
func Seconds(n int64) int64 {
	if n < 1e9 {
		n *= 60
	}
	return n
}
