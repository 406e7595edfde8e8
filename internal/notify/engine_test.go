package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// hook is a webhook's server that passes on its requests.
func hook(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) (url string, got chan map[string]any) {
	got = make(chan map[string]any, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		data, _ := io.ReadAll(r.Body)
		expect.Err(t, json.Unmarshal(data, &body), nil, "it is sent %q", data)
		if answer != nil {
			answer(w, r)
		}
		got <- body
	}))
	t.Cleanup(server.Close)
	return strings.Replace(server.URL, "http://", "generic+http://", 1), got
}

func options(t *testing.T) Options {
	return Options{Store: memstore.New(), Count: func(string, string) {}, Log: slog.New(slog.DiscardHandler),
		Conditions: func(context.Context, *Settings) ([]Condition, error) { return nil, nil }}
}

// start runs an engine until the returned function, or the test's end.
func start(t *testing.T, e *Engine) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

// park parks a message of queue for each reason: the error of its consumer, or, in brackets, ours.
func park(t *testing.T, e *Engine, queue string, reasons ...string) {
	var all []*store.Record
	now := time.Now()
	for _, why := range reasons {
		r := &store.Record{ID: uuid.New(), Queue: queue, State: store.Parked, Reason: "rejected", Error: why, Due: now, FirstFailed: now, FailedAt: now}
		if ours, ok := strings.CutPrefix(why, "("); ok {
			r.Error, r.ParkedFor = "", strings.TrimSuffix(ours, ")")
		}
		all = append(all, r)
	}
	must(t, e.Store.(store.Store).Add(context.Background(), all))
	e.Look()
}

func TestAThousandParkedMessagesAreOneCall(t *testing.T) {
	url, got := hook(t, nil)
	s := DefaultSettings()
	r := DefaultRoute()
	r.Name, r.URL, r.GroupWait = "hook", Secret(url+"/x?$team=shop"), time.Second
	s.Page, s.AllowPrivate, s.Routes = "https://redrive.example.com/", loopback, []Route{r}
	e, err := New(s, options(t))
	must(t, err)
	at := time.Now()
	park(t, e, "orders.in", slices.Repeat([]string{"<!channel> @here *bold*\nhttp://evil.example/", "connection refused", "connection refused", "connection refused"}, 250)...)
	stop := start(t, e)
	m := <-got
	if m["count"] != 1000.0 || m["queue"] != "orders.in" || m["event"] != "parked" || m["team"] != "shop" || m["severity"] != "warning" {
		t.Errorf("it is told %v", m)
	}
	if want := "https://redrive.example.com/messages?q=state%3Aparked+queue%3A%22orders.in%22+parked%3A%3E%3D" + strings.ReplaceAll(at.UTC().Format("2006-01-02T15:04Z"), ":", "%3A"); m["link"] != want {
		t.Errorf("the link is %s", m["link"])
	}
	if text := m["message"].(string); !strings.Contains(text, "750× connection refused") || !strings.Contains(text, "250×") || strings.ContainsAny(text, "@<>") || strings.Contains(text, "://evil") {
		t.Errorf("it says %s", text)
	}
	stop()
	if len(got) != 0 {
		t.Errorf("it is told again: %v", <-got)
	}
}

// desk is a route's other end in fake time.
type desk struct {
	*Engine
	got   []string // what was sent, with the time since the start
	began time.Time
	down  atomic.Bool
	hangs atomic.Bool
	all   sync.Mutex // guards got and on
	on    []Condition
	stop  func()
	o     Options
	s     Settings
	t     *testing.T
	to    func(*Message, send) error // not nil: what is sent goes here
}

// open starts an engine with one route that ends at the desk.
func (d *desk) open(t *testing.T) {
	d.o.open, d.t = d.target, t
	d.o.Conditions = func(context.Context, *Settings) ([]Condition, error) {
		d.all.Lock()
		defer d.all.Unlock()
		return d.on, nil
	}
	e, err := New(d.s, d.o)
	must(t, err)
	d.Engine = e
	d.stop = start(t, e)
}

