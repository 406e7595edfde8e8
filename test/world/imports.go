package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// drawImports has people export what is parked of a queue, give the messages other names, and import them.
func (s *scenario) drawImports(r *rand.Rand) {
	for range max(0, r.IntN(4)-2) {
		s.actions = append(s.actions, action{at: between(r, time.Minute, faultsEnd), verb: importing, queue: s.queues[r.IntN(len(s.queues))]})
	}
}

// exportedID is a message's name in the ledger, in a line of an export.
var exportedID = regexp.MustCompile(`("name":"` + idHeader + `","type":"\w+","value":")([^"]*)"`)

// importing is a person who exports messages and imports them under other names, as often as it takes.
func (w *World) importing(ctx context.Context, a action) error {
	var file bytes.Buffer
	err := w.repeat(func() error {
		file.Reset()
		_, err := w.used(a.replica).actions.Export(ctx, ann, fmt.Sprintf("queue:%s state:parked", a.queue.name), &file)
		return err
	})
	if err != nil {
		return err
	}
	var made []string
	lines := exportedID.ReplaceAllFunc(file.Bytes(), func(found []byte) []byte {
		parts := exportedID.FindSubmatch(found)
		id := w.ledger.imported(string(parts[2]))
		made = append(made, id)
		return fmt.Appendf(nil, "%s%s\"", parts[1], id)
	})
	w.say("%d messages are imported", len(made))
	err = w.repeat(func() error {
		_, err := w.used(a.replica).actions.Import(ctx, ann, bytes.NewReader(lines), false)
		return err
	})
	if errors.Is(err, store.ErrFull) {
		w.ledger.notImported(made)
	}
	return w.refused(err)
}

// imported enters a message that is imported as a copy of another, and returns its name. A hostile
// one has no account.
func (l *ledger) imported(id string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.accounts[id]
	if of == nil {
		return id
	}
	of.edits++
	m := of.message
	m.id = fmt.Sprintf("%s.%d", id, of.edits)
	l.accounts[m.id] = &account{message: m, lives: []*life{newLife(l.start, of.life().fails)}, restored: true}
	return m.id
}

func (l *ledger) notImported(ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		delete(l.accounts, id)
	}
}
