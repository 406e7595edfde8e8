package memredis

import (
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
)

type hash struct{ fields map[string]string }

func newHash() *hash { return &hash{map[string]string{}} }

func (h *hash) size() int { return len(h.fields) }

func (h *hash) memory() (sum int) {
	for field, value := range h.fields {
		sum += partOverhead + len(field) + len(value)
	}
	return sum
}

// fieldsOf are the fields of the hash of a key, in order.
func fieldsOf(d *database, key string) (fields []string, of map[string]string) {
	h := read[*hash](d, key)
	if h == nil {
		return nil, nil
	}
	return slices.Sorted(maps.Keys(h.fields)), h.fields
}

func hget(d *database, a []string) answer {
	if h := read[*hash](d, a[0]); h != nil {
		if v, ok := h.fields[a[1]]; ok {
			return v
		}
	}
	return nil
}

func hmget(d *database, a []string) answer {
	all := make([]any, 0, len(a)-1)
	for _, field := range a[1:] {
		all = append(all, hget(d, []string{a[0], field}))
	}
	return all
}

func hexists(d *database, a []string) answer {
	if hget(d, a) == nil {
		return int64(0)
	}
	return int64(1)
}

func hset(d *database, a []string) answer {
	if len(a)%2 == 0 {
		return failure("ERR wrong number of arguments for 'hset' command")
	}
	h, added := open(d, a[0], newHash), int64(0)
	for i := 1; i < len(a); i += 2 {
		if _, ok := h.fields[a[i]]; !ok {
			added++
		}
		h.fields[a[i]] = a[i+1]
	}
	return added
}

func hsetnx(d *database, a []string) answer {
	if hget(d, a) != nil {
		return int64(0)
	}
	return hset(d, a)
}

func hdel(d *database, a []string) answer {
	h, deleted := read[*hash](d, a[0]), int64(0)
	if h == nil {
		return deleted
	}
	for _, field := range a[1:] {
		if _, ok := h.fields[field]; ok {
			deleted++
			delete(h.fields, field)
		}
	}
	d.deleteEmpty(a[0], h)
	return deleted
}

func hincrby(d *database, a []string) answer {
	h, by, n := open(d, a[0], newHash), integer(a[2]), 0
	if was, ok := h.fields[a[1]]; ok {
		n = integer(was)
	}
	h.fields[a[1]] = strconv.Itoa(n + by)
	return int64(n + by)
}

func hgetall(d *database, a []string) answer {
	all := pairs{}
	fields, of := fieldsOf(d, a[0])
	for _, field := range fields {
		all = append(all, field, of[field])
	}
	return all
}

// smallHash is the size up to which HSCAN returns a hash whole, whatever COUNT says.
const smallHash = 512

// hscan returns fields by a hash of their names, so that one that is there all the time is
// returned in each scan, as Redis promises.
func hscan(d *database, a []string) answer {
	cursor, err := strconv.ParseUint(a[1], 10, 64)
	if err != nil || len(a) != 4 || !isOption(a[2], "COUNT") {
		return syntaxError
	}
	place := func(field string) uint64 {
		h := fnv.New32a()
		_, _ = h.Write([]byte(field)) // it never fails
		return uint64(h.Sum32())
	}
	fields, of := fieldsOf(d, a[0])
	slices.SortStableFunc(fields, func(a, b string) int { return int(int64(place(a)) - int64(place(b))) })
	count := integer(a[3])
	if len(fields) <= smallHash {
		count = len(fields)
	}
	some, last := []any{}, uint64(0)
	for _, field := range fields {
		at := place(field)
		if at < cursor {
			continue
		}
		if len(some) >= 2*count && at != last {
			return []any{strconv.FormatUint(at, 10), some}
		}
		some, last = append(some, field, of[field]), at
	}
	return []any{"0", some}
}