func (d *desk) target(r *Route) (*target, error) {
	to, err := open(r)
	if d.to != nil {
		send := to.send
		to.send = func(_ context.Context, _ *client, m *Message) error { return d.to(m, send) }
	} else if err == nil {
		to.send = func(ctx context.Context, _ *client, m *Message) error {
			if d.hangs.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			if d.down.Load() {
				return errors.New("down")
			}
			s := m.title(plainText)
			if m.Digest {
				s += "\n" + m.text(plainText, time.UTC)
			}
			d.all.Lock()
			defer d.all.Unlock()
			d.got = append(d.got, fmt.Sprintf("%s %s", time.Since(d.began).Round(time.Second), strings.TrimPrefix(s, "Redrive: ")))
			return nil
		}
	}
	return to, err
}

// newDesk has a route that gathers for 10 s and repeats after 1 h.
func newDesk(t *testing.T, change func(*Settings, *Route)) *desk {
	d := &desk{o: options(t), s: DefaultSettings(), began: time.Now()}
	r := DefaultRoute()
	r.Name, r.URL, r.GroupWait, r.Repeat = "desk", "generic+https://desk.example/", 10*time.Second, time.Hour
	if change != nil {
		change(&d.s, &r)
	}
	d.s.Routes = []Route{r}
	d.open(t)
	return d
}

// inFakeTime runs a test with a desk.
func inFakeTime(t *testing.T, change func(*Settings, *Route), test func(t *testing.T, d *desk)) {
	synctest.Test(t, func(t *testing.T) { test(t, newDesk(t, change)) })
}

func (d *desk) park(queue string, n int) {
	park(d.t, d.Engine, queue, slices.Repeat([]string{"(out of attempts)"}, n)...)
}

// set sets the present conditions.
func (d *desk) set(all ...Condition) {
	d.all.Lock()
	defer d.all.Unlock()
	d.on = all
}

func (d *desk) after(t *testing.T, wait time.Duration, want ...string) {
	t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	d.all.Lock()
	defer d.all.Unlock()
	if fmt.Sprintf("%q", d.got) != fmt.Sprintf("%q", want) && len(d.got)+len(want) > 0 {
		t.Errorf("after %s it was told %q, want %q", time.Since(d.began), d.got, want)
	}
	d.got = nil
}

func TestManyAreOneAndRepeatNoMoreThanAsked(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		d.park("orders", 600)
		time.Sleep(5 * time.Second)
		d.park("orders", 300)
		d.after(t, 4400*time.Millisecond)
		d.park("orders", 50)
		d.after(t, 300*time.Millisecond)
		d.park("orders", 50) // just before it is sent
		d.after(t, 1300*time.Millisecond, "10s orders: 1,000 messages parked")
		d.park("orders", 7)
		d.after(t, 30*time.Minute)
		d.park("orders", 1)
		d.park("mail", 2) // this is news
		d.after(t, 11*time.Second, "30m21s mail: 2 messages parked")
		d.park("mail", 1)
		d.after(t, 30*time.Minute, "1h0m10s orders: 8 messages parked")
		d.after(t, time.Hour, "1h30m21s mail: 1 message parked")
		d.after(t, 24*time.Hour)
		if n := len(d.current.Load().routes[0].pending.entries); n > 2 {
			t.Errorf("%d entries are kept", n)
		}
	})
}

func TestAConditionIsToldRepeatedAndResolved(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		d.after(t, 2*time.Minute) // the start is over
		open := Condition{Kind: BreakerOpen, Queue: "orders", Text: "90% failed\x1b[2J"}
		d.set(open)
		d.after(t, 30*time.Second, "2m25s orders: the circuit breaker is open: 90% failed\uFFFD[2J") // seen at 2m15s
		d.after(t, time.Hour, "1h2m25s orders: the circuit breaker is open, still: 90% failed\uFFFD[2J")
		d.set()
		d.after(t, time.Minute, "1h2m55s resolved: orders: the circuit breaker is closed again")
		d.set(open)
		d.after(t, 15*time.Second) // not yet told …
		d.set()
		d.after(t, 2*time.Hour, "1h3m55s orders: the circuit breaker is open: 90% failed\uFFFD[2J",
			"1h4m10s resolved: orders: the circuit breaker is closed again")
	})
}

