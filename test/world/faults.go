package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
)

// fault is what goes wrong at a time since the beginning.
type fault struct {
	at   time.Duration
	kind faultKind
	// which of the connections is cut, and behind how many more bytes in that direction.
	conn, bytes int
	down        bool // from RabbitMQ; otherwise to it
	// A crash: how long the process is away, and the chance in percent of each write that was
	// not synced to be on the disk.
	away     time.Duration
	survives int
	percent  int // of the calls of a store that is in trouble
	replica  int // the place of the process that it happens to, or theLeader
	point    point
	damage   damage
}

type faultKind int

const (
	cutService faultKind = iota
	cutConsumer
	stopAndStart
	crash
	fullDisk
	memoryAlarm // drawn apart, as those below
	storeTrouble
	losesStore
	damaged
)

func (k faultKind) String() string {
	return [...]string{"cut a connection of the service", "cut the consumers' connection", "stop and start", "crash", "the disk is full",
		"memory alarm", "the store is in trouble", "it loses the store", "the store is damaged"}[k]
}

func (f fault) String() string {
	whose := fmt.Sprint("replica ", f.replica)
	if f.replica == theLeader {
		whose = "the leader"
	}
	return fmt.Sprintf("%s: %s: %s%s for %s; connection %d behind %d bytes, from RabbitMQ: %t; %d%% of what is not synced survives; %d%% of calls; %s",
		f.at, whose, f.kind, f.point, f.away, f.conn, f.bytes, f.down, f.survives, f.percent, f.damage)
}

// fail makes a fault happen.
func (w *World) fail(f fault) error {
	w.say("%s", f)
	w.ledger.trouble()
	switch f.kind {
	case cutConsumer:
		f.cut(w.consumers, w.ledger.cut)
	case fullDisk:
		w.disk.full.Store(true)
		time.Sleep(f.away)
		w.disk.full.Store(false)
	case memoryAlarm:
		w.ledger.alarm(f.away)
		w.alarms.Add(1)
		w.broker.SetMemoryAlarm(true)
		w.old.Go(func() {
			if time.Sleep(f.away); w.alarms.Add(-1) == 0 {
				w.broker.SetMemoryAlarm(false)
			}
		})
	case storeTrouble:
		w.ledger.storeTrouble(f.away)
		w.trouble.begin(f.away, f.percent)
	default:
		if p := w.struck(f); p != nil {
			return w.strike(p, f)
		}
	}
	return nil
}

// cut cuts one of a process's connections.
func (f fault) cut(of *network, onCut func()) {
	if open := of.open(); len(open) > 0 {
		open[f.conn%len(open)].CutBehind(f.bytes, f.down, onCut)
	}
}

// footer is how long that of a table is.
const footer = 53

// damage is what happens to the disk, and what a person does about it.
type damage struct {
	file      string  // part of its name; "": any
	place     float64 // in all that is in such files
	fromEnd   int     // of the last of them, instead of place, where it is not 0
	bytes     int     // 1: one bit of it
	compacted bool    // the store was opened before, so that its logs are tables
	killed    bool    // the service; otherwise it was stopped
	accepts   bool    // that writes are missing; otherwise all that can be read is saved
}

func (d damage) String() string {
	return fmt.Sprintf("%d bytes of %q, %d from its end, a person accepts a loss: %t", d.bytes, d.file, d.fromEnd, d.accepts)
}

// contents are what a store has.
type contents struct {
	records map[store.Key]*store.Record
	entries map[string]string
	sums    [4]int64 // records by state
	off     int64    // of its ledger
	damage  map[string]string
}

func (w *World) contents(d *disk, o diskstore.Options) (c contents, err error) {
	o.FS, o.Log, o.Existing = d, w.service, true
	s, err := diskstore.Open(folder, o)
	if err != nil {
		return c, err
	}
	c = contents{records: map[store.Key]*store.Record{}, entries: map[string]string{}}
	ctx := context.Background()
	err = s.Scan(ctx, store.Range{Body: true}, func(l store.Listed) (bool, error) {
		c.records[l.Key] = l.Record
		c.sums[l.Record.State]++
		return true, nil
	})
	if err == nil {
		err = s.Entries(ctx, "", "", func(e store.Entry) (bool, error) {
			c.entries[e.Name] = string(e.Value)
			return true, nil
		})
	}
	lines, recounted := s.Recount(ctx)
	for i := range lines {
		c.off += lines[i].Off()
	}
	c.damage = s.Damage()
	return c, errors.Join(err, recounted, s.Close())
}

