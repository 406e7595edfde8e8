package notify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

func rulesOf(t *testing.T, pairs ...any) (all []Rule) {
	t.Helper()
	for pair := range slices.Chunk(pairs, 2) {
		r, err := NewRule(pair[0].(string), pair[1].(Severity))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// parkedRecord is a message that was parked.
func parkedRecord(queue, kind, tenant, error string) retry.Event {
	r := &store.Record{State: store.Parked, Queue: queue, Error: error, ParkedFor: "out of attempts", FailedAt: time.Now(), Due: time.Now(),
		Message: wire.Message{Type: kind, Headers: amqp.Table{"tenant": tenant}, Body: []byte(`{"total": 500}`)}}
	return retry.Event{Kind: retry.Parked, Queue: queue, Error: error, At: r.FailedAt, Record: r}
}

// The queue, the type, a header and the error of a message decide how severe it is; the first rule
// that finds it applies, and is before the list of critical queues.
func TestSeverityByMessage(t *testing.T) {
	s := DefaultSettings()
	s.Critical = []string{"campaigns.*"}
	s.Rules = rulesOf(t, "type:Newsletter", Info, `header.tenant:gold`, Critical, "error:timeout", Critical, "queue:*.dlq", Info, "queue:odd type:X", Critical)
	for _, c := range []struct {
		queue, kind, tenant, error string
		want                       Severity
	}{
		{"orders", "OrderPlaced", "acme", "out of stock", Warning},
		{"orders", "OrderPlaced", "gold", "out of stock", Critical},
		{"orders", "OrderPlaced", "acme", "read: i/o Timeout", Critical},
		{"orders", "Newsletter", "gold", "timeout", Info},
		{"campaigns.eu", "OrderPlaced", "acme", "", Critical},
		{"campaigns.eu", "Newsletter", "acme", "", Info},
		{"old.dlq", "", "", "", Info},
	} {
		ev := parkedRecord(c.queue, c.kind, c.tenant, c.error)
		k := key{Kind: Parked, Queue: c.queue, Severity: s.severityOf(&ev, nil)}
		if got := s.severity(k); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	// A condition has no message: rules by the queue alone apply.
	for queue, want := range map[string]Severity{"old.dlq": Info, "orders": Critical, "odd": Critical, "": Critical} {
		if got := s.severity(key{Kind: NoConsumer, Queue: queue}); got != want {
			t.Errorf("no consumers of %q: %s", queue, got)
		}
	}
}

// What a rule asks for costs only what it must: no rule is asked for events that no route sends, and
// no body is decoded that no rule asks for.
func TestWhatSeverityCosts(t *testing.T) {
	decoded := 0
	o := options(t)
	o.Decode = func(*store.Record) *decode.Result { decoded++; return &decode.Result{} }
	s, r := DefaultSettings(), DefaultRoute()
	r.Name, r.URL, r.Queues = "hook", "generic+https://hook.example/", []string{"orders"}
	s.Routes = []Route{r, r}
	s.Routes[1].Name = "other"
	park := func(queue string, rules ...any) {
		s.Rules = rulesOf(t, rules...)
		e, err := New(s, o)
		if err != nil {
			t.Fatal(err)
		}
		e.Event(parkedRecord(queue, "", "gold", ""))
	}
	for _, c := range []struct {
		queue string
		rules []any
		want  int
	}{
		{"orders", []any{"header.tenant:gold", Critical}, 0},
		{"orders", []any{"header.tenant:gold", Critical, "body.total:>100", Critical}, 0},
		{"orders", []any{"header.tenant:acme body.total:>100", Critical}, 0},
		{"orders", []any{"body.total:>100", Critical, "body.total:>10", Info}, 1},
		{"mail", []any{"body.total:>100", Critical}, 0},
	} {
		if decoded = 0; true {
			park(c.queue, c.rules...)
		}
		if decoded != c.want {
			t.Errorf("%s, %v: %d bodies were decoded, not %d", c.queue, c.rules, decoded, c.want)
		}
	}
}

// The pager rings for the severe messages of a queue, and for no others; the chat gets both, apart;
// and a restart mixes up nothing.
func TestSevereMessagesOfAQueueAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(s *Settings, _ *Route) { s.Rules = rulesOf(t, "header.tenant:gold", Critical) })
		park := func(tenant string, n int) {
			for range n {
				d.Event(parkedRecord("orders", "", tenant, "no stock"))
			}
		}
		park("acme", 5)
		park("gold", 2)
		d.after(t, 11*time.Second, "10s 7 messages parked in 1 queue")
		park("gold", 1)
		d.after(t, 30*time.Minute)
		d.stop()
		d.open(t)
		park("acme", 3)
		park("gold", 1)
		d.after(t, time.Hour, "1h0m10s 5 messages parked in 1 queue")
	})
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(s *Settings, r *Route) {
			s.Rules = rulesOf(t, "header.tenant:gold", Critical)
			r.Least = Critical
		})
		d.Event(parkedRecord("orders", "", "acme", "no stock"))
		d.Event(parkedRecord("orders", "", "gold", "no stock"))
		d.after(t, time.Minute, "10s orders: 1 message parked, critical")
	})
}