func TestAReopenedGroupIsToldOnce(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		d.after(t, 2*time.Minute) // the start is over
		a := Condition{Kind: GroupReopened, Queue: "orders", Target: "5a1f", Text: "it was resolved: boom"}
		b := Condition{Kind: GroupReopened, Queue: "orders", Target: "6b2e", Text: "it was ignored: bang"}
		const says = "orders: an error group has reopened: it was "
		d.set(a)
		d.after(t, 30*time.Second, "2m25s "+says+"resolved: boom")
		d.after(t, 24*time.Hour)
		d.stop()
		d.open(t)
		d.set(a, b)
		d.after(t, 24*time.Hour, "24h2m40s "+says+"ignored: bang")
		d.set()
		d.after(t, time.Minute)
		d.set(a)
		d.after(t, time.Minute, "48h3m55s "+says+"resolved: boom")
	})
	const page = "https://redrive.example.com"
	m := &Message{Kind: GroupReopened, Items: []Item{{Kind: GroupReopened, Queue: "orders", Target: "5a1f"}}}
	expect.Equal(t, link(page, m), page+"/groups/5a1f", "the link of one")
	m.Items = append(m.Items, Item{Kind: GroupReopened, Queue: "orders", Target: "6b2e"})
	expect.Equal(t, link(page, m), page+"/groups", "the link of two")
}

func TestEachIncreaseIsTold(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		d.after(t, 2*time.Minute) // the start is over
		long := func(text string, grew time.Duration) {
			c := Condition{Kind: QueueLong, Queue: "a.dlq", Text: text}
			if grew > 0 {
				c.Grew = d.began.Add(grew)
			}
			d.set(c)
		}
		long("1", 0)
		d.after(t, 30*time.Second, "2m25s a.dlq: the queue is too long: 1") // seen at 2m15s
		long("2", 0)
		d.after(t, 30*time.Second)
		long("3", 3*time.Minute)
		d.after(t, 30*time.Second, "3m15s a.dlq: the queue is too long, still: 3")
		long("5", 3*time.Minute)
		d.after(t, 30*time.Minute)
		d.stop()
		d.open(t)
		d.after(t, 29*time.Minute)
		d.after(t, time.Hour, "1h3m15s a.dlq: the queue is too long, still: 5")
	})
}

func TestWhatComesAndGoesIsNotTold(t *testing.T) {
	inFakeTime(t, func(_ *Settings, r *Route) { r.GroupWait = time.Minute }, func(t *testing.T, d *desk) {
		d.after(t, 2*time.Minute)
		for range 5 {
			d.set(Condition{Kind: BrokerBlocked})
			d.after(t, 30*time.Second)
			d.set()
			d.after(t, 5*time.Minute)
		}
		d.set(Condition{Kind: BrokerBlocked})
		d.after(t, 2*time.Minute, "30m45s an alarm of RabbitMQ's blocks publishing")
		d.set()
		d.after(t, 30*time.Second) // over, and it is waited for whether it stays so
		d.set(Condition{Kind: BrokerBlocked})
		d.after(t, 50*time.Minute)
		d.after(t, 20*time.Minute, "1h30m45s an alarm of RabbitMQ's blocks publishing, still")
	})
}

func TestAConditionThatMustLast(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		d.after(t, 10*time.Second)
		d.set(Condition{Kind: NoConsumer, Queue: "a", After: 15 * time.Minute}, Condition{Kind: NoConsumer, Queue: "b", Since: time.Now().Add(-time.Hour), After: 15 * time.Minute})
		d.after(t, 15*time.Minute, "25s b: the queue has no consumers")
		d.after(t, time.Minute, "15m25s a: the queue has no consumers")
	})
}

func TestUnresolvedRoutes(t *testing.T) {
	inFakeTime(t, func(_ *Settings, r *Route) { r.Resolved = false }, func(t *testing.T, d *desk) {
		c := Condition{Kind: BreakerOpen, Queue: "q"}
		d.after(t, 10*time.Second)
		d.set(c)
		d.after(t, 2*time.Minute, "25s q: the circuit breaker is open")
		d.set()
		d.after(t, 3*time.Minute)
		d.set(c) // again, before a repeat was asked for
		d.after(t, 50*time.Minute)
		d.after(t, 10*time.Minute, "1h0m25s q: the circuit breaker is open, still")
	})
}

