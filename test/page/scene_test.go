package page_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// scene is a made-up shop as the service serves it. Tests that need RabbitMQ and its traffic run a whole
// service: see newService.
type scene struct {
	*webtest.Shop
	options
	base   string // URL, with the path that it is under
	token  string // an admin's, where callers must sign in
	tokens *auth.Tokens
	server *httptest.Server
	gone   atomic.Bool
}

// leaves cuts all connections and answers no more, as a service that is restarted
// behind a proxy, until it comes back.
func (s *scene) leaves() {
	s.gone.Store(true)
	s.server.CloseClientConnections()
}

func (s *scene) comesBack() { s.gone.Store(false) }

// options of a scene.
type options struct {
	readOnly, signIn bool
	// vhosts, when there are several, are what the service serves: the scene is the one
	// that says so.
	vhosts []webui.VHost
}

// here is the virtual host that the scene is, and the path that it is under.
func (o options) here() (vhost, base string) {
	for _, v := range o.vhosts {
		if v.Here {
			return v.Name, strings.TrimSuffix(v.URL, "/")
		}
	}
	return "", ""
}

// protobuf is how the shop's orders are read: the example's types.
func protobuf(t testing.TB) decode.Options {
	t.Helper()
	folder, err := filepath.Abs("../../examples/proto")
	must(t, err)
	return decode.Options{Protobuf: decode.Protobuf{Files: []string{filepath.Join(folder, "shop/order.proto")}, ImportPaths: []string{folder},
		Queues: []decode.QueueType{{Queues: []string{"orders.*"}, Message: "shop.Order"}}}}
}

func newShop(t testing.TB, o options) *scene {
	return serve(t, o, webtest.Stocked(read(t, o)))
}

func newEmpty(t testing.TB, told *webtest.Told) *scene {
	return serve(t, options{}, webtest.New(memstore.New(), told, read(t, options{})))
}

func read(t testing.TB, o options) inspect.Config {
	t.Helper()
	decoder, err := decode.New(protobuf(t))
	must(t, err)
	return inspect.Config{ReadOnly: o.readOnly, Decoder: decoder}
}

func serve(t testing.TB, o options, shop *webtest.Shop) *scene {
	t.Helper()
	s := &scene{Shop: shop, options: o, tokens: auth.NewTokens(shop.Store, shop.Book)}
	var err error
	if s.token, _, err = s.tokens.Create(t.Context(), webtest.Root, auth.NewToken{Name: "dana", Role: "admin"}); err != nil {
		t.Fatal(err)
	}
	vhost, base := o.here()
	a := shop.API(webui.Options{Base: base, VHost: vhost, VHosts: func() []webui.VHost { return o.vhosts }}, auth.Config{Required: o.signIn, ReadOnly: o.readOnly, Tokens: s.tokens})
	whole := httpapi.Under(base, a)
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.gone.Load() {
			http.Error(w, "the service is restarted", http.StatusServiceUnavailable)
			return
		}
		whole.ServeHTTP(w, r)
	}))
	s.base = s.server.URL + base
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { shop.Inspector.Run(ctx) })
	running.Go(func() { shop.Runner.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		a.EndStreams()
		s.server.CloseClientConnections()
		s.server.Close()
	})
	return s
}

// add keeps records.
func (s *scene) add(t testing.TB, records ...*store.Record) {
	t.Helper()
	must(t, s.Store.Add(t.Context(), records))
}

// service is a whole Redrive on a real broker, with messages in its store from
// before it was started.
type service struct {
	t      *testing.T
	vhost  *brokertest.VHost
	ch     *amqp.Channel
	config *config.Config
	parked []*store.Record // of orders.capture, oldest first
	base   string
	stop   func()
}

// newService starts one on the newest broker there is.
func newService(t *testing.T) *service {
	t.Helper()
	brokers := brokertest.All(t)
	s := &service{t: t, vhost: brokertest.NewVHost(t, brokers[len(brokers)-1]), config: config.Default()}
	s.ch = s.vhost.Channel()
	for _, q := range []string{"orders.capture", "mail.send", "webhooks"} {
		s.vhost.Queue(q, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
	}
	s.config.Broker = config.Broker{URL: s.vhost.ServiceURL(webtest.Policies()), Management: s.vhost.Management}
	s.config.Store.Disk, s.config.Listen = filepath.Join(t.TempDir(), "store"), "127.0.0.1:0"
	s.config.Policies, s.config.Decode, s.config.Throttle = webtest.Policies(), protobuf(t), map[string]throttle.Rules{}
	for _, p := range s.config.Policies {
		s.config.Throttle[p.Name] = throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers} // the tests read with basic.get
	}

	disk, err := diskstore.Open(s.config.Store.Disk, diskstore.Options{Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	now := time.Now()
	for i := 60; i >= 0; i -= 6 {
		s.parked = append(s.parked, webtest.Message(i, store.Parked, now))
	}
	waiting := webtest.Message(2, store.Waiting, now)
	waiting.Due = now.Add(time.Hour)
	must(t, disk.Add(t.Context(), append([]*store.Record{waiting}, s.parked...)))
	must(t, disk.Close())
	s.start()
	return s
}

// start runs it; it ends with the test at the latest.
func (s *service) start() {
	s.t.Helper()
	a := servertest.Run(s.t, s.config)
	s.stop = func() {
		expect.Err(s.t, a.Stop(), nil, "the service ended with")
	}
	s.config.Listen = a.Addr() // also after a restart
	s.base = "http://" + a.Addr()
	a.Ready(s.t)
}

// fail publishes a message that its consumer rejects.
func (s *service) fail(queue, body string) {
	s.t.Helper()
	err := s.ch.PublishWithContext(s.t.Context(), "", queue, true, false, amqp.Publishing{Body: []byte(body), ContentType: "application/json"})
	must(s.t, err)
	d := s.take(queue)
	if string(d.Body) != body {
		s.t.Fatalf("in the queue %s is %.100q, and not what was published there", queue, d.Body)
	}
	must(s.t, d.Reject(false))
}

// take waits for the next message of a queue.
func (s *service) take(queue string) (d amqp.Delivery) {
	s.t.Helper()
	brokertest.Eventually(s.t, "there is a message in "+queue, func() bool {
		var ok bool
		var err error
		if d, ok, err = s.ch.Get(queue, false); err != nil {
			s.t.Fatal(err)
		}
		return ok
	})
	return d
}

// arrives takes a message that is expected, and is done with it.
func (s *service) arrives(queue string) amqp.Delivery {
	s.t.Helper()
	d := s.take(queue)
	must(s.t, d.Ack(false))
	return d
}

var must, errOf = expect.NoError, expect.ErrOf
