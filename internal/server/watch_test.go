package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// listed are the queues of a RabbitMQ, by name; nil: it does not answer.
type listed map[string]management.QueueState

// queueState is a queue that is enrolled, or dead-letters nowhere.
func queueState(name string, enrolled bool, consumers, ready int) (q management.QueueState) {
	q.Name, q.Type, q.Consumers, q.Ready = name, "quorum", consumers, ready
	if enrolled {
		q.Arguments = map[string]any{"x-dead-letter-exchange": "redrive"}
	}
	return q
}

// watchedFrom is a queueWatch of queues. The dead-letter queues among them end with .dlq.
func watchedFrom(s store.SideTable, queues *listed) (*queueWatch, *condition.Set) {
	h, _ := readyConditions()
	w := &queueWatch{conditions: h, store: s, log: quiet().Log, queues: map[string]*seenQueue{},
		list: func(context.Context) (all []management.QueueState, err error) {
			if *queues == nil {
				return nil, errors.New("RabbitMQ is away")
			}
			for _, q := range *queues {
				all = append(all, q)
			}
			return all, nil
		},
		keeps: func(context.Context) (func(string) bool, error) {
			return func(queue string) bool { return strings.HasSuffix(queue, ".dlq") }, nil
		}}
	w.configured.Store(new(config.Watches))
	return w, h
}

// standing runs w for d, and returns the conditions then. The next run continues as a restarted service does not.
func standing(t *testing.T, w *queueWatch, h *condition.Set, d time.Duration) string {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(watchEvery) {
		w.look(t.Context())
	}
	var all []string
	for _, c := range h.List() {
		all = append(all, fmt.Sprintf("%s for %s", c, time.Since(c.Since)))
	}
	return strings.Join(all, "; ")
}

const stands, since = "standing queue ", "no consumer for more than 15m, and messages are ready "

// A queue that messages stay in is reported once nothing has taken any for 15 minutes, and until something does.
func TestAQueueWithoutConsumersStands(t *testing.T) {
	const orders = stands + "orders: " + since + "(1,200)"
	type step struct {
		consumers, ready int
		lasts            time.Duration
		want             string
	}
	for name, c := range map[string]struct {
		queue    string
		enrolled bool
		steps    []step
	}{
		"an enrolled queue": {"orders", true, []step{
			{0, 1200, 15 * time.Minute, ""}, {0, 1200, time.Minute, orders + " for 16m0s"},
			{0, 1200, time.Hour, orders + " for 1h16m0s"}, {1, 1200, time.Minute, ""},
			{0, 1200, 15 * time.Minute, ""}, {0, 1200, time.Minute, orders + " for 16m0s"}, {0, 0, time.Minute, ""}}},
		"the old queue of a migration": {"orders", false, []step{
			{2, 1200, time.Minute, ""}, {0, 1200, 15 * time.Minute, ""},
			{0, 1200, time.Minute, orders + " for 16m0s"}, {1, 0, time.Minute, ""}}},
		"rolling restarts": {"orders", true, []step{
			{2, 1200, time.Hour, ""}, {0, 1200, time.Minute, ""}, {2, 900, 10 * time.Minute, ""},
			{0, 1200, 14 * time.Minute, ""}, {1, 1200, watchEvery, ""}, {0, 1200, 14 * time.Minute, ""}}},
		"an empty queue":                       {"orders", true, []step{{0, 0, time.Hour, ""}}},
		"a queue that never had consumers":     {"archive", false, []step{{0, 3, time.Hour, ""}}},
		"a dead-letter queue that was adopted": {"orders.dlq", false, []step{{1, 3, time.Minute, ""}, {0, 3, time.Hour, ""}}},
		"a queue of Redrive's":                 {"redrive.intake", true, []step{{1, 3, time.Minute, ""}, {0, 3, time.Hour, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queues := listed{}
				w, h := watchedFrom(memstore.New(), &queues)
				for i, s := range c.steps {
					queues[c.queue] = queueState(c.queue, c.enrolled, s.consumers, s.ready)
					expect.Equal(t, standing(t, w, h, s.lasts), s.want, "after step %d", i)
				}
			})
		})
	}
}

