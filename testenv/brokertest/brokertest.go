// Package brokertest gives tests real brokers: a virtual host per test on shared
// nodes, a node of its own for a test that kills one, and a proxy that cuts
// connections.
package brokertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

var must, errOf = expect.NoError, expect.ErrOf

// Eventually waits until it is so, and ends a test that has waited for three minutes.
var Eventually = expect.Eventually

// Each runs a test on every broker, in a virtual host of its own, beside other tests.
func Each(t *testing.T, test func(*testing.T, *VHost)) { inVHost(t, All(t), test) }

// One is Each on one of the brokers, chosen by the test's name, and on all of them in a
// Long run: for what does not depend on the version.
func One(t *testing.T, test func(*testing.T, *VHost)) { inVHost(t, Sampled(t), test) }

func inVHost(t *testing.T, brokers []Broker, test func(*testing.T, *VHost)) {
	besideOthers(t)
	for _, b := range brokers {
		t.Run("RabbitMQ "+b.Version, func(t *testing.T) {
			t.Parallel()
			takeSlots(t, 1)
			test(t, NewVHost(t, b.over(t.Name())))
		})
	}
}

// besideOthers is t.Parallel, which panics in a test that is parallel already or sets an environment
// variable: there it does nothing.
func besideOthers(t *testing.T) {
	defer func() { _ = recover() }()
	t.Parallel()
}

// Sampled are all brokers in a Long run, and otherwise one that the test's name chooses.
func Sampled(t testing.TB) []Broker {
	all := All(t)
	if !Long() {
		i := int(chance(t.Name())>>1) % len(all) // the lowest bit chooses TLS
		all = all[i : i+1]
	}
	return all
}

// Long reports whether this is a run of `make test-long`, which repeats and covers what
// other runs sample.
func Long() bool { return os.Getenv("REDRIVE_TEST_LONG") != "" }

// EachPrivate runs a test on a node of its own of every version, to do with as
// it likes. Brokers that were given cannot be killed, and are reported so.
func EachPrivate(t *testing.T, config string, test func(*testing.T, *VHost, *rabbitnode.Node)) {
	onPrivate(t, All(t), config, test)
}

// OnePrivate is EachPrivate on one version, chosen as One does.
func OnePrivate(t *testing.T, config string, test func(*testing.T, *VHost, *rabbitnode.Node)) {
	onPrivate(t, Sampled(t), config, test)
}

func onPrivate(t *testing.T, brokers []Broker, config string, test func(*testing.T, *VHost, *rabbitnode.Node)) {
	besideOthers(t)
	for _, b := range brokers {
		b.onOurs(t, 2, func(t *testing.T) {
			v, n := NewPrivate(t, b, config)
			test(t, v, n)
		})
	}
}

// onOurs runs a test that takes so many slots and starts nodes of its own of the broker's version.
func (b Broker) onOurs(t *testing.T, slots int, test func(*testing.T)) {
	t.Run("RabbitMQ "+b.Version, func(t *testing.T) {
		if !b.Private {
			t.Skip("not run: a broker that was given with BROKERS cannot be killed, alarmed or parted from others")
		}
		t.Parallel()
		takeSlots(t, slots)
		test(t)
	})
}

