package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

// firstLogin returns the login of the file, or else of the URL.
func (o *Options) firstLogin() *url.Userinfo {
	if u, err := url.Parse(o.URL); err == nil && u.User != nil {
		return o.Login.Current(u.User)
	}
	return o.Login.Current(url.User(""))
}

func newClient(o Options, login *url.Userinfo) (rueidis.Client, error) {
	if err := checkPrefix(o.Prefix); err != nil {
		return nil, err
	}
	option, err := rueidis.ParseURL(o.URL)
	if err != nil {
		// Its error repeats the password.
		return nil,
			errors.New("redis: store.redis.url is no URL of Redis: expected redis://user:password@host:port")
	}
	option.Username = login.Username()
	option.Password, _ = login.Password()
	switch {
	case o.TLS != nil && option.TLSConfig == nil:
		return nil, errors.New("redis: store.redis.tls names certificates, and store.redis.url is one without TLS: " +
			"expected rediss://user:password@host:port")
	case o.TLS != nil:
		option.TLSConfig = o.TLS.Clone()
	case option.TLSConfig != nil:
		option.TLSConfig.ServerName = "" // otherwise every server would need the first one's name
	}
	if option.Sentinel.MasterSet != "" {
		option.Sentinel.TLSConfig = option.TLSConfig
	}
	option.ClientName = "redrive"
	option.DisableCache = true
	option.BlockingPoolSize = 64
	option.BlockingPoolCleanup, option.BlockingPoolMinSize = time.Minute, 2
	option.Dialer = net.Dialer{Timeout: o.Timeout}
	option.ConnWriteTimeout = o.Timeout
	if o.Dial != nil {
		option.DialCtxFn = func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return o.Dial(ctx, addr)
		}
	}
	client, err := rueidis.NewClient(option)
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		err = hint.Errorf("name the CA of its certificate, a file in PEM, with store.redis.tls.ca", "%w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("redis at %s: %w", strings.Join(option.InitAddress, ", "), err)
	}
	return client, nil
}

func (s *Store) client() rueidis.Client { return *s.logins.client.Load() }

// logins replaces the client when only a new connection helps.
type logins struct {
	client  atomic.Pointer[rueidis.Client]
	refused atomic.Bool   // Redis has refused something since the last check
	is      string        // the client's login
	file    *url.Userinfo // the file's login at the last check
	wait    time.Duration
	next    time.Time // no client is made before
}

// When Redis refuses things, a client is made at least minRefusedWait after the last one. The wait
// doubles, up to maxRefusedWait, while that continues: then a right is really missing.
const minRefusedWait, maxRefusedWait = time.Minute, time.Hour

// noteRefusal notes an error that a new connection may not have: Redis checks the user that a connection signed in as.
func (s *Store) noteRefusal(err error) {
	if said, ok := rueidis.IsRedisErr(err); ok {
		switch code, _, _ := strings.Cut(said.Error(), " "); code {
		case "NOAUTH", "NOPERM", "WRONGPASS":
			s.logins.refused.Store(true)
		}
	}
}

// renewLogin makes another client when the file has another login, or when Redis has refused something. Running calls
// end on the old client, which remains if the new one cannot sign in.
func (s *Store) renewLogin(now time.Time) {
	l := &s.logins
	refused, file := l.refused.Swap(false), s.Login.Current(l.file)
	if file.String() != l.file.String() { // try it at once
		l.file, l.wait, l.next = file, 0, now
	}
	if !refused && file.String() == l.is || now.Before(l.next) {
		return
	}
	client, err := newClient(s.Options, file)
	s.logTrouble("signing in again", err)
	if err != nil {
		l.next = now.Add(s.Timeout)
		return
	}
	if now.Sub(l.next) > l.wait { // the last one worked for long
		l.wait = 0
	}
	l.is, l.wait = file.String(), min(max(2*l.wait, minRefusedWait), maxRefusedWait)
	l.next = now.Add(l.wait)
	old := *l.client.Swap(&client)
	s.Log.Info("store: signed in to Redis again", "refused", refused)
	s.own.Go(func() {
		select {
		case <-time.After(s.Timeout): // no call takes longer
		case <-s.stop:
		}
		old.Close()
	})
}

