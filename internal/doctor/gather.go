package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/wire"
)

// Options of Gather.
type Options struct {
	Config *config.Config
	File   string   // of the config
	Call   string   // how our command is called; "": redrive
	Only   []string // patterns of queues
	// Service is the URL at which the service should answer; Named: that was given.
	Service string
	Named   bool
	HTTP    *http.Client // for the service
	// Redis asks the servers of the config's store.redis. It is called only where there is one.
	Redis func(context.Context) (servers []redisstore.Server, failover bool, err error)
	// Insecure: REDRIVE_INSECURE is set.
	Insecure bool
	// Standing is how long queues that keep dead letters are watched; 0: watchFor.
	Standing time.Duration
}

// ErrNothing: neither AMQP nor the management API answers.
var ErrNothing = errors.New("RabbitMQ answers neither by AMQP nor by its management API")

// partTimeout is how long one part may take.
const partTimeout = 30 * time.Second

// Gather reads all parts of a Scene once. It changes nothing. A part that cannot be read is in
// Missing, with the reason. Its error is ErrNothing.
func Gather(ctx context.Context, o Options) (*Scene, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*partTimeout)
	defer cancel()
	c := o.Config
	s := &Scene{Config: c, File: o.File, Call: o.Call, Only: o.Only, Broker: addresses.Redact(c.Broker.URL), VHost: c.VHost(), User: addresses.User(c.Broker.URL), Insecure: o.Insecure, Missing: map[Part]error{}}
	s.reach(ctx)
	s.probe(ctx)
	if err := s.askManagement(ctx, cmp.Or(o.Standing, watchFor)); err != nil && s.Missing[AMQP] != nil {
		return nil, fmt.Errorf("%w:\n%w\n%w", ErrNothing, s.Missing[AMQP], err)
	}
	s.guest(ctx)
	if c.Store.Redis.URL != "" {
		s.Redis, s.Failover, s.Missing[Store] = o.Redis(ctx)
	} else {
		s.disk(c.Store.Disk)
	}
	s.service(ctx, o)
	return s, nil
}

// reach tries each address by itself, where there are several: the others hide one
// that does not answer.
func (s *Scene) reach(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, partTimeout/2)
	defer cancel()
	var all []func() error
	if urls := addresses.Split(s.Config.Broker.URL); len(urls) > 1 {
		for _, u := range urls {
			all = append(all, func() error {
				l, err := broker.NewProbe(ctx, s.connection(u))
				if err != nil {
					return err
				}
				return l.Close()
			})
		}
	}
	if urls := addresses.Split(s.Config.Broker.Management); len(urls) > 1 {
		for _, u := range urls {
			all = append(all, func() error {
				one := s.Config.Broker
				one.Management = u
				m, err := one.API(s.VHost)
				if err == nil {
					_, err = m.Overview(ctx)
				}
				return err
			})
		}
	}
	failed := make([]error, len(all))
	var asked sync.WaitGroup
	for i, ask := range all {
		asked.Go(func() { failed[i] = ask() })
	}
	asked.Wait()
	s.Unreached = slices.DeleteFunc(failed, func(err error) bool { return err == nil })
}

func (s *Scene) connection(url string) broker.Config {
	return broker.Config{URL: url, Credentials: s.Config.Broker.Credentials, Name: "redrive doctor"}
}

// probe asks by AMQP.
func (s *Scene) probe(ctx context.Context) {
	l, err := broker.NewProbe(ctx, s.connection(s.Config.Broker.URL))
	if err != nil {
		s.Missing[AMQP] = err
		return
	}
	defer l.Close()
	for _, u := range parsed(s.Config.Broker.URL) {
		if u.Host == l.At() {
			s.Broker = u.Redacted()
		}
	}
	s.Version, s.FrameMax = l.Version(), l.FrameMax()
	s.Probed.Exchange, s.Probed.Intake = l.IntakeQueue()
	depth := func(queue string) Depth {
		consumers, ready, err := l.Queue(queue)
		return Depth{err == nil, consumers, ready}
	}
	s.Probed.Consumers = depth(wire.QueueIntake).Consumers
	s.Probed.Parked, s.Probed.Quarantine = depth(wire.QueueParked), depth(wire.QueueQuarantine)
	for _, name := range s.namedQueues() {
		s.Probed.Named = append(s.Probed.Named, NamedQueue{name, depth(name), l.Exchange(wire.RetryExchange(name)) == nil})
	}
}

