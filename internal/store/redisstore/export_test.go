package redisstore

import (
	"context"
	"net"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
)

// Dial has a store connect by dial.
func (o *Options) Dial(dial func(ctx context.Context, addr string) (net.Conn, error)) { o.dial = dial }

// Renew renews the leases of what s has claimed, as it does now and then.
func (s *Store) Renew(ctx context.Context) error { return s.renew(ctx) }

// Recover finishes or undoes what others have left, as s does now and then.
func (s *Store) Recover(ctx context.Context) error { return s.recover(ctx) }

// Refresh reads the groups anew, as s does now and then.
func (s *Store) Refresh(ctx context.Context) error { return s.groups.refresh(ctx, s) }

// Steps has told told before each step of a Change over several shards; an error ends
// it there, as a crash would.
func (s *Store) Steps(told func(string) error) { s.step = told }

// Forgot makes s ask anew how much room there is.
func (s *Store) Forgot() {
	for i := range s.rooms {
		s.rooms[i].mu.Lock()
		s.rooms[i].at = s.rooms[i].at.AddDate(-1, 0, 0)
		s.rooms[i].mu.Unlock()
	}
}

var ErrUnconfirmed, ErrTooLong = errUnconfirmed, errTooLong

// Ungroup forgets groups as one does who looked at them when they had not failed since.
func (s *Store) Ungroup(ctx context.Context, since time.Time, groups ...string) error {
	return s.ungroup(ctx, since.Unix()/60, groups)
}

// TellsSyncs: the server of these options can tell when a write is on its disk.
func TellsSyncs(ctx context.Context, t interface{ Fatal(...any) }, o Options) bool {
	all, _, err := Survey(ctx, o)
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	return all[0].TellsSyncs()
}

// Generation is the largest that was confirmed of a shard.
func (s *Store) Generation(shard int) uint64 { return s.generation(shard) }

// WatchAtMost is how long a dead server may be unsaid.
const WatchAtMost = watchEvery + watchFor

// ForgetMost bounds how much of the ledger Forget reads each time, about; Forgetting is how
// much it has read.
func (s *Store) ForgetMost(n int) { s.forgetting.most = n }
func (s *Store) Forgetting() int  { return s.forgetting.read }

// AsFormat1 leaves a store as format 1 wrote it: records that go to a forward target of a
// queue are among those of the queue.
func (s *Store) AsFormat1(ctx context.Context, of store.Lane) error {
	for shard := range s.Shards {
		const script = `local P, lane, queue = KEYS[1]:sub(1, -4), ARGV[1], ARGV[2]
			local all = redis.call('ZRANGE', P .. 'w:' .. lane, 0, -1, 'WITHSCORES')
			for i = 1, #all, 2 do redis.call('ZADD', P .. 'w:' .. queue, all[i + 1], all[i]) end
			if #all > 0 then redis.call('SADD', P .. 'wq', queue) end
			redis.call('DEL', P .. 'w:' .. lane, P .. 'to:' .. queue)
			redis.call('SREM', P .. 'wq', lane)
			return 1`
		if err := s.client.Do(ctx, s.client.B().Eval().Script(script).Numkeys(1).Key(s.key(shard, "seq")).Arg(laneText(of), of.Queue).Build()).Error(); err != nil {
			return err
		}
	}
	return s.client.Do(ctx, s.client.B().Set().Key(s.key(0, "format")).Value("1 "+itoa(s.Shards)).Build()).Error()
}
