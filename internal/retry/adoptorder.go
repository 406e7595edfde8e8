package retry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// AdoptOrder is a queue that is to be adopted. The replica that leads carries it out; whoever gives it
// shares only the store with that.
type AdoptOrder struct {
	Queue  string    `json:"queue"`
	Preset string    `json:"preset,omitempty"` // Adoption.Framework
	Follow bool      `json:"follow,omitempty"` // it goes on when the queue is empty
	Rate   float64   `json:"rate,omitempty"`   // messages a second; 0: unlimited
	By     string    `json:"by"`
	Since  time.Time `json:"since"`
}

// AdoptState is how an order is carried out.
type AdoptState struct {
	Since   time.Time `json:"since"` // of the order
	Left    int       `json:"left"`  // in the queue, lately
	Ended   time.Time `json:"ended,omitzero"`
	Problem string    `json:"problem,omitempty"`
}

// AdoptProgress is how many messages were adopted for an order. It is stored in the same step as the
// messages.
type AdoptProgress struct {
	Since time.Time `json:"since"` // of the order
	Count int64     `json:"count"`
	Last  time.Time `json:"last,omitzero"`
}

// Each + a queue's name is an entry of the store's side table.
const (
	adoptOrderEntry    = adoptPrefix + "order/"
	adoptStateEntry    = adoptPrefix + "state/"
	adoptProgressEntry = adoptPrefix + "progress/"
)

// AdoptStatus is an order and what became of it.
type AdoptStatus struct {
	Order    AdoptOrder
	State    AdoptState
	Progress AdoptProgress
}

// Adoptions returns all orders, by queue.
func Adoptions(ctx context.Context, s store.SideTable) (map[string]AdoptStatus, error) {
	all := map[string]AdoptStatus{}
	err := s.Entries(ctx, adoptOrderEntry, "", func(e store.Entry) (bool, error) {
		var a AdoptStatus
		if err := json.Unmarshal(e.Value, &a.Order); err != nil {
			return false, fmt.Errorf("the adoption of %q: %w", strings.TrimPrefix(e.Name, adoptOrderEntry), err)
		}
		all[a.Order.Queue] = a
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	for _, queue := range slices.Sorted(maps.Keys(all)) {
		a := all[queue]
		if err := errors.Join(readEntry(ctx, s, adoptStateEntry+queue, &a.State), readEntry(ctx, s, adoptProgressEntry+queue, &a.Progress)); err != nil {
			return nil, err
		}
		if !a.State.Since.Equal(a.Order.Since) {
			a.State = AdoptState{}
		}
		if !a.Progress.Since.Equal(a.Order.Since) {
			a.Progress = AdoptProgress{}
		}
		all[queue] = a
	}
	return all, nil
}

// OrderAdoption stores an order, in place of one for the same queue.
func OrderAdoption(ctx context.Context, s store.SideTable, o AdoptOrder) error {
	value, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return s.PutEntries(ctx, []store.Entry{{Name: adoptOrderEntry + o.Queue, Value: value}})
}

// EndAdoption removes an order. It is over once AdoptionEnded says so.
func EndAdoption(ctx context.Context, s store.SideTable, queue string) error {
	return s.PutEntries(ctx, []store.Entry{{Name: adoptOrderEntry + queue}})
}

// AdoptionEnded tells whether an order that was removed is no longer carried out.
func AdoptionEnded(ctx context.Context, s store.SideTable, queue string) (bool, error) {
	state, err := s.Entry(ctx, adoptStateEntry+queue)
	return err == nil && state == nil, err
}

// NoteAdoption stores the state of an order; nil: it is over, and was removed.
func NoteAdoption(ctx context.Context, s store.SideTable, queue string, state *AdoptState) error {
	e := store.Entry{Name: adoptStateEntry + queue}
	if state != nil {
		var err error
		if e.Value, err = json.Marshal(state); err != nil {
			return err
		}
	}
	return s.PutEntries(ctx, []store.Entry{e})
}

func readEntry(ctx context.Context, s store.SideTable, name string, into any) error {
	value, err := s.Entry(ctx, name)
	if err == nil && value != nil {
		err = json.Unmarshal(value, into)
	}
	if err != nil {
		return fmt.Errorf("entry %q of the store: %w", name, err)
	}
	return nil
}
