package memredis

import (
	"strconv"
	"strings"
	"time"
)

// database has the keys. Its time stands still while a command or a script is done.
type database struct {
	keys map[string]*entry
	now  time.Time
}

// entry is a value, and when it expires; the zero time: never.
type entry struct {
	value   any // a string, or a pointer to a hash, list, set, sortedSet or stream
	expires time.Time
}

func newDatabase() *database { return &database{keys: map[string]*entry{}} }

const wrongType = failure("WRONGTYPE Operation against a key holding the wrong kind of value")

// find is the entry of a key; nil when there is none, or its time is over.
func (d *database) find(key string) *entry {
	e := d.keys[key]
	if e != nil && !e.expires.IsZero() && !d.now.Before(e.expires) {
		delete(d.keys, key)
		return nil
	}
	return e
}

// read is the value of a key; the zero value when there is none.
func read[T any](d *database, key string) (v T) {
	e := d.find(key)
	if e == nil {
		return v
	}
	v, ok := e.value.(T)
	if !ok {
		panic(wrongType)
	}
	return v
}

// open is the value of a key, which empty makes when there is none.
func open[T any](d *database, key string, empty func() T) T {
	if d.find(key) == nil {
		d.keys[key] = &entry{value: empty()}
	}
	return read[T](d, key)
}

// sized is a value that is not kept once it is empty.
type sized interface{ size() int }

func (d *database) deleteEmpty(key string, v sized) {
	if v.size() == 0 {
		delete(d.keys, key)
	}
}

// Each key, and each part of its value, takes about so much memory besides its bytes.
const (
	keyOverhead  = 72
	partOverhead = 40
	baseMemory   = 1 << 20
)

// memory is about what it takes.
func (d *database) memory() int {
	sum := baseMemory
	for key, e := range d.keys {
		sum += keyOverhead + len(key)
		switch v := e.value.(type) {
		case string:
			sum += len(v)
		case interface{ memory() int }:
			sum += v.memory()
		}
	}
	return sum
}

func integer(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(failure("ERR value is not an integer or out of range"))
	}
	return n
}

func float(text string) float64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != f {
		panic(failure("ERR value is not a valid float"))
	}
	return f
}

// floatText is a score as Redis writes it.
func floatText(f float64) string {
	if f == float64(int64(f)) && f < 1e17 && f > -1e17 {
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', 17, 64)
}

// between are the elements from start to stop, both included and counted from the end where they
// are negative, of n: from is where they begin and to the first behind them.
func between(start, stop, n int) (from, to int) {
	if start < 0 {
		start += n
	}
	if stop < 0 {
		stop += n
	}
	from, to = max(start, 0), min(stop+1, n)
	if from >= to {
		return 0, 0
	}
	return from, to
}

var syntaxError = failure("ERR syntax error")

func isOption(arg, name string) bool { return strings.EqualFold(arg, name) }