// Address is one of loopback where nothing listens.
func Address(t testing.TB) string {
	t.Helper()
	ports, err := subprocess.Ports(1)
	must(t, err)
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

// Alarm raises a memory alarm of a node of the test's own; over ends it. Connections know of it afterwards.
func Alarm(t *testing.T, n *rabbitnode.Node) (over func()) {
	t.Helper()
	watermark := func(to string) {
		must(t, errOf(n.Eval(context.Background(), "vm_memory_monitor:set_vm_memory_high_watermark("+to+
			"), rabbit_alarm:get_alarms().")))
	}
	watermark("0.00001")
	return func() { watermark("{absolute, 4000000000}") }
}

// Leader has the leader of a quorum queue on a node of the test's own "suspend", so that it hangs and is
// not dead, or "resume".
func (v *VHost) Leader(n *rabbitnode.Node, do, queue string) {
	v.t.Helper()
	const call = "{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<%q>>, queue, <<%q>>)), ok = sys:%s(amqqueue:get_pid(Q))."
	must(v.t, errOf(n.Eval(v.t.Context(), fmt.Sprintf(call, v.Name, queue, do))))
}

// NewPrivate starts a node of the version of a broker, for one test.
func NewPrivate(t *testing.T, b Broker, config string) (*VHost, *rabbitnode.Node) {
	t.Helper()
	n, err := rabbitnode.Start(context.Background(), rabbitnode.Options{Root: b.Root, Config: config,
		Authority: b.authority(t),
		// At-least-once dead-lettering tries again after three minutes by
		// itself, which tests need not wait for.
		Args: "-rabbit dead_letter_worker_publisher_confirm_timeout 3000"})
	must(t, err)
	return b.own(t, [4]string{n.URL(), n.Management(), n.SecureURL(), n.SecureManagement()}, n.LastWords, n.Stop), n
}

// own is the virtual host of a node or a cluster of the test's own, which stops with the test. Its URLs are those
// of AMQP and the management API, and both by TLS.
func (b Broker) own(t *testing.T, urls [4]string, lastWords func() string, stop func() error) *VHost {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("RabbitMQ said:\n%s", lastWords())
		}
		must(t, stop())
	})
	b.AMQP, b.Management, b.AMQPS, b.HTTPS, b.Group = urls[0], urls[1], urls[2], urls[3], 0
	return newVHost(t, b.over(t.Name()), "/")
}

// OneCluster runs a test on a cluster of its own, of three nodes of one version, chosen as One does;
// all but the first are to be started by Grow. Brokers that were given are reported as
// EachPrivate does.
func OneCluster(t *testing.T, config string, test func(*testing.T, *VHost, *rabbitnode.Cluster)) {
	besideOthers(t)
	for _, b := range Sampled(t) {
		OnCluster(t, b, config, test)
	}
}

// OnCluster is OneCluster on a version that the caller chooses.
func OnCluster(t *testing.T, b Broker, config string, test func(*testing.T, *VHost, *rabbitnode.Cluster)) {
	b.onOurs(t, 4, func(t *testing.T) {
		o := rabbitnode.Options{Root: b.Root, Config: config, Authority: b.authority(t),
			// As EachPrivate; and what a node says of a quorum queue is up to so old.
			Args: "-rabbit dead_letter_worker_publisher_confirm_timeout 3000 -rabbit quorum_tick_interval 1000" +
				// So long RabbitMQ 3 waits for a node that hangs, all nodes of it; 60 s by default.
				" -kernel net_ticktime 15"}
		c, err := rabbitnode.FoundCluster(context.Background(), o, 3)
		must(t, err)
		urls := [4]string{c.URL(), c.Management(), c.SecureURL(), c.SecureManagement()}
		test(t, b.own(t, urls, c.LastWords, c.Stop), c)
	})
}

// VHost is a virtual host for one test.
type VHost struct {
	Broker
	*Client // connects as guest
	Name    string
	service string // the user of ServiceURL, once made
}

func newVHost(t testing.TB, b Broker, name string) *VHost {
	v := &VHost{Broker: b, Name: name}
	v.Client = NewClient(t, v.Dial)
	return v
}

// NewVHost makes one, and deletes it when the test ends.
func NewVHost(t testing.TB, b Broker) *VHost {
	t.Helper()
	v := newVHost(t, b, "redrive-test-"+uuid.NewString())
	v.Must("PUT", "vhosts/"+v.Name, map[string]any{})
	t.Cleanup(v.remove)
	t.Cleanup(v.logQueues)
	v.start()
	v.Grant("guest", ".*", ".*", ".*")
	return v
}