// Quiet from 22:00 to 07:00 in Berlin. The bubble's time begins at 2000-01-01 01:00
// there.
func TestQuietHoursEndInOneDigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		berlin := zone(t, "Europe/Berlin")
		d := newDesk(t, func(s *Settings, r *Route) {
			r.Quiet = Quiet{22 * 60, 7 * 60, berlin}
			s.Critical = []string{"campaigns.*"}
		})
		d.park("counts", 40)
		d.after(t, time.Hour)
		d.park("counts", 2)
		d.park("campaigns.eu", 1)
		d.set(Condition{Kind: QueuePaused, Queue: "orders", Text: "by anna"})
		d.after(t, time.Hour, "1h0m10s campaigns.eu: 1 message parked")
		d.set()
		d.after(t, 3*time.Hour+59*time.Minute)
		d.after(t, 2*time.Minute, `6h0m0s what happened in quiet hours (2)
• counts: 42 messages parked from 2000-01-01 00:00 UTC to 2000-01-01 01:00 UTC
    42× out of attempts
• resolved: orders: the retries go on (it was from 2000-01-01 01:00 UTC to 2000-01-01 02:00 UTC)`)
		d.park("counts", 1) // was sent a minute ago
		d.after(t, 62*time.Minute, "7h0m0s counts: 1 message parked")
	})
}

// A rule of the policy makes a message urgent or silent: an urgent one is sent at once, also in quiet hours, whatever
// else its queue parks; a silent one is not sent. A restart repeats none.
func TestUrgentMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(_ *Settings, r *Route) {
			r.Quiet, r.Kinds = Quiet{22 * 60, 7 * 60, time.UTC}, []Kind{Parked} // which has the urgent ones
		})
		important := func(n store.Notify, errs ...string) {
			var all []*store.Record
			for _, text := range errs {
				now := time.Now()
				all = append(all, &store.Record{ID: uuid.New(), Queue: "mixed", State: store.Parked, Reason: "reported", Error: text,
					Notify: n, Due: now, FirstFailed: now, FailedAt: now})
			}
			must(t, d.Store.(store.Store).Add(t.Context(), all))
			d.Look()
		}
		d.park("mixed", 40)
		important(store.Never, "who cares", "who cares")
		d.after(t, time.Hour)
		d.park("mixed", 2)
		important(store.Urgent, "no campaign", "no campaign")
		important(store.Never, "who cares")
		d.after(t, time.Minute, "1h0m10s mixed: 2 urgent messages parked")
		d.stop()
		d.open(t)
		d.after(t, 7*time.Hour, "7h0m0s what happened in quiet hours (1)\n• mixed: 42 messages parked from 2000-01-01 00:00 UTC to 2000-01-01 01:00 UTC\n    42× out of attempts")
		important(store.Never, "who cares")
		d.after(t, time.Hour)
	})
}

func TestQuietHoursAndARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(_ *Settings, r *Route) { r.Quiet = Quiet{22 * 60, 7 * 60, time.UTC} })
		d.park("counts", 40)
		d.after(t, time.Hour)
		d.stop()
		d.open(t)
		d.park("counts", 2)
		d.stop() // at once
		d.open(t)
		d.after(t, 7*time.Hour, "7h0m0s what happened in quiet hours (1)\n• counts: 42 messages parked from 2000-01-01 00:00 UTC to 2000-01-01 01:00 UTC\n    42× out of attempts")
	})
}

// A restart neither repeats a lasting condition nor forgets one that has ended; a condition that the service has not
// found yet is not over.
func TestARestartNeitherRepeatsNorForgets(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		a, b := Condition{Kind: BreakerOpen, Queue: "a"}, Condition{Kind: OldestWaiting, Queue: "b"}
		d.after(t, 10*time.Second)
		d.set(a, b, Condition{Kind: LedgerOff, Queue: "c"})
		d.after(t, 50*time.Second, "25s a: the circuit breaker is open", "25s c: "+meaningOf(LedgerOff).Means, "25s b: messages wait too long")
		d.park("orders", 3)
		d.after(t, time.Minute, "1m10s orders: 3 messages parked")
		d.park("orders", 2)
		d.stop()
		d.set()
		d.open(t)
		d.after(t, 30*time.Second)
		d.set(a, Condition{Kind: LedgerOff, Unknown: true})
		d.after(t, 2*time.Minute, "3m10s resolved: b: messages no longer wait too long") // not seen a minute after the start
		d.after(t, time.Hour, "1h0m25s a: the circuit breaker is open, still", "1h0m25s c: "+meaningOf(LedgerOff).Means+", still", "1h1m10s orders: 2 messages parked")
	})
}

func TestANotifierThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := 0
		d := newDesk(t, nil)
		d.Count = func(_, result string) {
			if result == "failed" {
				failed++
			}
		}
		d.down.Store(true)
		d.park("orders", 1000)
		d.after(t, time.Hour)
		if failed < 10 || failed > 30 {
			t.Errorf("in an hour it was tried %d times", failed)
		}
		d.park("orders", 500)
		d.down.Store(false)
		time.Sleep(maxPause)
		synctest.Wait()
		d.all.Lock()
		defer d.all.Unlock()
		if len(d.got) != 1 || !strings.HasSuffix(d.got[0], "orders: 1,500 messages parked") {
			t.Errorf("it was told %q", d.got)
		}
	})
}

// People are notified of messages that were parked since the ledger was last read, whatever became of
// them and also while no service ran; but neither those of before the first route nor those that a person imports.
func TestWhatIsParkedIsTheGrowthOfTheLedger(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		d.stop()
		kept := memstore.New()
		d.o.Store, d.Engine.Store = kept, kept
		d.park("orders", 7)
		d.open(t)
		d.after(t, time.Minute)
		d.park("orders", 3)
		var keys []store.Key
		must(t, kept.Scan(t.Context(), store.Range{State: store.Parked}, func(l store.Listed) (bool, error) {
			keys = append(keys, l.Key)
			return true, nil
		}))
		_, err := kept.Change(t.Context(), keys, func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, nil)
		must(t, err)
		d.after(t, time.Minute, "1m10s orders: 3 messages parked")
		d.stop()
		d.park("orders", 2)
		d.park("mail", 1)
		must(t, kept.Add(t.Context(), []*store.Record{{ID: uuid.New(), Queue: "orders", State: store.Parked, Imported: true, Due: time.Now()}}))
		d.open(t)
		d.after(t, time.Minute, "2m10s mail: 1 message parked")
		d.after(t, time.Hour, "1h1m10s orders: 2 messages parked")
	})
}

// A notification that hangs delays neither other routes nor the end.
func TestARouteThatHangs(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		d.hangs.Store(true)
		d.park("orders", 1)
		time.Sleep(12 * time.Second)
		began := time.Now()
		d.stop()
		expect.Equal(t, time.Since(began), 0, "the end took")
		d.hangs.Store(false)
		d.open(t)
		d.after(t, time.Minute, "12s orders: 1 message parked")
	})
}

func TestNewSettingsTakeOverWhatIsNotTold(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		d.park("orders", 3)
		time.Sleep(2 * time.Second)
		s := d.s
		s.Routes = append([]Route{{Name: "other", URL: "generic+https://other.example/", Queues: []string{"mail"}}}, s.Routes...)
		must(t, d.SetSettings(s))
		d.park("orders", 2)
		d.after(t, time.Minute, "10s orders: 5 messages parked")
		s.Routes = s.Routes[:1]
		must(t, d.SetSettings(s))
		d.after(t, time.Minute)
		expect.Equal(t, entries(t, d.o.Store, "desk"), 0, "entries of a former route are kept")
		s.Routes[0].URL = "nothing://s3cret"
		if err := d.SetSettings(s); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a bad URL: %v", err)
		}
	})
}

func TestNamesMadeUpDoNotFillTheMemory(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		for i := range 3 * maxQueues {
			park(t, d.Engine, fmt.Sprint("q", i), fmt.Sprintf("error %c%c", 'a'+i%26, 'a'+i/26%26))
			if i%400 == 0 {
				time.Sleep(time.Second)
			}
		}
		d.after(t, time.Minute, fmt.Sprintf("10s 1,500 messages parked in %d queues", maxQueues+1))
		b := d.current.Load().routes[0].pending
		if len(b.entries) != maxQueues+1 {
			t.Errorf("there are %d entries", len(b.entries))
		}
		expect.Equal(t, entries(t, d.o.Store, "desk"), maxQueues+1, "are kept")
	})
}

func zone(t *testing.T, name string) *time.Location {
	z, err := time.LoadLocation(name)
	must(t, err)
	return z
}

func entries(t *testing.T, s store.SideTable, route string) (n int) {
	must(t, s.Entries(context.Background(), prefix+route+"/", "", func(store.Entry) (bool, error) { n++; return true, nil }))
	return n
}