// damageStore damages the disk of a service that was stopped, and has a person repair it.
func (w *World) damageStore(f fault) error {
	if f.damage.compacted {
		if _, err := w.contents(w.disk, diskstore.Options{}); err != nil {
			return fmt.Errorf("reading the store: %w", err)
		}
	}
	before, err := w.contents(w.disk.afterCrash(100, w.random), diskstore.Options{})
	if err != nil {
		return fmt.Errorf("reading a copy of the store: %w", err)
	}
	where, err := w.disk.harm(f.damage)
	if err != nil {
		return err
	}
	w.say("%s is damaged", where)
	after, how, err := w.repair(f, before)
	if err != nil {
		return err
	}
	return w.compare(f, where, how, before, after)
}

// harm turns bits of a file, as if it was written and synced so, and says of which and where.
func (d *disk) harm(of damage) (where string, err error) {
	names, err := d.List(folder)
	slices.Sort(names)
	files, all := map[string][]byte{}, 0
	for _, name := range names {
		info, missing := d.Stat(d.PathJoin(folder, name))
		if missing != nil || info.IsDir() || name == "LOCK" || !strings.Contains(name, of.file) {
			continue
		}
		f, unreadable := d.Open(d.PathJoin(folder, name))
		if unreadable != nil {
			return "", unreadable
		}
		b, unread := io.ReadAll(f)
		files[name] = bytes.TrimRight(b, "\x00") // without the room that it was given
		all += len(files[name])
		err = errors.Join(err, unread, f.Close())
	}
	at := int(of.place * float64(all))
	if of.fromEnd > 0 {
		at = max(0, all-of.fromEnd)
	}
	for _, name := range names {
		if at >= len(files[name]) {
			at -= len(files[name])
			continue
		}
		part := files[name][at:min(at+of.bytes, len(files[name]))]
		for i := range part {
			part[i] ^= 1 << (at % 8)
		}
		f, unwritable := d.OpenReadWrite(d.PathJoin(folder, name), vfs.WriteCategoryUnspecified)
		if unwritable != nil {
			return "", unwritable
		}
		_, unwritten := f.WriteAt(part, int64(at))
		return fmt.Sprintf("%s at %d", name, at), errors.Join(err, unwritten, f.Sync(), f.Close())
	}
	return "nothing", err
}

// repair is what a person does until the store can be opened.
func (w *World) repair(f fault, before contents) (after contents, how string, err error) {
	o := diskstore.Options{}
	for range 3 {
		after, err = w.contents(w.disk, o)
		var lost *diskstore.LostError
		switch {
		case err == nil:
			if how == "" && len(after.damage) > 0 {
				how = "reported"
			}
			return after, how, nil
		case errors.As(err, &lost) && f.damage.accepts:
			how, o.AcceptLoss = "accepted", true
			if !f.damage.killed { // or it may have forgotten the last second
				for _, state := range []store.State{store.Waiting, store.Parked, store.Discarded} {
					if had, said := before.sums[state], lost.Promised[state]; said != had {
						w.broken(fmt.Errorf("the store had %d messages in state %d, and it is said that it had %d", had, state, said))
					}
				}
			}
		case errors.As(err, &lost), errors.Is(err, diskstore.ErrDamaged):
			how = "salvaged"
			if err := w.salvage(); err != nil {
				return after, how, err
			}
		default:
			return after, how, fmt.Errorf("the damaged store is not opened, and it is not said what to do: %w", err)
		}
		w.say("%s: %v", how, err)
	}
	return after, how, fmt.Errorf("the damaged store cannot be repaired: %w", err)
}

// salvage saves what can be read, and puts it in the place of the store.
func (w *World) salvage() error {
	saved := folder + ".saved"
	done, err := diskstore.Salvage(context.Background(), folder, saved, diskstore.Options{FS: w.disk, Log: w.service})
	if err != nil {
		return fmt.Errorf("salvaging: %w", err)
	}
	clear(w.harmed)
	w.say("%d messages are saved, %d of them loose; not read: %v", done.Messages, done.Loose, done.Unread)
	return errors.Join(w.disk.RemoveAll(folder), w.disk.Rename(saved, folder))
}

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
	defer lock(&l.mu)()
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
	defer lock(&l.mu)()
	for q := range l.attempts {
		name := store.PausePrefix + q.name
		_, is := after[name]
		if _, was := before[name]; was != is {
			if delete(l.pauses, q); is {
				l.pauses[q] = time.Now()
			}
		}
	}
}