// start waits until it runs at each node. On a busy machine RabbitMQ 4.3 sometimes gives up starting
// it, and does so again only when it is asked to.
func (v *VHost) start() {
	v.t.Helper()
	Eventually(v.t, "the virtual host runs", func() bool {
		var is struct {
			Nodes map[string]string `json:"cluster_state"`
		}
		if v.answered(func() error {
			return v.API().Call(context.Background(), http.MethodGet, "vhosts/"+v.Name, nil, &is)
		}) != nil {
			return false
		}
		running := 0
		for node, state := range is.Nodes {
			if state == "running" {
				running++
			} else if state == "stopped" {
				_ = v.API().Call(context.Background(), http.MethodPost, "vhosts/"+v.Name+"/start/"+node, nil, nil)
			}
		}
		return running > 0 && running == len(is.Nodes)
	})
}

// logQueues says where the messages are when a test has failed.
func (v *VHost) logQueues() {
	if !v.t.Failed() {
		return
	}
	all, err := v.API().QueueStates(context.Background())
	for i := range all {
		q := &all[i]
		v.t.Logf("queue %q: %d ready, %d unacknowledged, %d consumers", q.Name, q.Ready, q.Unacked, q.Consumers)
	}
	if err != nil {
		v.t.Log("cannot list the queues: ", err)
	}
}

func (v *VHost) remove() {
	err := v.answered(func() error {
		return v.API().Call(context.Background(), http.MethodDelete, "vhosts/"+v.Name, nil, nil)
	})
	if err != nil && !errors.Is(err, management.ErrNotFound) {
		v.t.Error(err)
	}
}

// URL is the broker's, with this virtual host.
func (v *VHost) URL() string { return v.URLAs("guest", "guest") }

// URLAs is the same for another user.
func (v *VHost) URLAs(user, password string) string {
	urls, err := connect.EachURL(v.AMQP, func(u *url.URL) {
		if user != "guest" || u.User == nil {
			u.User = url.UserPassword(user, password)
		}
		u.Path, u.RawPath = "/"+v.Name, "/"+url.PathEscape(v.Name)
	})
	must(v.t, err)
	return urls
}

// host is the broker's address.
func (v *VHost) host() string {
	u, err := url.Parse(v.AMQP)
	must(v.t, err)
	if u.Port() == "" {
		return u.Host + ":5672"
	}
	return u.Host
}

// API is the management API for this virtual host.
func (v *VHost) API() *management.Client {
	m, err := management.New(v.Management, v.Name)
	must(v.t, err)
	return m
}

// Must calls the management API and fails the test on an error.
func (v *VHost) Must(method, path string, in any) {
	v.t.Helper()
	must(v.t, v.answered(func() error { return v.API().Call(context.Background(), method, path, in, nil) }))
}

// answered asks the management API until it answers otherwise than it does on a busy machine: not in
// time, 500 for a queue that is just declared or deleted, or, of 4.3 when a virtual host is deleted, by
// closing the connection. A node of a cluster may not know yet of a user that was made at another one,
// nor 4.3 of the queues that it has just declared from definitions, for their bindings.
func (v *VHost) answered(ask func() error) (err error) {
	v.t.Helper()
	Eventually(v.t, "the management API answers", func() bool {
		err = ask()
		var late net.Error
		return err == nil || !errors.Is(err, io.EOF) && !(errors.As(err, &late) && late.Timeout()) &&
			!strings.Contains(err.Error(), "vhost_or_user_not_found") && !strings.Contains(err.Error(),
			"resources_missing") && !strings.Contains(err.Error(), ": 500 Internal")
	})
	return err
}

// State is what the management API last heard of a queue, and whether it exists.
func (v *VHost) State(queue string) (q management.Queue, exists bool) {
	v.t.Helper()
	err := v.answered(func() (err error) {
		q, err = v.API().Queue(context.Background(), queue)
		return err
	})
	if err != nil && !errors.Is(err, management.ErrNotFound) {
		v.t.Fatal(err)
	}
	return q, err == nil
}

