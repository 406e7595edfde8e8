package redisstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/redrive-mq/redrive/internal/store"
)

// Claim implements store.Store. Several shards are looked at first, in one round trip,
// to choose the earliest of all; then each hands out its share.
func (s *Store) Claim(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int) ([]store.Claim, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var claims []store.Claim
	for len(claims) < n {
		shares, all, err := s.shares(ctx, lane, upTo, n-len(claims), maxBytes, len(claims) == 0)
		var some []store.Claim
		if err == nil {
			some, err = s.claim(ctx, lane, upTo, shares)
		}
		if err != nil && len(claims) > 0 {
			break // no one would settle what is claimed already
		}
		if err != nil {
			return nil, err
		}
		claims = append(claims, some...)
		for _, c := range some {
			maxBytes -= len(c.Record.Message.Body)
		}
		if all || len(some) < asked(shares) {
			break
		}
	}
	return claims, nil
}

// share is how many records, and how much of bodies, are to be claimed in a shard.
type share struct {
	shard, n, bytes int
	larger          bool // the first one may be larger than that
}

func asked(shares []share) (n int) {
	for _, p := range shares {
		n += p.n
	}
	return n
}

// due is a record that may be claimed.
type due struct {
	at           int64
	seq          uint64
	shard, bytes int
}

// shares chooses how many of the n earliest records each shard has; all tells that
// there are no more to choose from.
func (s *Store) shares(ctx context.Context, lane store.Lane, upTo time.Time, n, maxBytes int, larger bool) (shares []share, all bool, err error) {
	if s.Shards == 1 {
		return []share{{0, min(n, most), maxBytes, larger}}, n <= most, nil
	}
	// Most shards have about as many, so each is asked for some more than its part.
	each := min(most, n, 2*n/s.Shards+8)
	heads := make([][]due, s.Shards)
	err = s.each(func(shard int) error {
		list, err := texts(s.do(ctx, shard, scriptPeek, laneText(lane), itoa(upTo.UnixMicro()), itoa(each)))
		for i := 0; i+2 < len(list); i += 3 {
			heads[shard] = append(heads[shard], due{score(list[i]), s.seq(shard, number(list[i+1])), shard, int(number(list[i+2]))})
		}
		return err
	})
	if err != nil {
		return nil, false, err
	}
	by := make([]share, s.Shards)
	left := make([]int, s.Shards)
	for shard := range heads {
		by[shard].shard, left[shard] = shard, len(heads[shard])
	}
	found := slices.Concat(heads...)
	slices.SortFunc(found, func(a, b due) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
	all = true
	for i, d := range found {
		if i == n || d.bytes > maxBytes && (i > 0 || !larger) {
			break
		}
		maxBytes -= d.bytes
		by[d.shard].n++
		by[d.shard].bytes += d.bytes
		if left[d.shard]--; left[d.shard] == 0 && len(heads[d.shard]) == each && i+1 < n {
			all = false // what comes next may be its
			break
		}
	}
	return slices.DeleteFunc(by, func(p share) bool { return p.n == 0 }), all, nil
}

// claim claims shares.
func (s *Store) claim(ctx context.Context, lane store.Lane, upTo time.Time, shares []share) ([]store.Claim, error) {
	type claimed struct {
		store.Claim
		seq uint64
	}
	var mu sync.Mutex
	var found []claimed
	byShard, shards := map[int]share{}, []int(nil)
	for _, p := range shares {
		byShard[p.shard], shards = p, append(shards, p.shard)
	}
	if len(shards) == 0 {
		return nil, nil
	}
	err := s.in(shards, func(shard int) error {
		p, token, larger := byShard[shard], s.token(), "0"
		if p.larger {
			larger = "1"
		}
		list, err := texts(s.do(ctx, shard, scriptClaim, laneText(lane), itoa(upTo.UnixMicro()), itoa(p.n), itoa(p.bytes), larger, token, itoa(s.Lease.Milliseconds())))
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for i := 0; i+1 < len(list); i += 2 {
			n := number(list[i])
			r, _, err := decode(list[i+1], true)
			if err != nil {
				s.Log.Error("store: a message is damaged, and kept out of the way", "error", s.damaged(shard, n, err))
				continue
			}
			s.claims.take(shard, n, token)
			seq := s.seq(shard, n)
			found = append(found, claimed{store.Claim{Key: store.MakeKey(r.ID, seq), Token: token, Record: r}, seq})
		}
		return nil
	})
	slices.SortFunc(found, func(a, b claimed) int {
		return cmp.Or(a.Record.Due.Compare(b.Record.Due), cmp.Compare(a.seq, b.seq))
	})
	claims := make([]store.Claim, len(found))
	for i := range found {
		claims[i] = found[i].Claim
	}
	if err != nil && len(claims) > 0 {
		return nil, errors.Join(err, s.Release(ctx, claims))
	}
	return claims, err
}

var errGone = errors.New("there is no record")

// decode reads a record that is kept under its group.
func decode(value string, body bool) (*store.Record, groupID, error) {
	if len(value) < groupSize {
		return nil, groupID{}, errGone
	}
	r, _, err := store.DecodeRecord([]byte(value[groupSize:]), body)
	return r, groupID([]byte(value[:groupSize])), err
}

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, outcomes []store.Outcome) (int, error) {
	done, err := s.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	by := make([][]outcome, s.Shards)
	for _, o := range outcomes {
		if _, seq, ok := o.Claim.Key.Parts(); ok {
			shard, number := s.parts(seq)
			by[shard] = append(by[shard], outcome{o, number, s.stamped()})
		}
	}
	s.claims.ending.RLock()
	defer s.claims.ending.RUnlock()
	var mu sync.Mutex
	settled := 0
	err = s.each(func(shard int) error {
		for some := range slices.Chunk(by[shard], most) {
			n, err := s.settle(ctx, shard, some)
			if err != nil {
				return err
			}
			mu.Lock()
			settled += n
			mu.Unlock()
		}
		return nil
	})
	return settled, err
}