// The config says which queues are watched, and for what; the first entry that matches decides.
func TestWhatTheConfigWatches(t *testing.T) {
	const (
		limit = " messages are ready, and its limit is "
		over  = "long queue orders: %s" + limit + "1,000 for %s"
		dead  = "long queue orders.dlq: %s" + limit + "0 for %s"
		grows = "long queue mail: it has grown for more than 1h, and never fell (%s messages are ready) for %s"
	)
	c, err := config.Parse("f.yaml", []byte(`watch:
  - {queues: ["quiet.*"], standing: never}
  - {queues: [five.dlq], ready: 5}
  - {queues: ["*.dlq"], ready: 0}
  - {queues: [orders], ready: 1000, standing: 20m}
  - {queues: [mail], growing_for: 1h, standing: 0}
  - {queues: ["archive*"]}
  - {queues: ["*"], ready: 1, standing: 1m}`))
	must(t, err)
	type step struct {
		consumers, ready int
		rises            int // at each look
		lasts            time.Duration
		want             string
	}
	for name, q := range map[string]struct {
		queue string
		steps []step
	}{
		"an entry turns it off": {"quiet.orders", []step{{1, 5, 0, time.Minute, ""}, {0, 5, 9, time.Hour, ""}}},
		"the default, of a queue that never had consumers": {"archive", []step{{0, 5, 0, 15 * time.Minute, ""},
			{0, 5, 0, time.Minute, stands + "archive: " + since + "(5) for 16m0s"}}},
		"a time of its own": {"orders", []step{{0, 5, 0, 20 * time.Minute, ""}, {0, 5, 0, time.Minute, stands +
			"orders: no consumer for more than 20m, and messages are ready (5) for 21m0s"}}},
		"a dead-letter queue gets messages": {"orders.dlq", []step{{0, 0, 0, time.Hour, ""}, {0, 1, 0, watchEvery, ""},
			{0, 1, 0, watchEvery, fmt.Sprintf(dead, "1", "1m0s")},
			{0, 2, 0, time.Hour, fmt.Sprintf(dead, "2", "1h1m0s")}, {0, 0, 0, watchEvery, ""},
			{1, 5, 0, watchEvery, ""}, {1, 5, 0, time.Minute, fmt.Sprintf(dead, "5", "1m30s")}}},
		"a dead-letter queue grows": {"five.dlq", []step{{0, 3, 0, time.Hour, ""}, {0, 6, 0, watchEvery, ""},
			{0, 6, 0, watchEvery, "long queue five.dlq: 6" + limit + "5 for 1m0s"}}},
		"a length at the limit": {"orders", []step{{2, 1000, 0, time.Hour, ""}}},
		"a length that stays": {"orders", []step{{2, 1200, 0, 15 * time.Minute, ""},
			{2, 1200, 0, time.Minute, fmt.Sprintf(over, "1,200", "16m0s")},
			{2, 901, 0, time.Minute, fmt.Sprintf(over, "901", "17m0s")}, {2, 900, 0, watchEvery, ""},
			{2, 1000, 0, time.Hour, ""}, {2, 1001, 0, 15 * time.Minute, ""}}},
		"rolling restarts": {"orders", []step{{2, 50, 0, time.Hour, ""}, {0, 1200, 9, time.Minute, ""},
			{2, 1200, 0, 10 * time.Minute, ""}, {2, 3, 0, time.Hour, ""}, {0, 5000, 0, 14 * time.Minute, ""},
			{1, 900, 0, watchEvery, ""}, {0, 5000, 0, 14 * time.Minute, ""}}},
		"a length that grows": {"mail", []step{{2, 1, 1, time.Hour, ""},
			{2, 500, 1, time.Minute, fmt.Sprintf(grows, "501", "1h0m30s")},
			{2, 501, 0, 59 * time.Minute, fmt.Sprintf(grows, "501", "1h59m30s")}, {2, 501, 0, 2 * time.Minute, ""},
			{2, 501, 1, time.Hour, ""}, {2, 900, 0, time.Minute, fmt.Sprintf(grows, "900", "1h0m30s")},
			{2, 899, 0, watchEvery, ""}}},
		"rolling restarts of what must not grow": {"mail", []step{{2, 5, 0, 2 * time.Hour, ""},
			{0, 100, 5, 14 * time.Minute, ""}, {2, 3, 0, time.Hour, ""}, {0, 100, 5, 14 * time.Minute, ""},
			{2, 300, -1, 2 * time.Minute, ""}, {2, 296, 1, 59 * time.Minute, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queues := listed{}
				w, h := watchedFrom(memstore.New(), &queues)
				w.configured.Store(&c.Watch)
				for i, s := range q.steps {
					is := ""
					for range s.lasts / watchEvery {
						queues[q.queue] = queueState(q.queue, false, s.consumers, s.ready)
						is = standing(t, w, h, watchEvery)
						s.ready += s.rises
					}
					expect.Equal(t, is, s.want, "after step %d", i)
				}
			})
		})
	}
}