// User makes a user without a right.
func (v *VHost) User(name, password string) {
	v.t.Helper()
	v.Must(http.MethodPut, "users/"+name, map[string]any{"password": password, "tags": ""})
	v.t.Cleanup(func() { v.Must(http.MethodDelete, "users/"+name, nil) })
}

// Grant gives a user rights: patterns to configure, write and read.
func (v *VHost) Grant(user, configure, write, read string) {
	v.t.Helper()
	v.Must(http.MethodPut, "permissions/"+url.PathEscape(v.Name)+"/"+user, map[string]any{"configure": configure,
		"write": write, "read": read})
}

// Policy sets one.
func (v *VHost) Policy(name, pattern string, priority int, definition map[string]any) {
	v.t.Helper()
	p := management.Policy{Name: name, Pattern: pattern, ApplyTo: "queues", Priority: priority, Definition: definition}
	must(v.t, v.answered(func() error { return v.API().PutPolicy(context.Background(), p) }))
}

// CloseConnections ends all connections of a user, as an administrator would.
func (v *VHost) CloseConnections(user string) {
	v.t.Helper()
	Eventually(v.t, "the management API knows the connections of "+user, func() bool {
		var all []struct {
			Name string `json:"name"`
			User string `json:"user"`
		}
		must(v.t, v.API().Call(context.Background(), http.MethodGet, "connections", nil, &all))
		n := 0
		for _, c := range all {
			if c.User == user {
				n++
				_ = v.API().Call(context.Background(), http.MethodDelete, "connections/"+url.PathEscape(c.Name), nil,
					nil)
			}
		}
		return n > 0
	})
}

// Dial connects as guest; the connection ends with the test.
func (v *VHost) Dial() *amqp.Connection { return v.DialURL(v.URL()) }

// As is a client with the rights of a user.
func (v *VHost) As(user, password string) *Client {
	return NewClient(v.t, func() *amqp.Connection { return v.DialURL(v.URLAs(user, password)) })
}

// DialURL connects; the connection ends with the test.
func (v *VHost) DialURL(rawURL string) *amqp.Connection {
	v.t.Helper()
	c, err := Connect(rawURL)
	if err != nil {
		v.t.Fatalf("connecting: %v", err)
	}
	v.t.Cleanup(func() { c.Close() })
	return c
}