// outcome is one of a record with this number; the stamps of all are in their order.
type outcome struct {
	store.Outcome
	number, stamp uint64
}

// settle ends claims of a shard.
func (s *Store) settle(ctx context.Context, shard int, outcomes []outcome) (int, error) {
	args := append(make([]string, 0, 2+5*len(outcomes)), s.pastKept(), itoa(len(outcomes)))
	for _, o := range outcomes {
		r := o.Claim.Record
		args = append(args, member(o.number), o.Claim.Token)
		switch {
		case o.Park != "":
			parked := *r
			parked.State, parked.ParkedFor, parked.Due = store.Parked, o.Park, o.At
			v, err := store.AppendRecord(nil, &parked)
			if err != nil {
				return 0, err
			}
			args = append(args, "p", micros(&parked), rueidis.BinaryString(v[:len(v)-len(r.Message.Body)]))
		case r.Forward != nil:
			args = append(args, "f", passage(r, o.At, store.EndedForwarded, o.stamp))
		default:
			args = append(args, "r", passage(r, o.At, store.EndedReturned, o.stamp))
		}
	}
	m, err := s.write(ctx, shard, scriptSettle, args...)
	if err != nil {
		return 0, err
	}
	for _, o := range outcomes {
		s.ended(o.Claim)
	}
	n, err := m.AsInt64()
	return int(n), err
}

// ended forgets a claim of this process.
func (s *Store) ended(c store.Claim) {
	_, seq, _ := c.Key.Parts()
	shard, n := s.parts(seq)
	s.claims.end(loan{shard, n}, c.Token)
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, claims []store.Claim) error {
	done, err := s.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	s.claims.ending.RLock()
	defer s.claims.ending.RUnlock()
	by := make([][]string, s.Shards)
	for _, c := range claims {
		if _, seq, ok := c.Key.Parts(); ok {
			shard, n := s.parts(seq)
			by[shard] = append(by[shard], member(n), c.Token)
		}
	}
	err = s.pairs(by, func(shard int, pairs []string) error {
		_, err := s.do(ctx, shard, scriptRelease, append([]string{itoa(len(pairs) / 2)}, pairs...)...)
		return err
	})
	if err != nil {
		return err
	}
	for _, c := range claims {
		s.ended(c)
	}
	s.signal()
	return nil
}

// Next implements store.Store.
func (s *Store) Next(ctx context.Context) ([]store.NextDue, error) {
	done, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var mu sync.Mutex
	first := map[string]int64{}
	err = s.each(func(shard int) error {
		list, err := texts(s.do(ctx, shard, scriptNext))
		mu.Lock()
		defer mu.Unlock()
		for i := 0; i+1 < len(list); i += 2 {
			at := score(list[i+1])
			if was, ok := first[list[i]]; !ok || at < was {
				first[list[i]] = at
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	next := make([]store.NextDue, 0, len(first))
	for lane, at := range first {
		next = append(next, store.NextDue{Lane: laneOf(lane), Due: time.UnixMicro(at)})
	}
	return next, nil
}