// Messages are reported that stay unacknowledged, once none of the queue was settled for long, also over a restart.
func TestMessagesThatStayUnacknowledged(t *testing.T) {
	const orders = "unacknowledged messages of queue orders: none was acknowledged for more than 30m, of %d for %s"
	type step struct {
		unacked, delivered int
		more               int // messages delivered at each look
		lasts              time.Duration
		want               string
	}
	for name, steps := range map[string][]step{
		"a handler that hangs": {{1, 7, 0, 30 * time.Minute, ""},
			{1, 7, 0, time.Minute, fmt.Sprintf(orders, 1, "31m0s")},
			{5, 11, 0, time.Hour, fmt.Sprintf(orders, 5, "1h31m0s")}, {4, 11, 0, watchEvery, ""},
			{4, 11, 0, 29 * time.Minute, ""}, {4, 11, 0, time.Minute, fmt.Sprintf(orders, 4, "30m30s")},
			{0, 11, 0, watchEvery, ""}},
		"a full prefetch that goes on": {{10, 50, 1, 2 * time.Hour, ""}},
		"rolling restarts of consumers": {{5, 50, 0, 29 * time.Minute, ""}, {0, 50, 0, watchEvery, ""},
			{5, 55, 0, 29 * time.Minute, ""}, {5, 60, 0, 29 * time.Minute, ""}},
		"a restart of RabbitMQ":           {{5, 50, 0, 29 * time.Minute, ""}, {5, 5, 0, 29 * time.Minute, ""}},
		"RabbitMQ without its statistics": {{5, 0, 0, 2 * time.Hour, ""}},
		"counts that lag behind": {{5, 5, 0, watchEvery, ""}, {6, 5, 0, 10 * time.Minute, ""},
			{6, 6, 0, 19*time.Minute + watchEvery, ""}, {6, 6, 0, watchEvery, fmt.Sprintf(orders, 6, "30m30s")}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queues, s := listed{}, memstore.New()
				watch := &config.Watches{{Queues: []string{"orders"}, Unacked: 30 * time.Minute}}
				w, h := watchedFrom(s, &queues)
				w.configured.Store(watch)
				for i, at := range steps {
					is := ""
					for range at.lasts / watchEvery {
						q := queueState("orders", true, 1, 3)
						q.Unacked, q.Stats.Delivers, q.Stats.Gets = at.unacked, at.delivered, 0
						queues["orders"] = q
						is = standing(t, w, h, watchEvery)
						at.delivered += at.more
					}
					expect.Equal(t, is, at.want, "after step %d", i)
					if is != "" { // it outlives a restart
						w, h = watchedFrom(s, &queues)
						w.configured.Store(watch)
						w.load(t.Context())
						expect.Equal(t, len(h.List()), 1, "conditions after a restart")
					}
				}
			})
		})
	}
}

