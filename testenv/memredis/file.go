package memredis

import (
	"maps"
	"slices"
	"time"
)

// file is the append-only file. What is synced is what a crash leaves.
type file struct {
	base    *database // what the file begins with
	units   []unit    // and what was written since
	bytes   int       // of units
	synced  int       // how many of units are synced
	written int       // how many units were written in all
	changed chan struct{}
}

// unit is written as a whole or not at all: a command, or all commands of a script.
type unit struct {
	at       time.Time
	commands [][]string
}

// fileBytes is how long a file gets before it is rewritten.
const fileBytes = 32 << 20

func newFile() *file { return &file{base: newDatabase(), changed: make(chan struct{})} }

func (f *file) write(u unit) {
	f.units = append(f.units, u)
	f.written++
	for _, args := range u.commands {
		for _, arg := range args {
			f.bytes += len(arg)
		}
	}
}

// sync puts on disk what was written.
func (f *file) sync() {
	f.synced = len(f.units)
	close(f.changed)
	f.changed = make(chan struct{})
	if f.bytes > fileBytes {
		f.rewrite(f.synced)
		f.synced = 0
	}
}

// rewrite makes the first n units part of the base.
func (f *file) rewrite(n int) {
	for _, u := range f.units[:n] {
		f.base.now = u.at
		for _, args := range u.commands {
			c, _ := find(args)
			c.run(f.base, args)
		}
	}
	f.units, f.bytes = slices.Clone(f.units[n:]), 0
}

// syncedTo is how many units in all are on disk.
func (f *file) syncedTo() int { return f.written - (len(f.units) - f.synced) }

// afterCrash is what the file has after one.
func (f *file) afterCrash(survives func() bool) *database {
	n := f.synced
	for n < len(f.units) && survives() {
		n++
	}
	f.written -= len(f.units) - n
	f.rewrite(n)
	f.units, f.synced = nil, 0
	return f.base.clone()
}

// clone is a copy of all.
func (d *database) clone() *database {
	is := newDatabase()
	for key, e := range d.keys {
		same := *e
		if v, ok := e.value.(interface{ clone() any }); ok {
			same.value = v.clone()
		}
		is.keys[key] = &same
	}
	return is
}

func (h *hash) clone() any { return &hash{maps.Clone(h.fields)} }

func (l *list) clone() any { return &list{slices.Clone(l.values)} }

func (s *members) clone() any { return &members{maps.Clone(s.of)} }

func (z *sortedSet) clone() any { return &sortedSet{maps.Clone(z.scores), slices.Clone(z.order)} }

func (s *stream) clone() any { return &stream{slices.Clone(s.entries), s.last} }

// syncing syncs each second.
func (s *Server) syncing() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-s.end:
			return
		case <-tick.C:
			s.mu.Lock()
			s.file.sync()
			s.mu.Unlock()
		}
	}
}

// waitForDisk is WAITAOF: it waits until what a connection wrote is synced, or its time is over.
func (s *Server) waitForDisk(c *connection, a []string) answer {
	if len(a) != 3 {
		return failure("ERR wrong number of arguments for 'waitaof' command")
	}
	var timeout <-chan time.Time
	if ms := integer(a[2]); ms > 0 {
		timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		s.mu.Lock()
		synced, changed := s.file.syncedTo() >= c.wrote, s.file.changed
		s.mu.Unlock()
		if synced {
			return []any{int64(1), int64(0)}
		}
		select {
		case <-changed:
		case <-timeout:
			return []any{int64(0), int64(0)}
		case <-c.ended:
			return failure("ERR the connection has ended")
		}
	}
}
