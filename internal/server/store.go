package server

import (
	"context"
	"fmt"
	"maps"
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

// openStore opens the engine that a configuration names. Log and OnSync of d are for either
// engine. onState receives each second what is wrong with a server, or nil.
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

// checkOwner makes the virtual host the owner of a store that has none. It refuses the store of
// another, whose messages would be retried to the queue of the same name in the wrong virtual
// host.
func checkOwner(ctx context.Context, s store.Store, c *config.Config) error {
	vhost := c.VHost()
	owner, err := s.Entry(ctx, store.OwnerEntry)
	switch {
	case err != nil:
		return err
	case owner == nil:
		return s.PutEntries(ctx, []store.Entry{{Name: store.OwnerEntry, Value: []byte(vhost)}})
	case string(owner) != vhost:
		return hint.Errorf("serve that virtual host from it (broker.url or broker.vhosts), or set store.disk or store.redis.prefix to a place for this one", "%s %w %q, and its messages must not be retried to queues of %q", c.Store.Place(), store.ErrOwner, owner, vhost)
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
		URL: r.URL, Login: r.Login, Prefix: r.Prefix, Durability: redisstore.Durability(r.Durability), Replicas: r.Replicas,
		Lease: r.Lease, Timeout: r.Timeout, TLS: secure, Reserve: s.Reserve,
	}, err
}

// diskFull reports that the store's disk is full in spite of store.reserve: the virtual host stands
// until there is room, and others go on. nil: there is room again.
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

// damaged returns the notice of a store that cannot be read in part.
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
	notice := fmt.Sprintf("the store is damaged in %d places, the first of them %s: what cannot be read there is set apart, and all else continues", len(places), first)
	if s.config.Store.OnDisk() {
		notice += fmt.Sprintf(" (stop the service and run `redrive store salvage %s --to NEW-FOLDER`)", s.config.Store.Disk)
	}
	return []string{notice}
}