// Each increase of a dead-letter queue is marked, where the config wants it; a restart marks none.
func TestEachIncreaseOfADeadLetterQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := 0
		watch := &config.Watches{{Queues: []string{"a.dlq"}, Ready: &limit, EachIncrease: true},
			{Queues: []string{"*"}, Ready: &limit}}
		queues, s := listed{}, memstore.New()
		w, h := watchedFrom(s, &queues)
		w.configured.Store(watch)
		for i, at := range []struct {
			ready, unacked int
			lasts          time.Duration
			ago            string // when it grew; "": never
		}{
			{2, 0, time.Minute, ""}, {2, 0, time.Minute, ""}, {3, 0, watchEvery, "30s"}, {3, 0, time.Minute, "1m30s"},
			{1, 2, time.Minute, "2m30s"}, {3, 0, time.Minute, "3m30s"}, // somebody looks at two, and puts them back
			{1, 0, time.Minute, "4m30s"}, {2, 0, time.Minute, "1m0s"}, {0, 0, time.Minute, "none"},
			{5, 0, time.Minute, ""},
			{6, 0, time.Minute, "1m0s"},
		} {
			queues["a.dlq"] = queueState("a.dlq", false, 0, at.ready)
			queues["b.dlq"] = queueState("b.dlq", false, 0, 10+i)
			q := queues["a.dlq"]
			q.Unacked = at.unacked
			queues["a.dlq"] = q
			standing(t, w, h, at.lasts)
			grew := map[string]string{"a.dlq": "none"}
			for _, c := range h.List() {
				if grew[c.Queue] = ""; !c.Grew.IsZero() {
					grew[c.Queue] = time.Since(c.Grew).String()
				}
			}
			expect.Equal(t, grew["a.dlq"], at.ago, "after step %d it grew before", i)
			expect.Equal(t, grew["b.dlq"], "", "after step %d, what wants no mark grew before", i)
		}
		w, h = watchedFrom(s, &queues)
		w.configured.Store(watch)
		w.load(t.Context())
		standing(t, w, h, time.Minute)
		expect.Equal(t, time.Since(h.List()[0].Grew).String(), "2m0s", "after a restart it grew before")
	})
}

// What is read with basic.get has no consumers, and a stream keeps what was read.
func TestAQueueThatIsReadDoesNotStand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		polled, stream := queueState("polled", true, 0, 5), queueState("stream", true, 0, 5)
		polled.Stats.Delivered.Average, stream.Type = 1./60, "stream"
		queues := listed{"polled": polled, "stream": stream}
		w, h := watchedFrom(memstore.New(), &queues)
		expect.Equal(t, standing(t, w, h, time.Hour), "", "the conditions")
	})
}

// Consumers may have been there while RabbitMQ did not answer. What stands already still does.
func TestWhatWasNotSeenDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queues := listed{"new": queueState("new", true, 0, 1)}
		w, h := watchedFrom(memstore.New(), &queues)
		standing(t, w, h, 10*time.Minute)
		was := queues
		queues = nil
		standing(t, w, h, 6*time.Minute)
		queues = was
		expect.Equal(t, standing(t, w, h, 15*time.Minute), "", "the conditions after RabbitMQ was away")
		const new = stands + "new: " + since + "(1) for "
		expect.Equal(t, standing(t, w, h, time.Minute), new+"16m0s", "the conditions after 15 minutes")
		queues = nil
		expect.Equal(t, standing(t, w, h, 2*time.Minute), new+"18m0s", "the conditions while it may start again")
		expect.Equal(t, standing(t, w, h, time.Hour), "management API: it does not answer, so what only it knows is not "+
			"shown for 1h2m0s; "+new+"1h18m0s", "the conditions without RabbitMQ")
		expect.Equal(t, h.Ready(), true, "it is ready")
		queues = was
		expect.Equal(t, standing(t, w, h, time.Minute), new+"1h19m0s", "the conditions with it")
	})
}

// Consumers may also have made it short, and another queue may dead-letter to it now.
func TestALengthThatWasNotSeenDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := 1
		queues := listed{"grows": queueState("grows", true, 1, 1), "over": queueState("over", false, 1, 2)}
		w, h := watchedFrom(memstore.New(), &queues)
		w.configured.Store(&config.Watches{{Queues: []string{"*"}, Ready: &limit, GrowingFor: 15 * time.Minute}})
		standing(t, w, h, watchEvery)
		queues["grows"] = queueState("grows", true, 1, 1)
		standing(t, w, h, 10*time.Minute)
		was := queues
		queues = nil
		standing(t, w, h, 6*time.Minute)
		queues = was
		queues["grows"] = queueState("grows", true, 1, 2)
		expect.Equal(t, standing(t, w, h, 10*time.Minute), "", "the conditions after RabbitMQ was away")
		queues["over"] = queueState("over", false, 1, 0)
		standing(t, w, h, watchEvery)
		w.keeps = func(context.Context) (func(string) bool, error) {
			return func(string) bool { return true }, nil
		}
		queues["over"] = queueState("over", false, 1, 3)
		expect.Equal(t, standing(t, w, h, time.Minute),
			"long queue over: 3 messages are ready, and its limit is 1 for 1m0s", "of a dead-letter queue")
	})
}