// namedQueues are those that policies name without * or ?.
func (s *Scene) namedQueues() (all []string) {
	for i := range s.Config.Policies {
		for _, q := range s.Config.Policies[i].Queues {
			if s.Config.Policies.Exact(q) && s.selected(q) && !slices.Contains(all, q) {
				all = append(all, q)
			}
		}
	}
	return all
}

// askManagement asks the management API. Its error is why there is none.
func (s *Scene) askManagement(ctx context.Context, watch time.Duration) (err error) {
	if s.Manage, err = s.Config.Broker.API(s.VHost); err != nil {
		s.missingManagement(err)
		return err
	}
	o, err := s.Manage.Overview(ctx)
	if err != nil {
		s.missingManagement(err)
		return err
	}
	s.Version = o.Version
	keepPart(s, Queues, &s.Queues)(s.Manage.QueueStates(ctx))
	keepPart(s, DeadLetters, &s.Standing)(s.watchDeadLetters(ctx, watch))
	keepPart(s, Exchanges, &s.Exchanges)(s.Manage.Exchanges(ctx))
	keepPart(s, Bindings, &s.Bindings)(s.Manage.Bindings(ctx))
	keepPart(s, Policies, &s.Policies)(s.Manage.Policies(ctx))
	keepPart(s, Operator, &s.OperatorPolicies)(s.Manage.OperatorPolicies(ctx))
	keepPart(s, Nodes, &s.Nodes)(s.Manage.Nodes(ctx))
	keepPart(s, Permissions, &s.Permissions)(s.Manage.Permissions(ctx))
	if s.Ahead, s.Within, err = s.Manage.ClockAhead(ctx); err != nil {
		s.Missing[Clock] = err
	}
	return nil
}

// keepPart keeps an answer, or why there is none.
func keepPart[T any](s *Scene, name Part, to *T) func(T, error) {
	return func(v T, err error) {
		if err != nil {
			s.Missing[name] = fmt.Errorf("%s: %w", name, needs(name, err))
			return
		}
		*to = v
	}
}

// needs says which tag is missing.
func needs(name Part, err error) error {
	if !errors.Is(err, management.ErrDenied) {
		return err
	}
	tag := map[Part]string{Nodes: "monitoring", Permissions: "administrator"}[name]
	if tag == "" {
		tag = "management"
	}
	return fmt.Errorf("the user of broker.management needs the tag %s in RabbitMQ", tag)
}

func (s *Scene) missingManagement(err error) {
	for _, p := range []Part{Queues, DeadLetters, Exchanges, Bindings, Policies, Operator, Nodes, Permissions, Clock} {
		s.Missing[p] = err
	}
}

// guest tries the user and password that everybody knows, unless it runs on RabbitMQ's machine,
// from where RabbitMQ accepts them by default.
func (s *Scene) guest(ctx context.Context) {
	if s.Manage != nil && slices.ContainsFunc(hosts(s.Config.Broker.Management), away) {
		s.Guest = letsGuestIn(ctx, s.Manage)
	}
}

func letsGuestIn(ctx context.Context, api *management.Client) bool {
	_, err := api.As("guest", "guest").Overview(ctx)
	return err == nil
}

// disk reads the free space of the store, if that is on this machine.
func (s *Scene) disk(folder string) {
	if _, err := os.Stat(folder); err != nil {
		s.Missing[Store] = fmt.Errorf("the store's folder %s is not here: run this where the service runs", folder)
		return
	}
	abs, err := filepath.Abs(folder)
	if err == nil {
		var usage vfs.DiskUsage
		usage, err = vfs.Default.GetDiskUsage(abs)
		s.StoreFree = usage.AvailBytes
	}
	if err != nil {
		s.Missing[Store] = fmt.Errorf("the room of %s: %w", folder, err)
	}
}

// service asks the service whether it is ready.
func (s *Scene) service(ctx context.Context, o Options) {
	if o.Service == "" {
		return
	}
	s.Service = Service{Asked: o.Service, Named: o.Named}
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(o.Service, "/")+"/readyz", nil)
	if err != nil {
		s.Service.Err = err
		return
	}
	client := o.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		s.Service.Err = err
		return
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	lines := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	switch {
	case err != nil:
		s.Service.Err = err
	case resp.StatusCode == http.StatusOK && len(lines) > 0 && lines[0] == "ready":
		s.Service.Notices = lines[1:]
	case resp.StatusCode == http.StatusServiceUnavailable:
		s.Service.Problems = lines
	default:
		s.Service.Err = fmt.Errorf("it answers %s, not as a Redrive service does", resp.Status)
	}
}
