// Package redisstore keeps messages in Redis or Valkey, which several services can share. Each move of a record is one
// script, in lua/. All keys are in one slot, so that a change of many records, with an operation's progress, is one
// step in a cluster, too. Read it in this order:
//
//	keys.go          every key, and what is stored under it
//	redisstore.go    Options, Open, Close, and what counts as durable
//	connect.go       servers, the settings without which they lose writes, their memory; detects
//	                 a server that was replaced, or has lost writes
//	scripts.go       the scripts, how they run, and what they may do when Redis is full
//	add.go           adding a batch in one step, once however often it is tried; receipts
//	claim.go         due records, claimed for the scheduler under leases
//	change.go        people's actions: lock, edit, write in one step; the side table; forgetting
//	scan.go          searches
//	ledger.go        the account of every message; error groups
//	shared.go        replicas, leader and messages between the services
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

type Options struct {
	// URL is redis://user:password@host:port/db, or rediss:// for TLS. Further nodes
	// are ?addr=host:port&addr=…; with ?master_set=name the hosts are Sentinels.
	URL string
	// Login, if a file has one, is used instead of the URL's, and read again while the store is open.
	Login connect.Login
	// Prefix begins all keys, in braces; "" is "redrive". It has no braces and no spaces.
	Prefix string
	// Durability is when a write counts as done; "" is Synced.
	Durability Durability
	// Replicas is how many replicas must have a Replicated write; 0 is 1.
	Replicas int
	// Lease is how long a process keeps a claim without renewing it; 0 is 30 s.
	Lease time.Duration
	// Timeout bounds each call; 0 is 5 s.
	Timeout time.Duration
	// TLS, when not nil, is used with rediss:// instead of the machine's.
	TLS *tls.Config
	// Reserve is how many bytes of Redis's memory are left free, but at most a tenth of
	// it: Add returns store.ErrFull rather than use them. 0 is 256 MiB.
	Reserve uint64
	// Log receives what needs a person; nil is slog.Default.
	Log *slog.Logger
	// OnSync receives how long each write took to be as durable as promised.
	OnSync func(time.Duration)
	// OnState is called each second with nil when Redis answers and is the same, otherwise
	// with the error. It must be quick.
	OnState func(error)

	// Dial, when not nil, connects to an address, for tests.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// Durability is when a write counts as done.
type Durability string

const (
	// Synced: on the disk of the server that has it.
	Synced Durability = "synced"
	// Replicated: in the memory of Options.Replicas replicas.
	Replicated Durability = "replicated"
	// Cached: in the server's memory. A crash or a failover loses the last moments.
	Cached Durability = "cached"
)

type Store struct {
	Options
	logins     logins
	changed    chan struct{}
	confirm    confirm
	name       string // unique to this Open
	tokens     atomic.Uint64
	stamp      atomic.Int64
	groups     groups
	claims     claims
	pending    pendingBatches
	unstored   store.SumsBy // counts of messages that were never stored, until they are written to Redis
	forgetting forgetting
	server     serverMemory
	identity   identity
	// step is called before a Change is applied: tests stop it there.
	step func(string) error

	// changing lets one Change of this process at a time lock records: otherwise two that want the same would take each
	// other for a claim. Like asking, ending and turn, which are also held during calls to Redis, it is a semaphore so
	// that waiting ends with ctx.
	changing *semaphore.Weighted
	doubt    atomic.Pointer[change] // the last Change, while its result is unknown

	ctx            context.Context // ends with Close, after the last call
	cancel         context.CancelFunc
	mu             sync.Mutex
	calls          store.OpenCalls
	confirmedTerms sync.Map
	// failing is what the store's goroutines fail at, and since when.
	failing map[string]time.Time
	damage  map[string]string // key of an unreadable record to error
	own     sync.WaitGroup
	stop    chan struct{}
}

// Open opens a store, or makes it. It fails when the server cannot keep the promises: one
// that evicts, or is less durable than asked for; and with store.ErrFormat when the store
// has the format of another version.
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
		groups: groups{known: map[groupID]*knownGroup{}}, changing: semaphore.NewWeighted(1),
		server: serverMemory{asking: semaphore.NewWeighted(1)}, forgetting: forgetting{turn: semaphore.NewWeighted(1)},
		claims:   claims{held: map[uint64]string{}, ending: semaphore.NewWeighted(allEnding)},
		unstored: store.SumsBy{},
		step:     func(string) error { return nil }, stop: make(chan struct{})}
	s.logins.client.Store(&client)
	s.logins.is, s.logins.file = login.String(), login
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.begin(ctx); err != nil {
		s.cancel()
		client.Close()
		return nil, err
	}
	s.every(s.Lease/3, func() { s.logTrouble("renewing the leases of claimed messages", s.renew(s.ctx)) })
	s.every(time.Second, s.upkeep)
	s.every(time.Second, s.unlessReplaced("counting messages that were not stored", s.flushUnstored))
	s.every(time.Minute, s.unlessReplaced("reading the groups", s.refreshGroups))
	s.every(s.Lease, s.unlessReplaced("releasing locks that others have left", s.unlockAbandoned))
	s.every(watchEvery, s.watching)
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