// The metrics have the watched queues, those that the config names first, until RabbitMQ has not answered for long.
func TestTheMetricsOfWatchedQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := queueState("old", false, 2, 7)
		old.Unacked = 9
		queues := listed{"a": queueState("a", true, 1, 5), "old": old, "archive": queueState("archive", false, 0, 3),
			"z.dlq": queueState("z.dlq", false, 0, 1), "redrive.intake": queueState("redrive.intake", true, 1, 1)}
		w, h := watchedFrom(memstore.New(), &queues)
		w.configured.Store(&config.Watches{{Queues: []string{"*.dlq"}}})
		expect.Equal(t, len(w.shown()), 0, "queues before the first look")
		standing(t, w, h, watchEvery)
		const all = "[{z.dlq 1 0 0} {a 5 0 1} {old 7 9 2}]"
		expect.Equal(t, fmt.Sprint(w.shown()), all, "the queues")
		queues = nil
		standing(t, w, h, 4*time.Minute)
		expect.Equal(t, fmt.Sprint(w.shown()), all, "the queues without an answer")
		standing(t, w, h, time.Minute)
		expect.Equal(t, len(w.shown()), 0, "queues after 5 minutes without an answer")
	})
}

// A restarted service knows at once which queues stand, though it has not seen their consumers.
func TestAStandingQueueOutlivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		queues := listed{"old": queueState("old", false, 1, 1), "gone": queueState("gone", true, 0, 1)}
		w, h := watchedFrom(s, &queues)
		standing(t, w, h, time.Minute)
		queues["old"] = queueState("old", false, 0, 1)
		expect.Equal(t, strings.Count(standing(t, w, h, time.Hour), "; "), 1, "conditions before the restart")

		was := queues
		w, h = watchedFrom(s, &queues)
		queues = nil
		w.load(t.Context())
		expect.Equal(t, len(h.List()), 2, "conditions after the restart")
		delete(was, "gone")
		queues = was
		expect.Equal(t, standing(t, w, h, time.Minute),
			stands+"old: "+since+"(1) for 1h1m0s", "the conditions")
		queues["old"] = queueState("old", false, 1, 1)
		expect.Equal(t, standing(t, w, h, time.Minute), "", "the conditions with a consumer")

		w, h = watchedFrom(s, &queues)
		w.load(t.Context())
		expect.Equal(t, len(h.List()), 0, "conditions after the next restart")
	})
}

// A restart neither ends nor repeats the report of a long queue, and starts no other.
func TestALongQueueOutlivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		limit := 0
		watch := &config.Watches{{Queues: []string{"grows"}, GrowingFor: time.Hour},
			{Queues: []string{"*"}, Ready: &limit, Standing: time.Hour}}
		queues := listed{"a.dlq": queueState("a.dlq", false, 0, 3), "gone.dlq": queueState("gone.dlq", false, 0, 1),
			"b": queueState("b", true, 0, 2)}
		w, h := watchedFrom(s, &queues)
		w.configured.Store(watch)
		for i := range 125 {
			queues["grows"] = queueState("grows", true, 1, i+1)
			standing(t, w, h, watchEvery)
		}
		const all = "long queue a.dlq: 3 messages are ready, and its limit is 0 for %[1]s; " +
			"long queue b: 2 messages are ready, and its limit is 0 for %[1]s; " +
			"long queue grows: it has grown for more than 1h, and never fell (125 messages are ready) for %[2]s; " +
			"standing queue b: no consumer for more than 1h, and messages are ready (2) for %[1]s"
		delete(queues, "gone.dlq")
		expect.Equal(t, standing(t, w, h, watchEvery), fmt.Sprintf(all, "1h3m0s", "1h2m30s"), "before the restart")

		w, h = watchedFrom(s, &queues)
		w.configured.Store(watch)
		w.load(t.Context())
		expect.Equal(t, len(h.List()), 4, "conditions after the restart")
		queues["busy"] = queueState("busy", true, 0, 9)
		expect.Equal(t, standing(t, w, h, watchEvery), fmt.Sprintf(all, "1h3m30s", "1h3m0s"), "after it")
		queues["a.dlq"], queues["b"] = queueState("a.dlq", false, 0, 0), queueState("b", true, 1, 0)
		queues["grows"] = queueState("grows", true, 1, 124)
		expect.Equal(t, standing(t, w, h, 14*time.Minute), "", "without a cause")

		w, h = watchedFrom(s, &queues)
		w.load(t.Context())
		expect.Equal(t, len(h.List()), 0, "conditions after the next restart")
	})
}

