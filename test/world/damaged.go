package world

import (
	"fmt"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// compare enters what a damaged store has lost. Nothing may be lost of which nothing was said.
func (w *World) compare(f fault, where, how string, before, after contents) error {
	var missing, changed []*store.Record
	added := 0
	for key, was := range before.records {
		is := after.records[key]
		switch {
		case is == nil:
			missing = append(missing, was)
		case is.State != was.State || is.Failures != was.Failures || !is.Due.Equal(was.Due):
			changed = append(changed, was)
		}
	}
	for key, is := range after.records {
		if before.records[key] == nil {
			changed = append(changed, is) // its end is lost
			added++
		}
	}
	w.say("%s: %d of %d messages are lost, and %d are as they were before", how, len(missing), len(before.records), len(changed))
	file, _, _ := strings.Cut(where, " ")
	defer func() { w.harmed[file] = true }() // two bits of one block are not turned back
	switch {
	case how == "" && len(missing)+len(changed) > 0:
		return fmt.Errorf("damage to %s: nothing was said, and %d messages are lost, %d changed", where, len(missing), len(changed))
	case f.damage.bytes == 1 && strings.HasSuffix(file, ".sst") && !w.harmed[file] && len(missing)+len(changed) > 0:
		return fmt.Errorf("one flipped bit of %s: %d messages are lost, %d changed", where, len(missing), len(changed))
	case how == "reported" && after.off != 0 && after.off-before.off != int64(len(missing)-added): // 0: it is lost too, and begins again
		return fmt.Errorf("damage to %s: %d messages are lost, %d are there again, and the ledger is off by %d instead of %d", where, len(missing), added, after.off, before.off)
	}
	w.ledger.damaged(missing, changed, after.off)
	w.ledger.readEntries(before.entries, after.entries)
	return nil
}

// damaged enters which messages the store has lost, which it has as they were before, and by how
// many its ledger is off.
func (l *ledger) damaged(missing, changed []*store.Record, off int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range missing {
		id := idIn(r.Message.Headers)
		if a := l.accounts[id]; a != nil {
			a.mayBeLost = true
		}
		l.unsure[id] = true
	}
	for _, r := range changed {
		l.unsure[idIn(r.Message.Headers)] = true
	}
	l.off = off
}

// readEntries takes what people have set from the store, where that has lost some.
func (l *ledger) readEntries(before, after map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for q := range l.attempts {
		name := store.PausePrefix + q.name
		_, is := after[name]
		if _, was := before[name]; was != is {
			if delete(l.pauses, q); is {
				l.pauses[q] = time.Now()
			}
		}
	}
	for id := range l.operations {
		for _, all := range []map[string]string{before, after} {
			for name, value := range all {
				if strings.Contains(name, id) && (before[name] != value || after[name] != value) {
					delete(l.operations, id)
				}
			}
		}
	}
}
