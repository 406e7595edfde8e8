package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

// smallEntries is how much of entries may be written when Redis is full.
const smallEntries = 4 << 10

const (
	entriesPage  = 500
	entriesBytes = 1 << 20
)

// Entry implements store.Changer.
func (s *Store) Entry(ctx context.Context, name string) ([]byte, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.resolveNow(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	value, err := s.client().Do(ctx, s.client().B().Hget().Key(s.key("e")).Field(name).Build()).ToString()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	if err != nil {
		return nil, s.wrapError(err)
	}
	return []byte(value), nil
}

// Entries implements store.Changer. Of what others write meanwhile it may see some.
func (s *Store) Entries(ctx context.Context, prefix, after string, visit func(store.Entry) (bool, error)) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	from, to := names(prefix)
	if after != "" && after >= prefix {
		from = "(" + after
	}
	for {
		list, err := texts(s.do(ctx, scriptEntries, from, to, itoa(entriesPage), itoa(entriesBytes)))
		if err != nil || len(list) == 0 {
			return err
		}
		for ; len(list) >= 2; list = list[2:] {
			if err := ctx.Err(); err != nil {
				return err
			}
			more, err := visit(store.Entry{Name: list[0], Value: []byte(list[1])})
			if err != nil || !more {
				return err
			}
			from = "(" + list[0]
		}
	}
}

// names is the range of names with a prefix, as ZRANGE BYLEX has it.
func names(prefix string) (from, to string) {
	end := prefix
	for strings.HasSuffix(end, "\xff") { // TrimRight takes each byte that is no UTF-8 for one
		end = end[:len(end)-1]
	}
	if end == "" {
		return "[" + prefix, "+"
	}
	return "[" + prefix, "(" + end[:len(end)-1] + string([]byte{end[len(end)-1] + 1})
}

// PutEntries implements store.Changer.
func (s *Store) PutEntries(ctx context.Context, entries []store.Entry) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	args, size := written(entries)
	if size > smallEntries {
		if err := s.checkMemory(ctx, size, 0.75); err != nil {
			return err
		}
	}
	return refuseDeposed(s.write(ctx, scriptWrite, append(termArgs(ctx), args...)...))
}

// written are the arguments of write in lua/records.lua.
func written(entries []store.Entry) (args []string, size int) {
	args = append(make([]string, 0, 1+3*len(entries)), itoa(len(entries)))
	for _, e := range entries {
		args = append(args, e.Name, flag(e.Value != nil), rueidis.BinaryString(e.Value))
		size += 2*len(e.Name) + len(e.Value)
	}
	return args, size
}

// DeleteEntries implements store.Changer.
func (s *Store) DeleteEntries(ctx context.Context, prefix string) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	from, to := names(prefix)
	return refuseDeposed(s.write(ctx, scriptForget, append(termArgs(ctx), from, to)...))
}

// termArgs are the arguments of deposed in lua/store.lua.
func termArgs(ctx context.Context) []string {
	what, term, _ := store.TermOf(ctx)
	return []string{what, strconv.FormatUint(term, 10)}
}

// refuseDeposed returns the result of a script that only the leader can run.
func refuseDeposed(m rueidis.RedisMessage, err error) error {
	if err != nil {
		return err
	}
	if n, err := m.AsInt64(); err != nil || n != 1 {
		return errors.Join(store.ErrDeposed, err)
	}
	return nil
}
