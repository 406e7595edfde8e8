// Package redisstore keeps messages in Redis or Valkey, where several services use one
// store at once. Each move of a record is one script, in lua/. All keys are in one slot, so
// that a change of many records, and an operation's progress, are one step in a cluster as
// well; over three primaries each change needed two phases, for half as much throughput again
// at most. Read it in this order:
//
//	keys.go          every key, and what is stored under it
//	redisstore.go    Options, Open, Close, and what counts as durable
//	connect.go       servers, the settings without which they lose writes, their memory; detects one
//	                 that was replaced, or has lost writes
//	scripts.go       the scripts, how one is run, and what it may do when Redis is full
//	add.go           a batch in one step; one that is tried again is the same one; ids of the newest
//	                 records, by which redelivered messages are recognized
//	claim.go         due records, claimed for the scheduler under leases
//	change.go        people's actions: lock, edit, write in one step; the side table; queues and discarded
//	                 messages whose time is over
//	scan.go          searches
//	ledger.go        the account of every message; error groups
//	shared.go        members, leader and announcements of the services
package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

// Options say where a store is and what it promises.
type Options struct {
	// URL is redis://user:password@host:port/db, or rediss:// for TLS. Further nodes
	// are ?addr=host:port&addr=…; with ?master_set=name the hosts are Sentinels.
	URL string
	// Login, where a file has one, is used instead of the URL's, and read again while the store is open.
	Login connect.Login
	// Prefix begins all keys, in braces; "" is "redrive". It has no braces and no spaces.
	Prefix string
	// Durability is when a write counts as done; "" is Synced.
	Durability Durability
	// Replicas is how many replicas must have a write that is Replicated; 0 is 1.
	Replicas int
	// Lease is how long a claim stays with a process that says nothing; 0 is 30 s.
	Lease time.Duration
	// Timeout bounds each call; 0 is 5 s.
	Timeout time.Duration
	// TLS, when not nil, is used with rediss:// instead of the machine's own.
	TLS *tls.Config
	// Reserve is the room in bytes that is left free of Redis's memory, but at most a
	// tenth of it: Add fails with store.ErrFull rather than use it. 0 is 256 MiB.
	Reserve uint64
	// Log receives what needs a person; nil is slog.Default.
	Log *slog.Logger
	// OnSync receives how long each write took, until it was as durable as promised.
	OnSync func(time.Duration)
	// OnState receives each second whether Redis answers and is what it was: nil, or what
	// is wrong. It must be quick.
	OnState func(error)

	// Dial, when not nil, connects to an address, for tests.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// Durability is when a write counts as done.
type Durability string

const (
	// Synced: on the disk of the server that has it.
	Synced Durability = "synced"
	// Replicated: in the memory of so many of its replicas.
	Replicated Durability = "replicated"
	// Cached: in the server's memory. A crash or a failover loses the last moments.
	Cached Durability = "cached"
)

// Store implements store.Shared.
type Store struct {
	Options
	logins     logins
	changed    chan struct{}
	confirm    confirm
	name       string // of this opening, unlike that of any other
	tokens     atomic.Uint64
	stamp      atomic.Int64
	groups     groups
	claims     claims
	pending    pendingBatches
	unstored   unstored
	forgetting forgetting
	server     serverMemory
	identity   identity
	// step is called before a Change is done: tests end it there.
	step func(string) error

	// changing lets one Change of this process at a time lock records: two that want
	// the same would else take each other for a claim. As asking, ending and turn, which are held
	// too while Redis is asked, it is one that a caller can stop waiting for.
	changing *semaphore.Weighted
	doubt    atomic.Pointer[change] // the last Change, when it is not known what became of it

	ctx            context.Context // ends with Close, when no call is under way
	cancel         context.CancelFunc
	mu             sync.Mutex
	calls          store.OpenCalls
	confirmedTerms sync.Map // by what this process leads
	// failing is what upkeep and the like fail at, and since when.
	failing map[string]time.Time
	damage  map[string]string // keys of records that cannot be read, and how
	own     sync.WaitGroup    // the store's goroutines
	stop    chan struct{}     // closed when they must end
}

// Open opens a store and makes it when there is none. It fails when the server cannot
// keep what is promised: one that evicts, or whose durability is less than asked for;
// and with store.ErrFormat when the store has a format of another version.
func Open(ctx context.Context, o Options) (*Store, error) {
	o.defaults()
	login := o.firstLogin()
	client, err := newClient(o, login)
	if err != nil {
		return nil, err
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	s := &Store{Options: o, changed: make(chan struct{}, 1), failing: map[string]time.Time{},
		damage: map[string]string{}, name: hex.EncodeToString(random[:]),
		groups: groups{known: map[groupID]*knownGroup{}}, claims: newClaims(), changing: semaphore.NewWeighted(1),
		server: serverMemory{asking: semaphore.NewWeighted(1)}, forgetting: forgetting{turn: semaphore.NewWeighted(1)},
		unstored: unstored{},
		step:     func(string) error { return nil }, stop: make(chan struct{})}
	s.logins.client.Store(&client)
	s.logins.is, s.logins.file = login.String(), login
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.begin(ctx); err != nil {
		s.cancel()
		client.Close()
		return nil, err
	}
	s.own.Go(s.renewing)
	s.own.Go(s.upkeep)
	s.own.Go(s.watching)
	return s, nil
}

func (o *Options) defaults() {
	o.Prefix = cmp.Or(o.Prefix, "redrive")
	o.Durability = cmp.Or(o.Durability, Synced)
	o.Replicas = cmp.Or(o.Replicas, 1)
	o.Lease = cmp.Or(o.Lease, 30*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.Reserve = cmp.Or(o.Reserve, 256<<20)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.OnSync == nil {
		o.OnSync = func(time.Duration) {}
	}
	if o.OnState == nil {
		o.OnState = func(error) {}
	}
}

// begin looks at the server and at what is there already.
func (s *Store) begin(ctx context.Context) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	if err := s.format(ctx); err != nil {
		return err
	}
	if err := s.identify(ctx); err != nil {
		return err
	}
	if err := s.groups.refresh(ctx, s); err != nil {
		return err
	}
	return s.unlockAbandoned(ctx)
}

// formatVersion is what is written. Those before the first release, 1 and 2, spread a
// store over several slots, and are not read any more.
const formatVersion = "3"

// format notes how the store is laid out, or reads it.
func (s *Store) format(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	old := s.Prefix + "{0}:format"
	switch text, err := s.client().Do(ctx, s.client().B().Get().Key(old).Build()).ToString(); {
	case err == nil:
		return hint.Errorf("replay or discard what it keeps with that version, or use another store.redis.prefix",
			"redis: %w: %s is %q, of a version before the first release, and this version reads format %s",
			store.ErrFormat, old, text, formatVersion)
	case rueidis.IsRedisNil(err), strings.HasPrefix(err.Error(), "NOPERM"): // its user can use this store alone
	default:
		return s.wrapError(err)
	}
	key := s.key("format")
	if err := s.client().Do(ctx, s.client().B().Set().Key(key).Value(formatVersion).Nx().Build()).Error(); err != nil &&
		!rueidis.IsRedisNil(err) {
		return s.wrapError(err)
	}
	text, err := s.client().Do(ctx, s.client().B().Get().Key(key).Build()).ToString()
	if err == nil && text != formatVersion {
		err = hint.Errorf("use the version of Redrive that wrote it, or another store.redis.prefix",
			"%w: %s is %q, and this version reads format %s", store.ErrFormat, key, text, formatVersion)
	}
	return s.wrapError(err)
}

// use keeps the store open during a call, which ctx bounds.
func (s *Store) use(ctx context.Context) (done func(), err error) {
	if done, err = s.calls.Begin(ctx); err != nil {
		return nil, err
	}
	if err := s.identity.replaced.Load(); err != nil {
		done()
		return nil, *err
	}
	return done, nil
}

// Close waits for calls under way, and releases what this process has claimed.
func (s *Store) Close() error {
	if !s.calls.Close() {
		return nil
	}
	close(s.stop)
	s.own.Wait()
	err := errors.Join(s.release(s.ctx, s.claims.all()), s.flushUnstored(s.ctx))
	s.cancel()
	s.client().Close()
	return err
}

// Changed implements store.Store. What other processes changed is said within a
// second.
func (s *Store) Changed() <-chan struct{} { return s.changed }

func (s *Store) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// wrapError says in an error that it is of Redis.
func (s *Store) wrapError(err error) error {
	if err == nil || errors.Is(err, store.ErrFull) || errors.Is(err, ErrReplaced) {
		return err
	}
	s.noteRefusal(err)
	return fmt.Errorf("redis: %w", err)
}

// upkeep does what is to be done now and then, until Close.
func (s *Store) upkeep() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	refresh, recovered := time.Now(), time.Now()
	for {
		select {
		case <-s.stop:
			return
		case now := <-tick.C:
			// Others may have added, or not ended what they claimed.
			s.signal()
			if s.identity.replaced.Load() != nil {
				continue
			}
			s.grow(s.ctx)
			s.resolveSoon()
			s.logTrouble("counting messages that were not stored", s.flushUnstored(s.ctx))
			if now.Sub(refresh) >= time.Minute {
				refresh = now
				s.logTrouble("reading the groups", s.groups.refresh(s.ctx, s))
			}
			if now.Sub(recovered) >= s.Lease {
				recovered = now
				s.logTrouble("releasing what others have left locked", s.unlockAbandoned(s.ctx))
			}
		}
	}
}

// logTrouble logs, once, that something fails that is done again and again, and that it works
// again.
func (s *Store) logTrouble(doing string, err error) {
	s.mu.Lock()
	since, known := s.failing[doing]
	if err == nil {
		delete(s.failing, doing)
	} else if !known {
		s.failing[doing] = time.Now()
	}
	s.mu.Unlock()
	switch {
	case err != nil && !known:
		s.Log.Warn("store: "+doing+" fails; trying again until it works", "error", err)
	case err == nil && known:
		s.Log.Info("store: "+doing+" works again", "after", time.Since(since).Round(time.Millisecond))
	}
}

// damaged takes note of a record that cannot be read, which stops no other, and returns an
// error for those who asked for it.
func (s *Store) damaged(number uint64, err error) error {
	key := s.key("m:" + member(number))
	s.mu.Lock()
	_, known := s.damage[key]
	s.damage[key] = err.Error()
	s.mu.Unlock()
	if !known {
		s.Log.Error("store: a message is damaged: it is set apart, and all else goes on", "key", key, "error", err)
	}
	return fmt.Errorf("%w: redis: key %s: %w", store.ErrUnreadable, key, err)
}

// Damage implements store.Damageable: the keys of records that could not be read.
func (s *Store) Damage() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.damage)
}

