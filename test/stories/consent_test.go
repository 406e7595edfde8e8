package stories_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

const byPattern = `policies: [{name: p, queues: ["orders.*"], attempts: 3, backoff: {fixed: 50ms}, jitter: none, no_consumer: retry}]`

// reported publishes a failure of a queue's as a consumer does.
func reported(t *testing.T, v *brokertest.VHost, queue string) {
	t.Helper()
	publish(t, v.Channel(), wire.ExchangeFailures, queue, amqp.Publishing{Body: []byte(queue), Headers: amqp.Table{wire.HeaderError: "no stock"}})
}

// A queue whose effective dead-letter exchange is redrive, by its argument or a policy of
// RabbitMQ's, consents: its first report is retried. One that has another is left alone.
func TestAReportIsRetriedWhereTheQueueDeadLettersToRedrive(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := run(t, servertest.Config(t, v, byPattern)).ready(t)
		v.Policy("theirs", `^orders\.policy`, 0, map[string]any{"dead-letter-exchange": "redrive"})
		v.Policy("other", `^orders\.other`, 0, map[string]any{"dead-letter-exchange": "elsewhere"})
		consents := []string{"orders.argument.classic", "orders.argument.quorum", "orders.policy.classic", "orders.policy.quorum"}
		for _, q := range append(consents, "orders.other.classic", "orders.none.quorum") {
			args := amqp.Table{"x-queue-type": q[strings.LastIndex(q, ".")+1:]}
			if strings.Contains(q, "argument") {
				args["x-dead-letter-exchange"] = "redrive"
			}
			v.Queue(q, args)
			reported(t, v, q)
		}
		for _, q := range consents {
			if d := consume(t, v, q).next(); string(d.Body) != q || d.Headers[wire.HeaderAttempt] != int64(1) {
				t.Errorf("%q came back to %s with attempt %v", d.Body, q, d.Headers[wire.HeaderAttempt])
			}
		}
		reported(t, v, "orders.invented")
		for _, p := range s.WaitParked(t, 3) {
			if slices.Contains(consents, p.Queue) || !strings.Contains(p.ParkedFor, "is not enrolled") {
				t.Errorf("%q is parked because %s", p.Queue, p.ParkedFor)
			}
		}
		// Its owner thinks better of it: a replay sees that.
		v.Policy("late", `^orders\.none`, 0, map[string]any{"dead-letter-exchange": "redrive"})
		if n := s.Replay(t, "queue:orders.none.quorum"); n != 1 {
			t.Errorf("%d were replayed", n)
		}
		consume(t, v, "orders.none.quorum").next()
	})
}

// While the management API cannot be asked a report waits, its attempt intact; it is shown
// everywhere, with the remedy, and goes on by itself.
func TestAReportWaitsWhileConsentIsUnknown(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		c := configured(t, v, byPattern, t.TempDir())
		asService := func() string {
			u, err := url.Parse(v.Management)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.UserPassword(v.ServiceUser(), brokertest.ServicePassword)
			return u.String()
		}
		tag := func(tags string) {
			v.Must(http.MethodPut, "users/"+v.ServiceUser(), map[string]any{"password": brokertest.ServicePassword, "tags": tags})
		}
		for i, way := range []struct {
			management, says string
			end              func(*config.Config)
		}{
			{asService(), "rabbitmqctl set_user_tags '" + v.ServiceUser() + "' management", nil},
			{"http://u:s3cretnot@127.0.0.1:1", "broker.management", func(c *config.Config) { c.Broker.Management = v.Management }},
			{"", "set broker.management", func(c *config.Config) { c.Broker.Management = v.Management }},
		} {
			queue := fmt.Sprint("orders.", i)
			v.Queue(queue, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
			c.Broker.Management = way.management
			s := run(t, c).ready(t)
			reported(t, v, queue)
			brokertest.Eventually(t, "the service says that the report waits", func() bool {
				all := strings.Join(s.Problems(), "\n")
				return strings.Contains(all, "queue "+queue+": ") && strings.Contains(all, "reports of failures wait") && strings.Contains(all, way.says)
			})
			if q := s.kept(t, queue); q.Waiting != 1 || q.Parked != 0 || !strings.Contains(q.Unreachable, way.says) {
				t.Errorf("the queue is %+v", q)
			}
			resp, err := http.Get("http://" + s.Addr() + "/readyz")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s for reports of one queue, which anybody may publish who may report", resp.Status)
			}
			if way.end == nil {
				tag("management")
			} else { // it is durable, too
				if err := s.Stop(); err != nil {
					t.Fatal(err)
				}
				way.end(c)
				s = run(t, c)
			}
			if d := consume(t, v, queue).next(); d.Headers[wire.HeaderAttempt] != int64(1) {
				t.Errorf("it came back with attempt %v", d.Headers[wire.HeaderAttempt])
			}
			s.ready(t)
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			tag("")
		}
	})
}

// However many names reports invent, the management API is not asked for each.
func TestInventedNamesAreNotLookedUpEach(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		const names = 200
		api, err := url.Parse(v.Management)
		if err != nil {
			t.Fatal(err)
		}
		var asked atomic.Int64
		counting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			httputil.NewSingleHostReverseProxy(&url.URL{Scheme: api.Scheme, Host: api.Host}).ServeHTTP(w, r)
		}))
		defer counting.Close()
		c := servertest.Config(t, v, byPattern)
		through := *api
		through.Scheme, through.Host = "http", strings.TrimPrefix(counting.URL, "http://")
		c.Broker.Management = through.String()
		s := run(t, c).ready(t)
		ch := v.Channel()
		for i := range names {
			publish(t, ch, wire.ExchangeFailures, fmt.Sprint("orders.invented.", i), amqp.Publishing{})
		}
		s.WaitParked(t, names)
		if n := asked.Load(); n == 0 || n > names/2 {
			t.Errorf("%d questions for %d names", n, names)
		}
	})
}