// Connect connects to one of a cluster's nodes, at random: a test's own clients are
// not those of Redrive.
func Connect(urls string) (c *amqp.Connection, err error) {
	all, limit := connect.SplitURLs(urls), 30*time.Second
	if len(all) > 1 {
		limit = 5 * time.Second
	}
	for _, i := range rand.Perm(len(all)) {
		if c, err = amqp.DialConfig(all[i], amqp.Config{Dial: amqp.DefaultDial(limit)}); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// Messages is how many messages a queue has, unacknowledged ones included, as
// the management API last heard.
func (v *VHost) Messages(queue string) int {
	v.t.Helper()
	q, exists := v.State(queue)
	if !exists {
		v.t.Fatalf("there is no queue %q", queue)
	}
	return q.Messages
}

// ServicePassword is that of the user of ServiceURL.
const ServicePassword = "s3cret"

// ServiceURL is the broker's for a service with these policies: as a user who has
// exactly the rights that `redrive permissions` prints for them, and no tag. It adopts and follows these
// queues. Another call changes its rights.
func (v *VHost) ServiceURL(policies policy.Set, adopts ...string) string {
	v.t.Helper()
	if v.service == "" {
		v.service = "service-" + uuid.NewString()
		v.Must(http.MethodPut, "users/"+v.service, map[string]any{"password": ServicePassword, "tags": ""})
		// On a node of the test's own, which may be gone, the user goes with it.
		v.t.Cleanup(func() { _ = v.API().Call(context.Background(), http.MethodDelete, "users/"+v.service, nil, nil) })
	}
	v.Give(v.service, management.ServiceRights(policies, adopts...))
	return v.URLAs(v.service, ServicePassword)
}

// ServiceUser is the user of ServiceURL.
func (v *VHost) ServiceUser() string { return v.service }

// Give grants a user the rights of a role.
func (v *VHost) Give(user string, r management.Rights) {
	v.t.Helper()
	v.Grant(user, r.Configure, r.Write, r.Read)
	for _, topic := range r.Topics {
		v.Must(http.MethodPut, "topic-permissions/"+url.PathEscape(v.Name)+"/"+user,
			map[string]any{"exchange": topic.Exchange, "write": topic.Write, "read": topic.Read})
	}
}

// Works are policies for queues of these names.
func Works(queues ...string) policy.Set {
	p := policy.Default()
	p.Queues = queues
	return policy.Set{p}
}

// Packages run side by side, each with many parallel tests that mostly wait. What keeps RabbitMQ
// from being too busy to answer is one limit for the machine: a test takes one slot for a virtual
// host, two for a node of its own, and four for a cluster.
var slots = 8 * max(2, runtime.NumCPU())

// takeSlots waits until n slots are free, and frees them when the test ends. Call it once in a test,
// after t.Parallel. A slot is a locked file, which the end of a process frees too.
func takeSlots(t testing.TB, n int) {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("redrive-slots-%d", os.Getuid()))
	must(t, os.MkdirAll(dir, 0o700))
	// A test that needs many slots is not overtaken by those that need one.
	queue := lock(t, filepath.Join(dir, "queue"), syscall.LOCK_EX)
	defer queue.Close()
	for taken := 0; taken < n; time.Sleep(10 * time.Millisecond) {
		for i := 0; i < slots && taken < n; i++ {
			if f := lock(t, filepath.Join(dir, fmt.Sprint(i)), syscall.LOCK_EX|syscall.LOCK_NB); f != nil {
				t.Cleanup(func() { _ = f.Close() })
				taken++
			}
		}
	}
}

// lock locks a file; nil: it is locked, and how says not to wait.
func lock(t testing.TB, path string, how int) *os.File {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	for {
		switch err := syscall.Flock(int(f.Fd()), how); err {
		case nil:
			return f
		case syscall.EINTR:
		case syscall.EWOULDBLOCK:
			_ = f.Close()
			return nil
		default:
			t.Fatalf("locking %q: %v", f.Name(), err)
		}
	}
}

// DirEnv names a folder that the packages of a run share.
const DirEnv = "REDRIVE_TEST_DIR"

// Redrive is the program as users run it, built once for all packages.
func Redrive(t testing.TB) string {
	t.Helper()
	dir := os.Getenv(DirEnv)
	defer lock(t, filepath.Join(dir, "building"), syscall.LOCK_EX).Close()
	program := filepath.Join(dir, "redrive")
	if _, err := os.Stat(program); err != nil {
		out, err := exec.Command("go", "build", "-o", program, "github.com/redrive-mq/redrive/cmd/redrive").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return program
}

// Env names the brokers that tests run on, as Encode writes them.
const Env = "REDRIVE_TEST_BROKERS"

// Broker is one that tests run on.
type Broker struct {
	AMQP       string
	Management string
	Version    string
	Root       string // what a private node of the same version is started from
	Private    bool   // such a node can be started
	Group      int    // the process group of a private node; 0 when somebody else runs it
	// The same by TLS, and the folder of the authority that signed its certificate; ""
	// when somebody else runs it. See byTLS.
	AMQPS, HTTPS, Authority string
}

// Encode writes brokers for Env.
func Encode(list []Broker) string {
	data, _ := json.Marshal(list)
	return string(data)
}

// Given are brokers somebody else runs.
func Given(amqpURLs, managementURLs string) (list []Broker) {
	split := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
	}
	m := split(managementURLs)
	for i, raw := range split(amqpURLs) {
		b := Broker{AMQP: raw}
		if i < len(m) {
			b.Management = m[i]
		} else if u, err := url.Parse(raw); err == nil {
			b.Management = (&url.URL{Scheme: "http", User: u.User, Host: u.Hostname() + ":15672"}).String()
		}
		list = append(list, b)
	}
	return list
}

// Ask finds out the version.
func (b *Broker) Ask(ctx context.Context) error {
	m, err := management.New(b.Management, "/")
	if err != nil {
		return err
	}
	o, err := m.Overview(ctx)
	b.Version = o.Version
	return err
}

// Since4 tells RabbitMQ 4 and later from 3.
func (b Broker) Since4() bool { return !strings.HasPrefix(b.Version, "3.") }

// FromEnv are the brokers that the runner started or was given.
func FromEnv() (list []Broker, err error) {
	if err := json.Unmarshal([]byte(os.Getenv(Env)), &list); err != nil || len(list) == 0 {
		return nil, errors.New("this needs RabbitMQ: run `make test`, or `go run ./test/brokers COMMAND`")
	}
	return list, nil
}

// All are the brokers that were asked for. Without any the test fails: a suite
// that ran nowhere must not look green.
func All(t testing.TB) []Broker {
	t.Helper()
	list, err := FromEnv()
	must(t, err)
	return list
}

// TLSEnv says which tests of the suites that call AlsoByTLS reach RabbitMQ by TLS:
//
//	half   each on one of the two versions, the default
//	other  each on the other
//	all    each on both: `make test-tls`
//	none   none
const TLSEnv = "REDRIVE_TEST_TLS"

var alsoByTLS bool

// AlsoByTLS lets the tests of a package reach RabbitMQ by TLS as TLSEnv says. It is for
// TestMain.
func AlsoByTLS() { alsoByTLS = true }

// over is the broker as a test reaches it: by TLS or not. The choice is the same each
// time, and another on the other version.
func (b Broker) over(test string) Broker {
	how := os.Getenv(TLSEnv)
	if !alsoByTLS || b.Authority == "" || how == "none" {
		return b
	}
	if secure := chance(test)%2 == 0 == b.Since4(); how == "all" || secure != (how == "other") {
		b.AMQP, b.Management = b.AMQPS, b.HTTPS
	}
	return b
}

// chance is a number that stays the same for a test and its subtests.
func chance(test string) uint32 {
	name, _, _ := strings.Cut(test, "/")
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(name))
	return sum.Sum32()
}

