package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
)

// engine is what the service needs of a store.
type engine interface {
	store.Store
	// Free returns the room left, and how much of it is kept in reserve, in bytes.
	Free() (free, reserve uint64, err error)
}

// openStore opens the engine that the configuration names. Log and OnSync of d apply to either engine. onState receives
// each second what is wrong with Redis, or nil.
func openStore(c *config.Config, d diskstore.Options, onState func(error)) (engine, error) {
	if c.Store.OnDisk() {
		d.Reserve = c.Store.Reserve
		return diskstore.Open(c.Store.Disk, d)
	}
	o, err := redisOptions(&c.Store)
	if err != nil {
		return nil, err
	}
	o.Log, o.OnSync, o.OnState = d.Log, d.OnSync, onState
	return redisstore.Open(context.Background(), o)
}

// checkOwner makes the virtual host the owner of a store without one. It refuses another's store, whose messages would
// be retried to queues of the same name in the wrong virtual host.
func checkOwner(ctx context.Context, s store.Store, c *config.Config) error {
	vhost := c.VHost()
	owner, err := s.Entry(ctx, store.OwnerEntry)
	switch {
	case err != nil:
		return err
	case owner == nil:
		return s.PutEntries(ctx, []store.Entry{{Name: store.OwnerEntry, Value: []byte(vhost)}})
	case string(owner) != vhost:
		return hint.Errorf("serve that virtual host from it (broker.url or broker.vhosts), or set store.disk or "+
			"store.redis.prefix to a place for this one",
			"%s %w %q, and its messages must not be retried to queues of %q", c.Store.Place(), store.ErrOwner,
			owner, vhost)
	}
	return nil
}

// SurveyRedis asks the servers of store.redis how they are set up.
func SurveyRedis(ctx context.Context, c *config.Config) (all []redisstore.Server, failover bool, err error) {
	o, err := redisOptions(&c.Store)
	if err != nil {
		return nil, false, err
	}
	return redisstore.Survey(ctx, o)
}

func redisOptions(s *config.Store) (redisstore.Options, error) {
	r := &s.Redis
	secure, err := r.TLSConfig()
	return redisstore.Options{
		URL: r.URL, Login: r.Login, Prefix: r.Prefix, Durability: redisstore.Durability(r.Durability),
		Replicas: r.Replicas,
		Lease:    r.Lease, Timeout: r.Timeout, TLS: secure, Reserve: s.Reserve,
	}, err
}

// diskFull reports that the store's disk is full in spite of store.reserve: this virtual host waits until there is
// room, and others continue. nil: there is room again.
func (s *vhost) diskFull(err error) {
	what := ""
	if err != nil {
		what = fmt.Sprintf("%s is on a disk that is full in spite of store.reserve: "+
			"the intake and retries stand until there is room: %v", s.config.Store.Disk, err)
		s.Log.Error("the store stands: " + what)
	} else {
		s.Log.Info("the store's disk has room again")
	}
	if h := s.openConditions.Load(); h != nil {
		h.Put(condition.Condition{Kind: condition.Disk, Text: what})
	}
}

// damaged returns the notice of a store that is partly unreadable.
func (s *vhost) damaged() []string {
	d, ok := s.store.(store.Damageable)
	if !ok {
		return nil
	}
	places := d.Damage()
	if len(places) == 0 {
		return nil
	}
	first := slices.Sorted(maps.Keys(places))[0]
	notice := fmt.Sprintf("the store is damaged in %d places, the first of them %s: what cannot be read there is set "+
		"apart, and all else continues", len(places), first)
	if s.config.Store.OnDisk() {
		notice += fmt.Sprintf(" (stop the service and run `redrive store salvage %s --to NEW-FOLDER`)",
			s.config.Store.Disk)
	}
	return []string{notice}
}

// StoreCheck is the result of CheckStore.
type StoreCheck struct {
	Lines  []store.LedgerLine // counted one by one
	Damage map[string]string  // what cannot be read, and how
}

// CheckStore reads all of a store on disk that no service uses.
func CheckStore(ctx context.Context, folder string, log *slog.Logger) (c StoreCheck, err error) {
	s, err := diskstore.Open(folder, diskstore.Options{Log: log, Existing: true})
	if err != nil {
		return c, err
	}
	defer s.Close()
	if err := s.Scan(ctx, store.Range{Body: true}, func(store.Listed) (bool, error) { return true, nil }); err != nil {
		return c, err
	}
	if c.Lines, err = s.Recount(ctx); err != nil {
		return c, err
	}
	c.Damage = s.Damage()
	return c, nil
}

// SalvageStore copies what can be read of a store on disk to a new one.
func SalvageStore(ctx context.Context, from, to string, log *slog.Logger) (diskstore.Salvaged, error) {
	return diskstore.Salvage(ctx, from, to, diskstore.Options{Log: log})
}

// AcceptLoss makes a store on disk usable without its missing commits, and returns how many are missing; nil if none
// is.
func AcceptLoss(folder string, log *slog.Logger) (lost *diskstore.LostError, err error) {
	o := diskstore.Options{Log: log, Existing: true}
	s, err := diskstore.Open(folder, o)
	if errors.As(err, &lost) {
		o.AcceptLoss = true
		s, err = diskstore.Open(folder, o)
	}
	if err != nil {
		return nil, err
	}
	return lost, s.Close()
}

// unservedIn returns notices of folders with messages of virtual hosts that the service no longer serves: nothing else
// looks at them.
func unservedIn(c *config.Config, served []*config.Config, log *slog.Logger) (notices []string) {
	if !c.Store.OnDisk() {
		return nil
	}
	folder := filepath.Join(c.Store.Disk, "vhosts")
	all, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return []string{fmt.Sprintf("the folder %s, of further virtual hosts, cannot be read: %v", folder, err)}
	}
	for _, at := range all {
		path := filepath.Join(folder, at.Name())
		if !at.IsDir() || slices.ContainsFunc(served,
			func(c *config.Config) bool { return filepath.Clean(c.Store.Disk) == path }) {
			continue
		}
		vhost, messages, err := heldIn(path, log)
		switch {
		case errors.Is(err, diskstore.ErrNone), errors.Is(err, store.ErrLocked): // another service has it
		case err != nil:
			notices = append(notices, fmt.Sprintf("the folder %s is of a virtual host that is not served, and cannot "+
				"be looked at: %v", path, err))
		case messages > 0:
			notices = append(notices, fmt.Sprintf("the folder %s holds messages (%d) of the virtual host %q, which "+
				"is not served: list it under broker.vhosts, or move the folder away", path, messages, vhost))
		}
	}
	return notices
}

// heldIn returns the owner of a store on disk, and how many messages it holds.
func heldIn(path string, log *slog.Logger) (vhost string, messages int64, err error) {
	s, err := diskstore.Open(path, diskstore.Options{Log: log, Existing: true})
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	owner, err := s.Entry(context.Background(), store.OwnerEntry)
	if err != nil {
		return "", 0, err
	}
	counts, err := s.Counts(context.Background())
	for _, c := range counts {
		messages += c.Waiting + c.Parked
	}
	return string(owner), messages, err
}