func (s *Store) begin(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.check, s.format, s.identify, s.refreshGroups,
		s.unlockAbandoned} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// formatVersion is written. Formats 1 and 2, before the first release, spread a store over
// several slots, and are no longer read.
const formatVersion = "3"

func (s *Store) format(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	old := s.Prefix + "{0}:format"
	switch text, err := s.client().Do(ctx, s.client().B().Get().Key(old).Build()).ToString(); {
	case err == nil:
		return hint.Errorf("replay or discard what it keeps with that version, or use another store.redis.prefix",
			"redis: %w: %s is %q, of a version before the first release, and this version reads format %s",
			store.ErrFormat, old, text, formatVersion)
	case rueidis.IsRedisNil(err), strings.HasPrefix(err.Error(), "NOPERM"): // its user may use only this prefix
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

// use keeps the store open until done is called. It fails when the store was replaced.
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

// Close waits for running calls, and releases the claims of this process.
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

// Changed implements store.Store. Changes of other processes are signalled within a second.
func (s *Store) Changed() <-chan struct{} { return s.changed }

func (s *Store) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Store) wrapError(err error) error {
	if err == nil || errors.Is(err, store.ErrFull) || errors.Is(err, ErrReplaced) {
		return err
	}
	s.noteRefusal(err)
	return fmt.Errorf("redis: %w", err)
}

func (s *Store) every(interval time.Duration, do func()) {
	s.own.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-tick.C:
				do()
			}
		}
	})
}

func (s *Store) upkeep() {
	s.signal() // other processes may have added records, or let claims expire
	if s.identity.replaced.Load() == nil {
		s.grow(s.ctx)
		s.resolveSoon()
	}
}

func (s *Store) unlessReplaced(doing string, do func(context.Context) error) func() {
	return func() {
		if s.identity.replaced.Load() == nil {
			s.logTrouble(doing, do(s.ctx))
		}
	}
}

// logTrouble logs once that repeated work fails, and once that it works again.
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

// damaged notes a record that cannot be read, and returns the error for a caller that wants
// this record.
func (s *Store) damaged(number uint64, err error) error {
	key := s.key("m:" + member(number))
	s.mu.Lock()
	_, known := s.damage[key]
	s.damage[key] = err.Error()
	s.mu.Unlock()
	if !known {
		s.Log.Error("store: a damaged message is left out, and all others are kept", "key", key, "error", err)
	}
	return fmt.Errorf("%w: redis: key %s: %w", store.ErrUnreadable, key, err)
}

// Damage implements store.Damageable. It returns the keys of records.
func (s *Store) Damage() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.damage)
}

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

func (s *Store) CountDue(ctx context.Context, queues []string, edges []time.Time, limit int64) ([]int64, error) {
	args := []string{itoa(len(edges))}
	for _, edge := range edges {
		args = append(args, itoa(edge.UnixMicro()))
	}
	args = append(args, queues...)
	list, err := texts(s.call(ctx, scriptCountDue, args...))
	counts := make([]int64, len(edges))
	for i, n := range list {
		counts[i] = min(limit, int64(number(n)))
	}
	return counts, err
}
