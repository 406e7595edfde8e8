package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

// An intent says what a Change over several shards is to do in each, and what its
// account is. Once it is durable, in the first shard, the change is committed: what is
// done of it is done once in each shard, by whoever comes to it, and its account is
// written last, with the intent's end. Before that the locks keep others away; a
// change without intent whose locks are over is forbidden to commit, and then undone
// by letting the locks go.

// intend commits a change over several shards, and does it.
func (c *change) intend(ctx context.Context, shards []int) error {
	s := c.s
	c.intent = map[int][]string{}
	for _, shard := range shards {
		c.intent[shard] = c.args(ctx, shard, false, nil)
	}
	c.account, _ = written(c.entries)
	if err := s.step("intend"); err != nil {
		return err
	}
	m, err := s.write(ctx, 0, scriptIntend, append(led(ctx), c.token, rueidis.BinaryString(appendIntent(c.intent, c.account)))...)
	if err != nil {
		return err // it may be committed: see resolve
	}
	switch n, err := m.AsInt64(); {
	case n < 0:
		return store.ErrDeposed
	case err != nil || n != 1:
		return errors.Join(errTooLong, err)
	}
	if err := s.fulfil(ctx, c.token, c.intent, c.account); err != nil {
		s.doubted(c) // nothing is changed, nor its account read, before it is finished
		s.Log.Warn("store: a change was committed, and could not be finished now; it will be", "error", err)
	}
	return nil
}

// fulfil does what an intent says.
func (s *Store) fulfil(ctx context.Context, token string, parts map[int][]string, account []string) error {
	var shards []int
	for shard := range parts {
		shards = append(shards, shard)
	}
	err := s.in(shards, func(shard int) error {
		if err := s.step("apply"); err != nil {
			return err
		}
		return s.apply(ctx, shard, parts[shard])
	})
	if err == nil {
		err = s.step("finish")
	}
	if err != nil {
		return err
	}
	_, err = s.write(ctx, 0, scriptFinish, append([]string{token}, account...)...)
	return err
}

// recover finishes what others have committed and left, and lets go what they had
// locked for what they did not commit.
func (s *Store) recover(ctx context.Context) error {
	if err := s.finish(ctx, s.Lease); err != nil {
		return err
	}
	return s.undo(ctx, "")
}

// succeed does that at once for a store whose process led and may have ended, so that
// who leads now finds all that it did, and nothing locked by it.
func (s *Store) succeed(ctx context.Context, name string) error {
	if err := s.finish(ctx, 0); err != nil {
		return err
	}
	return s.undo(ctx, name)
}

// finish does what was committed so long ago and is not done.
func (s *Store) finish(ctx context.Context, late time.Duration) error {
	for {
		list, err := texts(s.do(ctx, 0, scriptIntended, itoa(late.Milliseconds()), "1"))
		if err != nil || len(list) < 2 {
			return err
		}
		parts, account, err := readIntent(list[1])
		if err != nil {
			return s.failed(err)
		}
		if err := s.fulfil(ctx, list[0], parts, account); err != nil {
			return err
		}
		s.Log.Info("store: finished a change that a process had left half done", "change", list[0])
	}
}

// undo lets go what is locked by changes whose time is over, or by those of one store,
// and that are not committed.
func (s *Store) undo(ctx context.Context, of string) error {
	return s.each(func(shard int) error {
		list, err := texts(s.do(ctx, shard, scriptLocked, itoa(most), of))
		if err != nil || len(list) == 0 {
			return err
		}
		may := map[string]bool{} // by token
		var pairs []string
		for ; len(list) >= 2; list = list[2:] {
			number, token := list[0], list[1]
			if _, asked := may[token]; !asked {
				m, err := s.write(ctx, 0, scriptUndo, token, itoa(doneFor.Milliseconds()))
				if err != nil {
					return err
				}
				n, err := m.AsInt64()
				may[token] = err == nil && n == 1
			}
			if may[token] {
				pairs = append(pairs, number, token)
			}
		}
		if len(pairs) == 0 {
			return nil
		}
		s.signal()
		_, err = s.do(ctx, shard, scriptRelease, append([]string{itoa(len(pairs) / 2)}, pairs...)...)
		return err
	})
}

// certain tells that an error means that nothing was done.
func certain(err error) bool {
	var said *rueidis.RedisError
	return errors.As(err, &said)
}

// appendIntent makes bytes of lists: the account, and then each shard's part.
func appendIntent(parts map[int][]string, account []string) []byte {
	b := appendTexts(nil, account)
	for shard, args := range parts {
		b = appendTexts(binary.AppendUvarint(b, uint64(shard)), args)
	}
	return b
}

func appendTexts(b []byte, texts []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(texts)))
	for _, t := range texts {
		b = append(binary.AppendUvarint(b, uint64(len(t))), t...)
	}
	return b
}

var errIntent = errors.New("what a change is to do is cut short or damaged")

func readIntent(text string) (parts map[int][]string, account []string, err error) {
	b := []byte(text)
	if account, b, err = readTexts(b); err != nil {
		return nil, nil, err
	}
	parts = map[int][]string{}
	for len(b) > 0 {
		shard, size := binary.Uvarint(b)
		if size <= 0 {
			return nil, nil, errIntent
		}
		if parts[int(shard)], b, err = readTexts(b[size:]); err != nil {
			return nil, nil, err
		}
	}
	return parts, account, nil
}

func readTexts(b []byte) (texts []string, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)) {
		return nil, nil, errIntent
	}
	b = b[size:]
	for range n {
		length, size := binary.Uvarint(b)
		if size <= 0 || length > uint64(len(b)-size) {
			return nil, nil, errIntent
		}
		texts, b = append(texts, string(b[size:size+int(length)])), b[size+int(length):]
	}
	return texts, b, nil
}
