package world

import (
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// observed is a Change under way: what a person asked for, or a step of an operation. The ledger has
// it from before anything can come of it; it is undone where the store does not do it.
type observed struct {
	ledger    *ledger
	heals     bool   // its messages are processed from then on
	operation string // "": a person's named messages
	changes   []recordChange
	undo      []func()
}

type recordChange struct {
	id      string // of the message in the world
	key     store.Key
	was, is store.State
	due     time.Time
	leaves  bool // it goes to a forward target, and not back to its queue
}

// observe returns a Change that the ledger enters.
func (l *ledger) observe(edit func(store.Key, *store.Record) store.Edit, entries func(int) []store.Entry) (*observed, func(store.Key, *store.Record) store.Edit, func(int) []store.Entry) {
	o := &observed{ledger: l}
	if entries == nil {
		o.heals = l.heals.Load()
	}
	edited := func(k store.Key, r *store.Record) store.Edit {
		if r == nil || r.Unreadable != nil {
			return edit(k, r)
		}
		c := recordChange{id: idIn(r.Message.Headers), key: k, was: r.State}
		e := edit(k, r)
		if c.is, c.due, c.leaves = r.State, r.Due, r.Forward != nil; e.Keep {
			o.changes = append(o.changes, c)
		}
		return e
	}
	return o, edited, func(n int) (all []store.Entry) {
		if entries != nil {
			all = entries(n)
		}
		for _, e := range all {
			if id, is := strings.CutSuffix(e.Name, "/progress"); is {
				o.operation = strings.TrimPrefix(id, "operation/")
			}
		}
		o.enter()
		return all
	}
}

func (o *observed) enter() {
	l := o.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range o.changes {
		of := l.accounts[c.id]
		if of == nil {
			l.touched[c.id] = true // a hostile one
			continue
		}
		discarded, restored := of.discarded, of.restored
		undo := func() {}
		if of.discarded, of.restored = c.is == store.Discarded, c.was == store.Discarded; c.is == store.Waiting {
			undo = of.replay(c.was, c.due, o.heals && !c.leaves)
		}
		o.undo = append(o.undo, func() {
			undo()
			of.discarded, of.restored = discarded, restored
		})
	}
}

// end enters whether it was done.
func (o *observed) end(done bool) {
	l := o.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if !done {
		for _, undo := range o.undo {
			undo()
		}
		return
	}
	if of := l.operations[o.operation]; of != nil {
		for _, c := range o.changes {
			of.changed[c.key]++
		}
	}
}

// leaveOpen enters that it is not known whether it is done: whatever becomes of its messages is right, as
// long as they are not lost.
func (o *observed) leaveOpen() {
	l := o.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range o.changes {
		l.unsure[c.id] = true
	}
}

// replay enters that a message is retried at due.
func (of *account) replay(was store.State, due time.Time, heals bool) (undo func()) {
	if was == store.Parked {
		next := newLife(due, of.life().fails)
		if heals {
			next.fails = 0
		}
		of.lives = append(of.lives, next)
		return func() { of.lives = of.lives[:len(of.lives)-1] }
	}
	life := of.life()
	fails, hastened := life.fails, life.hastened
	life.hastened = append(life.hastened, due)
	if heals {
		life.fails = 0
	}
	return func() { life.fails, life.hastened = fails, hastened }
}
