package stories_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

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
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		calls, failed := make(chan told, 100), make(chan struct{}, 100)
		var down atomic.Bool
		hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if down.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
				failed <- struct{}{}
				return
			}
			var c told
			if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
				t.Error(err)
			}
			calls <- c
		}))
		defer hook.Close()
		next := func() (c told) {
			t.Helper()
			select {
			case c = <-calls:
			case <-time.After(brokertest.Patience):
				t.Fatal("no notification arrived")
			}
			return c
		}
		v.Queue("mail", nil)
		v.Queue("orders", nil)
		s := start(t, v, `
policies: [{name: p, queues: [mail, orders], attempts: 1}]
notify:
  page: https://redrive.example.com
  allow_private: [127.0.0.0/8]
  routes: [{name: hook, url: "`+strings.Replace(hook.URL, "http:", "generic+http:", 1)+`", events: [parked], group_wait: 100ms}]
`).ready(t)
		ch := v.Channel()
		fail := func(queue string) {
			publish(t, ch, wire.ExchangeFailures, queue, amqp.Publishing{Body: []byte("s3cret"), Headers: amqp.Table{
				wire.HeaderError: "no stock for <!channel> @here", wire.HeaderExchange: "", wire.HeaderRoutingKey: queue}})
		}
		fail("mail")
		if c := next(); c.Count != 1 || c.Queue != "mail" || c.Event != "parked" || !strings.Contains(c.Message, "no stock for ‹!channel› ＠here") ||
			!strings.HasPrefix(c.Link, "https://redrive.example.com/messages?q=state%3Aparked+queue%3A%22mail%22+parked%3A%3E%3D20") || strings.Contains(c.Message, "s3cret") {
			t.Errorf("it was told %+v", c)
		}
		down.Store(true)
		fail("orders")
		select {
		case <-failed:
		case <-time.After(brokertest.Patience):
			t.Fatal("the webhook was not tried")
		}
		for range 49 {
			fail("orders")
		}
		s.WaitParked(t, 51)
		down.Store(false)
		if c := next(); c.Count != 50 || c.Queue != "orders" {
			t.Errorf("after it was down it was told %+v", c)
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if len(calls) != 0 {
			t.Errorf("it was told again: %+v", <-calls)
		}
	})
}
