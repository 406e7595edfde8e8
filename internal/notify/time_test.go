package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/retry"
)

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
	to    func(*Message, send) error // not nil: what is sent goes here
}

// open starts an engine with one route that ends at the desk.
func (d *desk) open(t *testing.T) {
	d.o.open = d.target
	d.o.Conditions = func(context.Context, *Settings) ([]Condition, error) {
		d.all.Lock()
		defer d.all.Unlock()
		return d.on, nil
	}
	e, err := New(d.s, d.o)
	if err != nil {
		t.Fatal(err)
	}
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

func (d *desk) park(queue string, n int) {
	for range n {
		d.Event(retry.Event{Kind: retry.Parked, Queue: queue, Why: "out of attempts", At: time.Now()})
	}
}

// set makes these conditions, and no others, go on.
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
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.park("orders", 600)
		time.Sleep(5 * time.Second)
		d.park("orders", 400)
		d.after(t, 4*time.Second)
		d.after(t, 2*time.Second, "10s orders: 1,000 messages parked")
		d.park("orders", 7)
		d.after(t, 30*time.Minute)
		d.park("orders", 1)
		d.park("mail", 2) // this is news
		d.after(t, 11*time.Second, "30m21s mail: 2 messages parked")
		d.park("mail", 1)
		d.after(t, 30*time.Minute, "1h0m10s orders: 8 messages parked")
		d.after(t, time.Hour, "1h30m21s mail: 1 message parked")
		d.after(t, 24*time.Hour)
		if n := len(d.routeSet().routes[0].pending.entries); n > 2 {
			t.Errorf("%d entries are kept", n)
		}
	})
}

func TestAConditionIsToldRepeatedAndResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
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

func TestWhatComesAndGoesIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(_ *Settings, r *Route) { r.GroupWait = time.Minute })
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
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.after(t, 10*time.Second)
		d.set(Condition{Kind: NoConsumer, Queue: "a", After: 15 * time.Minute}, Condition{Kind: NoConsumer, Queue: "b", Since: time.Now().Add(-time.Hour), After: 15 * time.Minute})
		d.after(t, 15*time.Minute, "25s b: the queue has no consumers")
		d.after(t, time.Minute, "15m25s a: the queue has no consumers")
	})
}

func TestUnresolvedRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(_ *Settings, r *Route) { r.Resolved = false })
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

// A restart neither tells again what goes on nor forgets what is over by then; and
// what the service has not found out yet is not over.
func TestARestartNeitherRepeatsNorForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
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
		time.Sleep(longestOff)
		synctest.Wait()
		d.all.Lock()
		defer d.all.Unlock()
		if len(d.got) != 1 || !strings.HasSuffix(d.got[0], "orders: 1,500 messages parked") {
			t.Errorf("it was told %q", d.got)
		}
	})
}

// A message that hangs delays neither other routes nor the end.
func TestARouteThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.hangs.Store(true)
		d.park("orders", 1)
		time.Sleep(12 * time.Second)
		began := time.Now()
		d.stop()
		if took := time.Since(began); took != 0 {
			t.Errorf("the end took %s", took)
		}
		d.hangs.Store(false)
		d.open(t)
		d.after(t, time.Minute, "12s orders: 1 message parked")
	})
}

func TestNewSettingsTakeOverWhatIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		d.park("orders", 3)
		time.Sleep(2 * time.Second)
		s := d.s
		s.Routes = append([]Route{{Name: "other", URL: "generic+https://other.example/", Queues: []string{"mail"}}}, s.Routes...)
		if err := d.SetSettings(s); err != nil {
			t.Fatal(err)
		}
		d.park("orders", 2)
		d.after(t, time.Minute, "10s orders: 5 messages parked")
		s.Routes = s.Routes[:1]
		if err := d.SetSettings(s); err != nil {
			t.Fatal(err)
		}
		d.after(t, time.Minute)
		if n := entries(t, d.o.Store); n != 0 {
			t.Errorf("%d entries of a former route are kept", n)
		}
		s.Routes[0].URL = "nothing://s3cret"
		if err := d.SetSettings(s); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a bad URL: %v", err)
		}
	})
}

func TestNamesMadeUpDoNotFillTheMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		for i := range 3 * mostQueues {
			d.Event(retry.Event{Kind: retry.Parked, Queue: fmt.Sprint("q", i), Error: fmt.Sprintf("error %c%c", 'a'+i%26, 'a'+i/26%26), At: time.Now()})
			if i%400 == 0 {
				time.Sleep(time.Second)
			}
		}
		d.after(t, time.Minute, fmt.Sprintf("10s 1,500 messages parked in %d queues", mostQueues+1))
		b := d.routeSet().routes[0].pending
		if len(b.entries) != mostQueues+1 {
			t.Errorf("there are %d entries", len(b.entries))
		}
		if n := entries(t, d.o.Store); n != mostQueues+1 {
			t.Errorf("%d are kept", n)
		}
	})
}