// Quiet hours are those of the clock on the wall, also when it is moved: in Berlin at
// 02:00 on 2026-03-29 to 03:00, and at 03:00 on 2026-10-25 to 02:00. West of Greenwich Go takes
// an hour that the clock has twice for the first of them: in New York 01:00 to 02:00 on
// 2026-11-01 comes twice.
func TestQuietHours(t *testing.T) {
	const layout, berlin, newYork = "2006-01-02 15:04 -0700", "Europe/Berlin", "America/New_York"
	for _, c := range []struct{ zone, hours, at, end string }{
		{berlin, "22:00-07:00", "2026-11-21 21:59 +0100", ""},
		{berlin, "22:00-07:00", "2026-11-21 22:00 +0100", "2026-11-22 07:00 +0100"},
		{berlin, "22:00-07:00", "2026-11-21 06:59 +0100", "2026-11-21 07:00 +0100"},
		{berlin, "22:00-07:00", "2026-11-21 07:00 +0100", ""},
		{berlin, "22:00-07:00", "2026-12-31 23:30 +0100", "2027-01-01 07:00 +0100"},
		{berlin, "22:00-07:00", "2026-11-21 21:30 +0000", "2026-11-22 07:00 +0100"}, // 22:30 there
		{berlin, "22:00-07:00", "2026-03-28 23:00 +0100", "2026-03-29 07:00 +0200"}, // an hour less
		{berlin, "22:00-07:00", "2026-10-24 23:00 +0200", "2026-10-25 07:00 +0100"}, // an hour more
		{berlin, "22:00-02:30", "2026-03-29 01:59 +0100", "2026-03-29 03:00 +0200"}, // 02:30 does not come
		{berlin, "01:00-02:30", "2026-10-25 01:30 +0200", "2026-10-25 02:30 +0100"}, // 02:30 comes twice
		{berlin, "01:00-02:30", "2026-10-25 02:10 +0100", "2026-10-25 02:30 +0100"}, // between them it is quiet again
		{berlin, "12:00-13:00", "2026-11-21 12:30 +0100", "2026-11-21 13:00 +0100"},
		{berlin, "12:00-13:00", "2026-11-21 13:00 +0100", ""},
		{newYork, "01:00-01:30", "2026-11-01 01:10 -0400", "2026-11-01 01:30 -0500"},
		{newYork, "01:00-01:30", "2026-11-01 01:05 -0500", "2026-11-01 01:30 -0500"}, // between them it is quiet again
		{newYork, "22:00-01:30", "2026-11-01 00:10 -0400", "2026-11-01 01:30 -0500"},
		{newYork, "22:00-01:00", "2026-11-01 00:10 -0400", "2026-11-01 01:00 -0400"}, // the hour after it is not quiet
		{newYork, "22:00-02:00", "2026-11-01 00:10 -0400", "2026-11-01 02:00 -0500"},
		{newYork, "01:00-00:45", "2026-11-01 00:10 -0400", "2026-11-01 00:45 -0400"},
	} {
		q, from, to := Quiet{Zone: zone(t, c.zone)}, 0, 0
		_, err := fmt.Sscanf(c.hours, "%d:%d-%d:%d", &q.From, &from, &q.To, &to)
		must(t, err)
		q.From, q.To = 60*q.From+from, 60*q.To+to
		at, err := time.Parse(layout, c.at)
		must(t, err)
		end, quiet := q.until(at)
		got := ""
		if quiet {
			got = end.In(q.Zone).Format(layout)
		}
		expect.Equal(t, got, c.end, "quiet from %s: at %s until", c.hours, c.at)
	}
}

func TestQuietHoursAlwaysEnd(t *testing.T) {
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "UTC"} {
		z := zone(t, name)
		for from := 0; from < 24*60; from += 37 {
			for to := 0; to < 24*60; to += 41 {
				q := Quiet{from, to, z}
				for _, day := range []string{"2026-03-07T23:00:00Z", "2026-03-28T23:40:00Z", "2026-10-24T22:10:00Z", "2026-11-01T05:00:00Z", "2011-12-29T12:00:00Z"} {
					at, err := time.Parse(time.RFC3339, day)
					must(t, err)
					if end, quiet := q.until(at); quiet && (!end.After(at) || q.in(end) || end.Sub(at) > 49*time.Hour) {
						t.Fatalf("%s %v at %s ends at %s", name, q, at, end)
					}
				}
			}
		}
	}
}