// Of replicas, each says how severe its messages are; the leader does not have them.
func TestSeverityIsRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(s *Settings, r *Route) {
			s.Rules = rulesOf(t, "header.tenant:gold", Critical)
			r.Least = Critical
		})
		d.stop()
		d.o.Replica = "leader"
		d.open(t)
		o := d.o
		o.Replica = "follower"
		follower, err := New(d.s, o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { follower.Relay(ctx); close(done) }()
		follower.Event(parkedRecord("orders", "", "acme", ""))
		follower.Event(parkedRecord("orders", "", "gold", ""))
		d.after(t, time.Minute, "10s orders: 1 message parked, critical")
		stop()
		<-done
	})
}

// An incident of each queue is opened and resolved by itself; what could not be sent is sent again,
// and nothing else is.
func TestAPagerIsToldOfEachQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(_ *Settings, r *Route) { r.URL = "pagerduty://events.pagerduty.com/abcdef0123456789" })
		var got []string
		down, refused := "none", "none"
		d.stop()
		d.to = func(m *Message, _ send) error {
			switch {
			case len(m.Items) != 1 || m.queue() == down:
				return errors.New("down")
			case m.queue() == refused:
				return refusedError{errors.New("it answers 400 Bad Request")}
			}
			got = append(got, fmt.Sprintf("%s resolved=%v", dedupKey("redrive", m), m.Resolved()))
			return nil
		}
		d.open(t)
		after := func(wait time.Duration, want ...string) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("after %s: %s, want %s", time.Since(d.began), strings.Join(got, "; "), strings.Join(want, "; "))
			}
			got = nil
		}
		a, b, c := Condition{Kind: NoConsumer, Queue: "a"}, Condition{Kind: NoConsumer, Queue: "b"}, Condition{Kind: BrokerBlocked}
		after(2 * time.Minute)
		d.set(a, b, c)
		after(time.Minute, "redrive/broker_blocked resolved=false", "redrive/no_consumer/a resolved=false", "redrive/no_consumer/b resolved=false")
		down = "b" // which is sent after a
		d.set(c)
		after(time.Minute, "redrive/no_consumer/a resolved=true")
		down = "none"
		after(10*time.Minute, "redrive/no_consumer/b resolved=true")
		// The key of one team is wrong; another team's pager rings, also for what begins meanwhile.
		refused = "a"
		d.set(a, b, c)
		after(30*time.Minute, "redrive/no_consumer/b resolved=false")
		d.set(a, b, c, Condition{Kind: NoConsumer, Queue: "d"})
		after(90*time.Second, "redrive/no_consumer/d resolved=false")
		refused = "none"
		after(time.Minute, "redrive/no_consumer/a resolved=false")
		d.set(c)
		after(time.Minute, "redrive/no_consumer/a resolved=true", "redrive/no_consumer/b resolved=true", "redrive/no_consumer/d resolved=true")
		d.set(Condition{Kind: BrokerBlocked, Unknown: true}, Condition{Kind: NoConsumer, Queue: "a", Unknown: true})
		after(10 * time.Minute)
		d.set()
		after(time.Minute, "redrive/broker_blocked resolved=true")
	})
}

// Nothing is known of one queue: its condition stays, and the same of another queue ends.
func TestUnknownOfOneQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.after(t, 2*time.Minute)
		d.set(Condition{Kind: QueueFilling, Queue: "a"}, Condition{Kind: QueueFilling, Queue: "b"})
		d.after(t, 30*time.Second, "2m25s the queue fills up and has no consumers (2 queues)")
		d.set(Condition{Kind: QueueFilling, Queue: "a", Unknown: true})
		d.after(t, 30*time.Second, "2m55s resolved: b: the queue no longer fills up")
		d.set()
		d.after(t, 30*time.Second, "3m25s resolved: a: the queue no longer fills up")
	})
}
