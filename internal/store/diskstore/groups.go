package diskstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/redrive-mq/redrive/internal/group"
	"github.com/redrive-mq/redrive/internal/store"
)

// groups is what is known of each group. It is all in memory, being bounded, and
// the same on disk: a key with what its members share, and one with its tally.
type groups struct {
	mu    sync.Mutex
	known map[group.ID]*groupState
	// others are those of the queues that had failures when there was no room.
	others map[string]*groupState
	swept  int64 // the hour in which old ones were last forgotten
}

type groupState struct {
	group.Group
	tally
	stored bool // what its members share is on disk
	users  int  // changes under way that count in it
}

func groupTallyKey(id group.ID) []byte { return append([]byte{prefixTally}, id[:]...) }
func groupNameKey(id group.ID) []byte  { return append([]byte{prefixShared}, id[:]...) }

// of is the group that a failure counts in. A record must be taken out of the very
// group it was put into, and nothing but its content tells which that was. So once
// a queue has others, its new groups count there too until that is empty: then a
// record is in its own group exactly when that is known. The caller holds mu.
func (g *groups) of(own func() group.Group, id group.ID, queue string) *groupState {
	if s := g.known[id]; s != nil {
		return s
	}
	if s := g.others[queue]; s != nil && (s.any() || s.users > 0) {
		return s
	}
	if len(g.known) < store.GroupsKept {
		s := &groupState{Group: own()}
		g.known[id] = s
		return s
	}
	if g.others[queue] == nil {
		g.others[queue] = &groupState{Group: group.Other(queue, store.GroupsKept)}
	}
	return g.others[queue]
}