// A route for a queue receives events of its forward targets too, also after a restart, and of
// no other queue's, whatever that is called.
func TestARouteForAQueueIsToldOfItsForwardTargets(t *testing.T) {
	inFakeTime(t, func(_ *Settings, r *Route) { r.Queues = []string{"orders"} }, func(t *testing.T, d *desk) {
		synctest.Wait() // the engine has read what is on
		d.set(Condition{Kind: ForwardStopped, Queue: "orders", Target: "queue dead", Text: "full"},
			Condition{Kind: ForwardStopped, Queue: "mail", Target: "queue dead", Text: "full"},
			Condition{Kind: ForwardStopped, Queue: "orders to queue dead", Target: "queue more", Text: "full"})
		d.after(t, time.Minute, "25s orders to queue dead: messages are not forwarded: full")
		d.stop()
		d.open(t)
		d.after(t, 2*time.Minute) // told before the restart
		d.set()
		d.after(t, time.Minute, "3m25s resolved: orders to queue dead: messages are forwarded again")
	})
}

// What leaves for a service has its errors masked, of consumers and our own.
func TestErrorsOfANoticeAreMasked(t *testing.T) {
	inFakeTime(t, nil, func(t *testing.T, d *desk) {
		d.stop()
		var got []ErrorCount
		d.to = func(m *Message, _ send) error { got = m.Items[0].Errors; return nil }
		d.o.Mask = func(queue, text string) string { return strings.ReplaceAll(text, "of "+queue, "[masked]") }
		d.open(t)
		park(t, d.Engine, "orders", "card of orders", "card of mail", "(out of orders)")
		d.after(t, time.Minute)
		slices.SortFunc(got, func(a, b ErrorCount) int { return strings.Compare(a.Error, b.Error) })
		expect.Equal(t, fmt.Sprint(got), "[{card [masked] 1} {card of mail 1} {out [masked] 1}]", "the errors")
	})
}

// heard are the notifications sent by replicas, where no socket may be.
type heard struct {
	mu  sync.Mutex
	all []string
}

func (h *heard) receive(m *Message, _ send) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, fmt.Sprintf("%s %d", m.Kind, m.Items[0].N))
	return nil
}

// replica is the engine of one, with a route that gathers for 5 s.
func (h *heard) replica(t *testing.T, m *memstore.Member) *Engine {
	s, r := DefaultSettings(), DefaultRoute()
	r.Name, r.URL, r.GroupWait, r.Repeat = "hook", "generic+http://hook.example/", 5*time.Second, time.Hour
	s.Routes = []Route{r}
	o := options(t)
	o.Store, o.open = m, (&desk{to: h.receive}).target
	o.Conditions = func(context.Context, *Settings) ([]Condition, error) {
		return []Condition{{Kind: BreakerOpen, Queue: "q"}}, nil
	}
	e, err := New(s, o)
	must(t, err)
	return e
}

// What is parked at any replica is reported once, by the leader; what was sent
// before a leader died is not told again by the next.
func TestReplicasAreToldOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet, out := memstore.NewReplicas(), &heard{}
		ctx := t.Context()
		replica := func() (*Engine, *memstore.Member) {
			m := fleet.Join()
			return out.replica(t, m), m
		}
		a, am := replica()
		b, _ := replica()
		lead := func(e *Engine, m *memstore.Member, id string) (end func()) {
			term, leads, err := m.Lead(ctx, "service", id, 5*time.Second)
			if err != nil || !leads {
				t.Fatal(leads, err)
			}
			ctx, cancel := context.WithCancel(store.WithTerm(ctx, "service", term))
			var running sync.WaitGroup
			running.Go(func() { e.Run(ctx) })
			return func() { cancel(); running.Wait() }
		}
		park := func(e *Engine, n int) { park(t, e, "q", slices.Repeat([]string{"refused"}, n)...) }
		end := lead(a, am, "a")
		park(a, 30)
		park(b, 12)
		time.Sleep(10 * time.Second)
		out.are(t, "breaker_open 0", "parked 42")
		am.Kill()
		end()
		park(b, 5)
		time.Sleep(10 * time.Second)
		end = lead(b, fleet.Join(), "b")
		time.Sleep(2 * time.Minute)
		out.are(t, "breaker_open 0", "parked 42") // within the hour it is not told again
		time.Sleep(time.Hour)
		out.are(t, "breaker_open 0", "parked 42", "breaker_open 0", "parked 5")
		end()
	})
}

func (h *heard) are(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(h.all)
	slices.Sort(want)
	if !slices.Equal(h.all, want) {
		t.Errorf("it was told %q, want %q", h.all, want)
	}
}