// check refuses servers that cannot keep the promised durability.
func (s *Store) check(ctx context.Context) error {
	switch s.Durability {
	case Synced, Replicated, Cached:
	default:
		return fmt.Errorf("redis: durability %q: expected synced, replicated or cached", s.Durability)
	}
	if s.Durability == Replicated {
		s.confirm = func(b rueidis.Builder, within time.Duration) rueidis.Completed {
			return b.Wait().Numreplicas(int64(s.Replicas)).Timeout(within.Milliseconds()).Build()
		}
	}
	if s.client().Mode() != rueidis.ClientModeStandalone && s.Durability != Replicated {
		s.Log.Warn("store: when a replica replaces a server of Redis, writes that it did not have yet are lost: set "+
			"store.redis.durability to replicated", "durability", s.Durability)
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	for addr, node := range s.client().Nodes() {
		if err := s.checkNode(ctx, node); err != nil {
			return fmt.Errorf("redis at %s: %w", addr, err)
		}
	}
	return nil
}

func (s *Store) checkNode(ctx context.Context, node rueidis.Client) error {
	text, err := node.Do(ctx, node.B().Info().Build()).ToString()
	if said, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(said.Error(), "NOPERM") {
		s.Log.Warn("store: this user may not run INFO, so it is not known whether Redis evicts messages and how "+
			"durable they are: make sure that it has `maxmemory-policy noeviction` and `appendonly yes`", "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	info := parseInfo(text)
	if !atLeast(info["redis_version"], 7, 0) {
		return fmt.Errorf("it is version %s: expected Redis 7.0 or Valkey 7.2 at least", info["redis_version"])
	}
	if info["role"] != "master" {
		return nil
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" {
		return hint.Errorf("set `maxmemory-policy noeviction`",
			"its maxmemory-policy is %s, so it would delete messages to make room", policy)
	}
	if info["maxmemory"] == "0" {
		s.Log.Warn("store: Redis has no maxmemory, and may take all memory of its machine: set maxmemory, so that " +
			"the intake stops in time")
	}
	if s.Durability == Synced {
		return s.checkSynced(ctx, node, info)
	}
	return nil
}

// checkSynced finds out how to confirm that a write is on the server's disk.
func (s *Store) checkSynced(ctx context.Context, node rueidis.Client, info map[string]string) error {
	const instead = "; or choose another store.redis.durability"
	if info["aof_enabled"] != "1" {
		return hint.Errorf("set `appendonly yes` and `appendfsync always`"+instead, "it keeps nothing on its disk")
	}
	asks := atLeast(info["redis_version"], 7, 2) // has WAITAOF
	settings, err := node.Do(ctx, node.B().ConfigGet().Parameter("appendfsync").Build()).AsStrMap()
	fsync := settings["appendfsync"]
	switch {
	case err != nil && !asks:
		return fmt.Errorf("it cannot tell when a write is on its disk before Redis 7.2, and does not say how it "+
			"syncs (%w): let this user do CONFIG GET, with `appendfsync always`%s", err, instead)
	case err != nil:
		s.Log.Warn("store: this user may not run CONFIG GET, so it is not known how often Redis syncs: writes are "+
			"fastest with `appendfsync always`", "error", err)
	case fsync != "always" && !asks:
		return hint.Errorf("set `appendfsync always`"+instead,
			"its appendfsync is %s, and before Redis 7.2 it cannot tell when a write is on its disk", fsync)
	case fsync == "no":
		return hint.Errorf("set `appendfsync always`"+instead,
			"its appendfsync is no, so it is not known when a write is on its disk")
	case fsync != "always":
		s.Log.Warn("store: Redis syncs once a second, and each write waits for that: set `appendfsync always`",
			"appendfsync", fsync)
	}
	if asks {
		s.confirm = func(b rueidis.Builder, within time.Duration) rueidis.Completed {
			return b.Waitaof().Numlocal(1).Numreplicas(0).Timeout(within.Milliseconds()).Build()
		}
	}
	return nil
}

func parseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// atLeast reports whether a version such as 7.0.15 is at least min.
func atLeast(version string, min ...int) bool {
	var parts []int
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part)
		parts = append(parts, n)
	}
	return slices.Compare(parts, min) >= 0
}

// Server is a primary's own account of its settings.
type Server struct {
	Addr, Version string
	Replicas      int
	Eviction      string // maxmemory-policy
	Max, Used     uint64 // bytes of memory; Max 0: no limit
	AppendOnly    bool
	Fsync         string // appendfsync; "": unknown
}

// TellsSyncs reports whether it can confirm that a write is on its disk.
func (s *Server) TellsSyncs() bool { return atLeast(s.Version, 7, 2) }

// Survey returns the settings of a store's primaries, and whether a replica may replace one
// of them automatically. It changes nothing.
func Survey(ctx context.Context, o Options) (all []Server, failover bool, err error) {
	o.defaults()
	client, err := newClient(o, o.firstLogin())
	if err != nil {
		return nil, false, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	for addr, node := range client.Nodes() {
		text, err := node.Do(ctx, node.B().Info().Build()).ToString()
		if err != nil {
			return nil, false, fmt.Errorf("redis at %s: %w", addr, err)
		}
		info := parseInfo(text)
		if info["role"] != "master" {
			continue
		}
		s := Server{Addr: addr, Version: info["redis_version"], Eviction: info["maxmemory_policy"],
			AppendOnly: info["aof_enabled"] == "1"}
		s.Replicas, _ = strconv.Atoi(info["connected_slaves"])
		s.Max, s.Used = number(info["maxmemory"]), number(info["used_memory"])
		// This user may have no right to CONFIG GET.
		settings, _ := node.Do(ctx, node.B().ConfigGet().Parameter("appendfsync").Build()).AsStrMap()
		s.Fsync = settings["appendfsync"]
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Server) int { return cmp.Compare(a.Addr, b.Addr) })
	return all, client.Mode() != rueidis.ClientModeStandalone, nil
}

type serverMemory struct {
	asking      *semaphore.Weighted // one call asks, the others wait for its answer
	mu          sync.Mutex
	at          time.Time
	used, limit uint64
	added       uint64 // since at, about
}

const memoryAge = time.Second

// memory asks the server by INFO. Without a maxmemory the limit is the machine's memory; 0 when that
// is not known either.
func (s *Store) memory(ctx context.Context) (used, limit uint64, err error) {
	m, err := s.do(ctx, scriptMemory)
	if err != nil {
		return 0, 0, err
	}
	text, err := m.ToString()
	info := parseInfo(text)
	limit = cmp.Or(number(info["maxmemory"]), number(info["total_system_memory"]))
	return number(info["used_memory"]), limit, s.wrapError(err)
}

// look returns the free memory, at most memoryAge old.
func (s *Store) look(ctx context.Context) (free, reserve, limit uint64, err error) {
	r := &s.server
	if err := r.asking.Acquire(ctx, 1); err != nil {
		return 0, 0, 0, err
	}
	defer r.asking.Release(1)
	r.mu.Lock()
	old := time.Since(r.at) >= memoryAge
	r.mu.Unlock()
	var used uint64
	if old {
		if used, limit, err = s.memory(ctx); err != nil {
			return 0, 0, 0, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old {
		r.used, r.limit, r.at, r.added = used, limit, time.Now(), 0
	}
	if r.limit == 0 {
		return math.MaxUint64, 0, 0, nil
	}
	if taken := r.used + r.added; taken < r.limit {
		free = r.limit - taken
	}
	return free, min(s.Reserve, r.limit/10), r.limit, nil
}

// checkMemory returns store.ErrFull when there is no room for n more bytes besides a part of the reserve, and otherwise
// counts them.
func (s *Store) checkMemory(ctx context.Context, n int, part float64) error {
	free, reserve, limit, err := s.look(ctx)
	if err != nil {
		return err
	}
	if float64(free) < float64(reserve)*part+float64(n) {
		return hint.Errorf("give it more maxmemory, or discard what is parked and not needed",
			"%w: Redis has %d of %d MiB free, and %d MiB are kept in reserve", store.ErrFull, free>>20, limit>>20,
			reserve>>20)
	}
	r := &s.server
	r.mu.Lock()
	defer r.mu.Unlock()
	r.added += uint64(n)
	return nil
}

// Free returns how many bytes of the server's memory are free, and the reserve.
func (s *Store) Free() (free, reserve uint64, err error) {
	done, err := s.use(s.ctx)
	if err != nil {
		return 0, 0, err
	}
	defer done()
	free, reserve, _, err = s.look(s.ctx)
	return free, reserve, err
}

// ErrReplaced: the server was replaced by another or emptied while in use.
var ErrReplaced = errors.New("what was kept in it is gone")

// identity detects that the store was replaced or has lost writes. A store has an id, and a
// generation that grows each second in which something was written. A process that has seen
// a generation confirmed, and then a smaller one, knows that promised writes are gone: a
// server came back with an older disk, or a replica that was behind took its place.
type identity struct {
	id       string
	wrote    atomic.Bool           // since the generation grew
	replaced atomic.Pointer[error] // nil: it is the same store

	mu         sync.Mutex
	generation uint64 // the largest confirmed one
	back       string // the notice after a smaller one
}

const (
	// watchEvery is how often watching checks the servers, and watchFor how long that may
	// take: together less than 5 s.
	watchEvery = time.Second
	watchFor   = 2 * time.Second
)

// identify reads the identity at the start, or makes one.
func (s *Store) identify(ctx context.Context) (err error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	s.identity.id, _, err = s.runIdentity(ctx, nil, hex.EncodeToString(random[:]), "", "")
	return err
}

func (s *Store) runIdentity(ctx context.Context, by confirm, args ...string) (id string, generation uint64, err error) {
	list, err := texts(s.run(ctx, scriptIdentity, by, false, args))
	if err == nil && len(list) != 2 {
		err = fmt.Errorf("redis: key %s cannot be read", s.key("identity"))
	}
	if err != nil {
		return "", 0, err
	}
	return list[0], number(list[1]), nil
}

func (s *Store) watching() {
	err := s.watch(s.ctx)
	if err == nil || s.logins.refused.Load() { // it answers
		s.renewLogin(time.Now())
	}
	s.logTrouble("checking whether Redis answers", err)
	s.OnState(err)
}

// watch checks once. It returns ErrReplaced when the store is another one.
func (s *Store) watch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchFor)
	defer cancel()
	was := s.generation()
	id, n, err := s.runIdentity(ctx, nil, "", "", "")
	for err != nil && pause(ctx) == nil { // a cut connection does not mean a dead server
		id, n, err = s.runIdentity(ctx, nil, "", "", "")
	}
	if err == nil {
		err = s.checkIdentity(id)
	}
	if err != nil {
		return err
	}
	s.checkGeneration(n, was)
	if s.identity.replaced.Swap(nil) != nil {
		s.Log.Info("store: Redis has its earlier data again")
	}
	return nil
}

// checkIdentity returns ErrReplaced when the store's id is another one. Until it is the same
// again, all calls fail.
func (s *Store) checkIdentity(id string) error {
	was := s.identity.id
	if id == was {
		return nil
	}
	now := "there is nothing in it"
	if id != "" {
		now = "another store is there now"
	}
	err := hint.Errorf("put the data back, or restart all services to go on with what is there",
		"redis: %w: there was %s, and %s", ErrReplaced, was, now)
	if s.identity.replaced.Swap(&err) == nil {
		s.Log.Error("store: Redis was emptied or replaced while it was in use; failed messages stay in RabbitMQ and "+
			"nothing is retried until that is repaired", "error", err)
	}
	return err
}

func (s *Store) generation() uint64 {
	s.identity.mu.Lock()
	defer s.identity.mu.Unlock()
	return s.identity.generation
}

// checkGeneration notes a loss when the generation n is smaller than was, which had been confirmed
// before n was read.
func (s *Store) checkGeneration(n, was uint64) {
	is := &s.identity
	is.mu.Lock()
	defer is.mu.Unlock()
	if n >= was || s.Durability == Cached { // Cached promises no more
		return
	}
	is.generation = n
	is.back = fmt.Sprintf("Redis has gone back to an earlier state, and lost writes of about %s that it had "+
		"confirmed, at %s: messages that failed then are gone, and some are retried twice; this is said until the "+
		"service is started again",
		time.Duration(was-n)*watchEvery, time.Now().UTC().Format(time.RFC3339))
	s.Log.Error("store: " + is.back)
}

func (s *Store) grow(ctx context.Context) {
	i := &s.identity
	if !i.wrote.Swap(false) {
		return
	}
	was := s.generation()
	id, n, err := s.runIdentity(ctx, s.confirm, "", i.id, strconv.FormatUint(was, 10))
	if err != nil || id != i.id {
		i.wrote.Store(true) // watch reports the error
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.generation == was { // otherwise watch has found that it went back
		i.generation = max(was, n)
	}
}

// ID returns the id of this store, for people.
func (s *Store) ID() string { return s.identity.id }

// Notices returns what a person should look at though nothing stops.
func (s *Store) Notices() []string {
	s.identity.mu.Lock()
	defer s.identity.mu.Unlock()
	if s.identity.back == "" {
		return nil
	}
	return []string{s.identity.back}
}