// Counts implements store.Store.
func (s *Store) Counts(ctx context.Context) ([]store.QueueCount, error) {
	list, err := texts(s.call(ctx, scriptCounts))
	var counts []store.QueueCount
	for i := 0; i+5 < len(list); i += 6 {
		c := store.QueueCount{Queue: list[i], Waiting: int64(number(list[i+1])), Parked: int64(number(list[i+2])),
			Discarded: int64(number(list[i+3]))}
		if list[i+4] != "" {
			c.NextDue = time.UnixMicro(score(list[i+4]))
			if r, _, err := store.DecodeHead([]byte(list[i+5])); err == nil {
				c.NextFailed = r.FailedAt
			}
		}
		counts = append(counts, c)
	}
	return counts, err
}

// CountDue implements store.Searcher.
func (s *Store) CountDue(ctx context.Context, queues []string, edges []time.Time, most int64) ([]int64, error) {
	args := []string{itoa(len(edges))}
	for _, edge := range edges {
		args = append(args, itoa(edge.UnixMicro()))
	}
	args = append(args, queues...)
	list, err := texts(s.call(ctx, scriptCountDue, args...))
	counts := make([]int64, len(edges))
	for i, n := range list {
		counts[i] = min(most, int64(number(n)))
	}
	return counts, err
}
