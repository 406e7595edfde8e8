package stories_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/wire"
)

// alertHook is a webhook's server. It sends each event that it receives, with its queues.
func alertHook(t *testing.T) (url string, calls chan string) {
	calls = make(chan string, 100)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m struct {
			Event, Severity string
			Items           []struct{ Queue string }
		}
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		var queues []string
		for _, i := range m.Items {
			queues = append(queues, i.Queue)
		}
		slices.Sort(queues)
		calls <- fmt.Sprintf("%s %s: %s", m.Severity, m.Event, strings.Join(queues, " "))
	}))
	t.Cleanup(hook.Close)
	return strings.Replace(hook.URL, "http:", "generic+http:", 1), calls
}

// conditions are those that a service shows to Prometheus.
func (s *service) conditions(t *testing.T) (all []string) {
	t.Helper()
	resp, err := http.Get("http://" + s.Addr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^redrive_condition\{event="(\w+)",queue="([^"]*)"\} 1$`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1]+" "+m[2])
	}
	return all
}

// Two replicas on one Redis: that queues have messages and no consumers is sent once, and shown by
// one of them. When that one ends the other shows it, from when it began, and sends it no second
// time.
func TestAlertsOfReplicasAreSentOnce(t *testing.T) {
	redis := redisnode.New(t, redisnode.Options{})
	var stores atomic.Int64
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		deadLettered(v, "orders", "quorum")
		for _, queue := range []string{"old.dlq", "consumed.dlq", "somebody's"} {
			v.Queue(queue, nil)
		}
		v.Queue("mail", nil)
		for _, queue := range []string{"orders", "old.dlq", "consumed.dlq", "somebody's"} {
			v.Publish("", queue, amqp.Publishing{Body: []byte("x")})
		}
		consume(t, v, "consumed.dlq")
		brokertest.Eventually(t, "RabbitMQ's statistics have the messages and the consumer", func() bool {
			all, err := v.API().WatchedQueues(t.Context())
			return err == nil && !slices.ContainsFunc(all, func(q management.Queue) bool {
				return q.Messages == 0 && q.Name != "mail" || q.Name == "consumed.dlq" && q.Consumers == 0
			})
		})
		url, calls := alertHook(t)
		prefix := fmt.Sprint("alerts", stores.Add(1))
		replica := func() *service {
			c := configured(t, v, `
policies: [{name: p, queues: [orders, mail], attempts: 1}]
notify:
  watch: ["*.dlq"]
  no_consumer: 100ms
  allow_private: [127.0.0.0/8]
  severity: [{when: "header.tenant:gold", is: critical}]
  routes: [{name: hook, url: "`+url+`", events: [no_consumer, parked], group_wait: 100ms}]
`, t.TempDir())
			c.Broker.Management = v.Management
			c.Store.Redis.URL, c.Store.Redis.Prefix = redis.URL(), prefix
			return run(t, c).ready(t)
		}
		next := func(want string) {
			t.Helper()
			select {
			case got := <-calls:
				if got != want {
					t.Fatalf("it was told %q, want %q", got, want)
				}
			case <-time.After(2 * lateBy):
				t.Fatalf("it was not told %q", want)
			}
		}
		leader, follower := replica(), replica()
		next("critical no_consumer: old.dlq orders")
		shown := []string{"no_consumer old.dlq", "no_consumer orders"}
		brokertest.Eventually(t, "the leader shows the queues, and the other replica does not", func() bool {
			return slices.Equal(leader.conditions(t), shown) && len(follower.conditions(t)) == 0
		})
		if err := leader.Stop(); err != nil {
			t.Fatal(err)
		}
		brokertest.Eventually(t, "the other replica leads, and shows the queues", func() bool { return slices.Equal(follower.conditions(t), shown) })
		// Had it sent them again, that would come first.
		publish(t, v.Channel(), wire.ExchangeFailures, "mail", amqp.Publishing{Body: []byte("x"), Headers: amqp.Table{wire.HeaderError: "no stock", wire.HeaderExchange: "", wire.HeaderRoutingKey: "mail", "tenant": "gold"}})
		next("critical parked: mail")
		if err := follower.Stop(); err != nil {
			t.Fatal(err)
		}
		if len(calls) > 0 {
			t.Errorf("it was told again: %s", <-calls)
		}
	})
}
