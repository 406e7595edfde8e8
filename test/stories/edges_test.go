package stories_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// told is what a webhook is sent.
type told struct {
	Title, Message, Event, Queue, Link string
	Count                              int
}

// One parked message is one call; fifty that are parked while the webhook is down are
// one as soon as it is up, and nothing waits for it.
func TestParkedMessagesSendNotifications(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		calls, failed := make(chan told, 100), make(chan struct{}, 100)
		var down atomic.Bool
		hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if down.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
				failed <- struct{}{}
				return
			}
			var c told
			must(t, json.NewDecoder(r.Body).Decode(&c))
			calls <- c
		}))
		defer hook.Close()
		next := func() told { return brokertest.Receive(t, calls, "a notification") }
		v.Queue("mail", nil)
		v.Queue("orders", nil)
		s := start(t, v, `
policies: [{name: p, queues: [mail, orders], attempts: 1}]
notify:
  page: https://redrive.example.com
  allow_private: [127.0.0.0/8]
  routes: [{name: hook, url: "`+strings.Replace(hook.URL, "http:", "generic+http:", 1)+`", events: [parked], group_wait: 100ms}]
`).ready(t)
		fail := func(queue string) {
			v.Publish(wire.ExchangeFailures, queue, amqp.Publishing{Body: []byte("s3cret"), Headers: amqp.Table{
				wire.HeaderError: "no stock for <!channel> @here", wire.HeaderExchange: "", wire.HeaderRoutingKey: queue}})
		}
		fail("mail")
		if c := next(); c.Count != 1 || c.Queue != "mail" || c.Event != "parked" || !strings.Contains(c.Message, "no stock for ‹!channel› ＠here") ||
			!strings.HasPrefix(c.Link, "https://redrive.example.com/messages?q=state%3Aparked+queue%3A%22mail%22+parked%3A%3E%3D20") || strings.Contains(c.Message, "s3cret") {
			t.Errorf("it was told %+v", c)
		}
		down.Store(true)
		fail("orders")
		brokertest.Receive(t, failed, "a call of the webhook that fails")
		for range 49 {
			fail("orders")
		}
		s.WaitParked(t, 51)
		down.Store(false)
		if c := next(); c.Count != 50 || c.Queue != "orders" {
			t.Errorf("after it was down it was told %+v", c)
		}
		must(t, s.Stop())
		if len(calls) != 0 {
			t.Errorf("it was told again: %+v", <-calls)
		}
	})
}

// A service with broker.tls is the user of its certificate. While RabbitMQ's certificate
// is not to be trusted it says so, and what to do; the right file put in place is enough.
func TestAServiceWithACertificate(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		stranger, err := authority.New(t.TempDir())
		must(t, err)
		dir, user := t.TempDir(), "service-"+v.Name
		files := connect.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
		put(t, files.CA, stranger.CAFile())
		must(t, v.CA(t).Issue(authority.Leaf{User: user}, files.Cert, files.Key))
		c := configured(t, v, `policies: [{name: p, queues: [orders], backoff: {fixed: 50ms}}]`, t.TempDir())
		v.User(user, "s3cret")
		v.Give(user, management.ServiceRights(c.Policies))
		c.Broker.URL = v.SecureURL("", "", url.Values{"auth_mechanism": {"external"}, "cacertfile": {""}})
		c.Broker.Credentials.TLS = files
		v.Queue("orders", amqp.Table{"x-dead-letter-exchange": "redrive"})
		s := run(t, c)
		brokertest.Eventually(t, "the service says that it does not trust RabbitMQ", func() bool {
			return slices.ContainsFunc(s.Problems(), func(p string) bool {
				return strings.HasPrefix(p, "intake: connecting to amqps://") && strings.Contains(p, "unknown authority") && strings.Contains(p, "broker.tls.ca")
			})
		})
		put(t, files.CA, v.CA(t).CAFile())
		s.ready(t)
		v.Publish("", "orders", amqp.Publishing{Body: []byte("1")})
		consumer := v.Consume("orders")
		consumer.Reject()
		s.wait(t, retry.Retried)
		consumer.Take("1")
	})
}

func put(t *testing.T, file, from string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	must(t, err)
}

// To a handler of the Go library a message that a person has replayed is the one that was parked:
// as first published, with the id under which people know it, and so it stays if it fails again.
func TestAHandlerKnowsAReplayedMessage(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		deadLettered(v, "orders", "quorum")
		v.Must("PUT", "exchanges/"+v.Name+"/shop", map[string]any{"type": "topic"})
		v.Must("POST", "bindings/"+v.Name+"/e/shop/q/orders", map[string]any{"routing_key": "order.*"})
		s := managed(t, v, oneAttempt, t.TempDir())
		attempts := make(chan redrive.Message, 1)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- redrive.Consume(ctx, redrive.Config{URLs: []string{v.URL()}}, redrive.Consumer{Queue: "orders", Wait: redrive.Service(), Handler: func(_ context.Context, m *redrive.Message) error {
				attempts <- *m
				return errors.New("no stock")
			}})
		}()
		v.Publish("shop", "order.eu", amqp.Publishing{Body: []byte("1"), Headers: amqp.Table{"n": int32(1)}})
		if first := <-attempts; first.Attempt != 1 || first.ID != "" {
			t.Errorf("the first attempt is number %d of id %q", first.Attempt, first.ID)
		}
		id := s.WaitParked(t, 1)[0].ID
		for n := range 2 {
			if done, err := s.Client.Act(ctx, actions.Act{Verb: actions.Replay, IDs: []string{id}}); err != nil || done.Done != 1 {
				t.Fatalf("%+v, %v", done, err)
			}
			m := <-attempts
			if m.Attempt != 1 || m.Replays != n+1 || m.ID != id || m.FirstFailed.IsZero() || m.LastError != "no stock" {
				t.Errorf("replayed %d times, it is attempt %d of replay %d of id %q, first failed %s, last error %q; want 1 of %q", n+1, m.Attempt, m.Replays, m.ID, m.FirstFailed, m.LastError, id)
			}
			if m.Exchange != "shop" || m.RoutingKey != "order.eu" || len(m.Headers) != 1 || m.Headers["n"] != int32(1) {
				t.Errorf("replayed, it was published to %q with the key %q and has the headers %v", m.Exchange, m.RoutingKey, m.Headers)
			}
			if parked := s.WaitParked(t, 1)[0]; parked.ID != id || parked.Replays != n+1 {
				t.Errorf("failed again, its id is %q with %d replays, want %q with %d", parked.ID, parked.Replays, id, n+1)
			}
		}
		stop()
		must(t, <-ended)
	})
}
