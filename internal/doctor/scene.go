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
	"unicode"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// Part of a scene that may be missing.
type Part string

const (
	AMQP        Part = "amqp"
	Queues      Part = "queues"
	Exchanges   Part = "exchanges"
	Bindings    Part = "bindings"
	Policies    Part = "policies"
	Operator    Part = "operator policies"
	Nodes       Part = "nodes"
	Permissions Part = "permissions"
	Clock       Part = "clock"
	Store       Part = "store"
	DeadLetters Part = "dead letters"
)

// Scene is all that the checks look at, as it was at one time.
type Scene struct {
	Config *config.Config
	// File is the config's, for commands; "": there is none.
	File string
	// Call is how our command is called, for the commands of findings; "": redrive.
	Call string
	// Only are patterns of the work queues to look at; none: all.
	Only []string

	Broker, VHost, User string // Broker without its password
	Version             string // "" when not known
	FrameMax            int    // 0: any
	// Unreached is why some of several addresses do not answer.
	Unreached []error
	// Manage makes the URLs of commands.
	Manage *management.Client
	// Missing says why a part could not be gathered.
	Missing map[Part]error

	Queues           []management.QueueState
	Exchanges        []management.Exchange
	Bindings         []management.Binding
	Policies         []management.Policy
	OperatorPolicies []management.Policy
	Nodes            []management.Node
	Permissions      []management.Permission

	// Standing is how many dead letters a queue keeps and has not released while it was
	// watched, by queue.
	Standing map[string]int

	Ahead, Within time.Duration // the broker's clock against this one, and how exact that is
	StoreFree     uint64        // bytes
	// Redis are the primaries of the store; Failover: a replica may replace one of them.
	Redis    []redisstore.Server
	Failover bool

	Probed Probed
	// Guest: RabbitMQ has accepted the user guest with the password guest from another machine.
	Guest   bool
	Service Service
	// Insecure: the environment allows to send tokens without TLS.
	Insecure bool
}

// Probed is the state that AMQP shows without the management API.
type Probed struct {
	Exchange, Intake   error // as broker.Probe.IntakeQueue returns them
	Parked, Quarantine Depth
	Consumers          int // of redrive.intake
	Named              []NamedQueue
}

// Depth of a queue.
type Depth struct {
	Exists           bool
	Consumers, Ready int
}

// NamedQueue is a queue that a policy or --queue names without * or ?.
type NamedQueue struct {
	Name string
	Depth
	RetryExchange bool // it exists
}

// Service is the service's report about itself.
type Service struct {
	Asked    string   // the URL; "" when no service was asked
	Named    bool     // its address was given: that nothing answers there is a problem
	Err      error    // nothing answers
	Problems []string // of a service that is not ready
	Notices  []string
}

func (s *Scene) selected(queue string) bool {
	return len(s.Only) == 0 || slices.ContainsFunc(s.Only, func(p string) bool { return policy.MatchQueue(p, queue) })
}

// workQueues are the queues that could be work queues.
func (s *Scene) workQueues() (all []*management.QueueState) {
	for i := range s.Queues {
		if q := &s.Queues[i]; !wire.OwnQueue(q.Name) && s.selected(q.Name) {
			all = append(all, q)
		}
	}
	return all
}

// enrolledQueues are those whose dead letters go to Redrive.
func (s *Scene) enrolledQueues() (all []*management.QueueState) {
	return slices.DeleteFunc(s.workQueues(), func(q *management.QueueState) bool { return !s.enrolled(q) })
}

func (s *Scene) enrolled(q *management.QueueState) bool {
	return !wire.OwnQueue(q.Name) && q.Setting("dead-letter-exchange") == wire.ExchangeDeadLetters
}

func (s *Scene) queue(name string) *management.QueueState {
	return first(s.Queues, func(q *management.QueueState) bool { return q.Name == name })
}

func (s *Scene) exchange(name string) *management.Exchange {
	return first(s.Exchanges, func(e *management.Exchange) bool { return e.Name == name })
}