// A queue that messages wait for is reported for its missing consumers, not twice.
func TestAQueueThatMessagesWaitForDoesNotStandToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queues := listed{"orders": queueState("orders", true, 0, 1)}
		w, h := watchedFrom(memstore.New(), &queues)
		h.Put(condition.Condition{Kind: condition.NoConsumer, Queue: "orders", Text: "none"})
		expect.Equal(t, standing(t, w, h, time.Hour), "consumers of queue orders: none for 1h0m0s", "the conditions")
		h.Put(condition.Condition{Kind: condition.NoConsumer, Queue: "orders"})
		expect.Equal(t, standing(t, w, h, time.Minute),
			stands+"orders: "+since+"(1) for 1h1m0s", "the conditions")
	})
}

// RabbitMQ lists what the watch needs to know: of queues that are enrolled or not, of one that had consumers, of a
// dead-letter queue, and of one that is read with basic.get.
func TestTheQueuesThatStandInRabbitMQ(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		v.Queue("work", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"})
		queues := []string{"orders", "work", "failed", "old", "archive"}
		for _, queue := range queues[2:] {
			v.Queue(queue, nil)
		}
		c := testConfig(t)
		c.Broker.URL, c.Broker.Management = v.URL(), v.Management
		s := opened(t, c).vhosts[0]
		connected(s.conditions)
		w := s.queueWatch
		// await looks as if an hour had passed since the last look.
		await := func(what string, is func() bool) {
			expect.Eventually(t, what, func() bool {
				for _, q := range w.queues {
					for _, since := range []*time.Time{&q.idle, &q.held} {
						if !since.IsZero() {
							*since = since.Add(-time.Hour)
						}
					}
				}
				w.look(t.Context())
				return is()
			})
		}
		stand := func(queues ...string) func() bool {
			return func() bool {
				var all []string
				for _, c := range s.conditions.List() {
					all = append(all, string(c.Kind)+" "+c.Queue)
				}
				return strings.Join(all, ", ") == strings.Join(queues, ", ")
			}
		}
		var consumers []*amqp.Channel
		for _, queue := range []string{"failed", "old"} {
			ch := v.Own()
			must(t, expect.ErrOf(ch.Consume(queue, "", false, false, false, false, nil)))
			consumers = append(consumers, ch)
		}
		await("RabbitMQ lists the consumers", func() bool {
			return w.queues["failed"] != nil && w.queues["failed"].consumed && w.queues["old"].consumed
		})
		for _, ch := range consumers {
			must(t, ch.Close())
		}
		for _, queue := range queues {
			v.PublishMany(queue, 1000, func(int) amqp.Publishing { return amqp.Publishing{DeliveryMode: 2} })
		}
		await("the enrolled queue and the one whose consumers went away stand", func() bool {
			return stand("standing old", "standing orders")() && w.queues["failed"].keeps
		})
		await("the metrics have its length", func() bool {
			return strings.Contains(scraped(s.metrics), `redrive_queue_ready{queue="orders"} 1000`)
		})
		ch := v.Own()
		await("a queue that is read with basic.get does not stand", func() bool {
			_, _, err := ch.Get("old", true)
			must(t, err)
			return stand("standing orders")()
		})
		w.configured.Store(&config.Watches{{Queues: []string{"archive"}, Unacked: 30 * time.Minute}})
		must(t, ch.Qos(5, 0, false))
		hung, err := ch.Consume("archive", "", false, false, false, false, nil)
		must(t, err)
		await("a queue whose consumer acknowledges nothing is reported", stand("standing orders", "unacked archive"))
		must(t, (<-hung).Ack(false))
		await("it is not, once one was acknowledged", stand("standing orders"))
	})
}