// authority signs the certificates of further nodes; nil: they have none.
func (b Broker) authority(t testing.TB) *authority.Authority {
	if b.Authority == "" {
		return nil
	}
	a, err := authority.Open(b.Authority)
	must(t, err)
	return a
}

// CA is the authority of the broker's certificate. The test fails where there is none: it
// would show nothing of TLS.
func (b Broker) CA(t testing.TB) *authority.Authority {
	t.Helper()
	if !b.Private {
		t.Skip("not run: a broker that was given with BROKERS has no certificate of ours")
	}
	a := b.authority(t)
	if a == nil {
		t.Fatal("this needs RabbitMQ with TLS: run `make test`, or `go run ./test/brokers COMMAND`")
	}
	return a
}

// SecureURL is URLAs by TLS, with parameters; it names the authority unless they do. Where
// password is "" there is none.
func (v *VHost) SecureURL(user, password string, with url.Values) string {
	v.t.Helper()
	query := url.Values{"cacertfile": {v.CA(v.t).CAFile()}}
	maps.Copy(query, with)
	urls, err := connect.EachURL(v.AMQPS, func(u *url.URL) {
		if u.User = url.User(user); password != "" {
			u.User = url.UserPassword(user, password)
		}
		u.Path, u.RawPath, u.RawQuery = "/"+v.Name, "/"+url.PathEscape(v.Name), query.Encode()
	})
	must(v.t, err)
	return urls
}