// first returns the first of all that is; nil when none is.
func first[T any](all []T, is func(*T) bool) *T {
	for i := range all {
		if is(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

func isArgument(q *management.QueueState, key string) bool {
	_, ok := q.Arguments["x-"+key]
	return ok
}

// versionAtLeast reports whether RabbitMQ is of that version or later; false when it is not known.
func (s *Scene) versionAtLeast(major, minor int) bool {
	yes, _ := delay.VersionAtLeast(s.Version, major, minor)
	return yes
}

// call is how our command is called.
func (s *Scene) call() string { return cmp.Or(s.Call, "redrive") }

// redrive is a command line of ours, for people to copy.
func (s *Scene) redrive(command string, args ...string) string {
	var b strings.Builder
	b.WriteString(s.call() + " " + command)
	if s.File != "" {
		b.WriteString(" --config " + Quote(s.File))
	}
	if len(args) > 0 && strings.HasPrefix(args[len(args)-1], "-") {
		b.WriteString(" --") // a queue's name, not a flag
	}
	for _, a := range args {
		b.WriteString(" " + Quote(a))
	}
	return b.String()
}

// deleteCommand is a command line that deletes what is at a URL of the management API; it asks for
// the password.
func (s *Scene) deleteCommand(at string) string {
	return "curl -u " + Quote(s.Manage.User()) + " -X DELETE " + Quote(at)
}

func (s *Scene) rabbitmqctl(command string, args ...string) string {
	out := "rabbitmqctl " + command + " -p " + Quote(s.VHost)
	for _, a := range args {
		out += " " + Quote(a)
	}
	return out
}

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
	// OfQueues leaves out what only checks of the service look at.
	OfQueues bool
}

// ErrNothing: neither AMQP nor the management API answers.
var ErrNothing = errors.New("RabbitMQ can be used neither by AMQP nor by its management API")

// partTimeout is how long one part may take.
const partTimeout = 30 * time.Second

// Gather reads all parts of a Scene once. It changes nothing. A part that cannot be read is in
// Missing, with the reason. Its error is ErrNothing.
func Gather(ctx context.Context, o Options) (*Scene, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*partTimeout)
	defer cancel()
	c := o.Config
	s := &Scene{Config: c, File: o.File, Call: o.Call, Only: o.Only, Broker: connect.Redact(c.Broker.URL),
		VHost: c.VHost(), User: connect.User(c.Broker.URL), Insecure: o.Insecure, Missing: map[Part]error{}}
	if !o.OfQueues {
		s.reach(ctx)
	}
	s.probe(ctx)
	if err := s.askManagement(ctx, cmp.Or(o.Standing, watchFor)); err != nil && s.Missing[AMQP] != nil {
		if hint.Of(s.Missing[AMQP]) == "" { // the management API's is about that alone
			err = hint.Errorf("check that RabbitMQ runs, and the addresses and passwords of broker.url "+
				"(REDRIVE_BROKER_URL) and broker.management (REDRIVE_MANAGEMENT_URL)", "%s", hint.Text(err))
		}
		return nil, fmt.Errorf("%w:\n%w\n%w", ErrNothing, s.Missing[AMQP], err)
	}
	if o.OfQueues {
		return s, nil
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
	if urls := connect.SplitURLs(s.Config.Broker.URL); len(urls) > 1 {
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
	if urls := connect.SplitURLs(s.Config.Broker.Management); len(urls) > 1 {
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
		if strings.ContainsAny(name, "*?") {
			continue
		}
		s.Probed.Named = append(s.Probed.Named,
			NamedQueue{name, depth(name), l.Exchange(wire.RetryExchange(name)) == nil})
	}
}

// namedQueues are those that policies name without * or ?, and the names and patterns of --queue.
func (s *Scene) namedQueues() (all []string) {
	for i := range s.Config.Policies {
		for _, q := range s.Config.Policies[i].Queues {
			if s.Config.Policies.Exact(q) && s.selected(q) && !slices.Contains(all, q) {
				all = append(all, q)
			}
		}
	}
	for _, q := range s.Only {
		if !slices.Contains(all, q) {
			all = append(all, q)
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
	if tag == "" { // it has management, or nothing would have been asked
		return errors.New("the user of broker.management has no rights in the virtual host")
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

// Quote makes one word of any text for a POSIX shell. A text with control characters, which a
// terminal would interpret, becomes $'…', as bash and others read it.
func Quote(s string) string {
	switch {
	case s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("_-./:@%+,=", r))
	}) < 0:
		return s
	case strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0:
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	b.WriteString("$'")
	for _, c := range []byte(s) {
		switch {
		case c == '\'' || c == '\\':
			b.WriteString(`\` + string(rune(c)))
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + "'"
}
