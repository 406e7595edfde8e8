package retry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/semaphore"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// How much may be claimed for a destination depends on what it and the others have.
func TestWhatMayBeClaimed(t *testing.T) {
	const mi = 1 << 20
	for name, c := range map[string]struct {
		messages, bytes int        // of all
		window          laneWindow // of this one
		want, wantBytes int
		full            bool
	}{
		"a new one":                       {0, 0, laneWindow{size: firstWindow}, 16, 16 * mi, false},
		"a new one with little left":      {2048, 0, laneWindow{size: firstWindow}, 8, 16 * mi, false},
		"half of what others leave":       {1600, 0, laneWindow{size: maxWindow}, 480, 16 * mi, false},
		"what it has counts as left":      {1600, 0, laneWindow{size: maxWindow, messages: 100}, 430, 16 * mi, false},
		"just before the reserve":         {2303, 0, laneWindow{size: maxWindow}, 129, 16 * mi, false},
		"of the reserve":                  {2304, 0, laneWindow{size: maxWindow}, 16, 16 * mi, false},
		"far from the reserve":            {1560, 0, laneWindow{size: maxWindow}, 500, 16 * mi, false},
		"the last one":                    {MaxClaimed - 1, 0, laneWindow{size: maxWindow}, 1, 16 * mi, false},
		"no message is left":              {MaxClaimed, 0, laneWindow{size: maxWindow}, 0, 0, true},
		"no byte is left":                 {1, 32 * mi, laneWindow{size: maxWindow}, 0, 0, true},
		"half of the bytes":               {1, 8 * mi, laneWindow{size: maxWindow, messages: 1, bytes: 4 * mi}, 512, 10 * mi, false},
		"its bytes are used up":           {1, 24 * mi, laneWindow{size: maxWindow, messages: 1, bytes: 8 * mi}, 0, 0, false},
		"a quarter of a batch":            {896, 0, laneWindow{size: maxWindow, messages: 896}, 128, 16 * mi, false},
		"less than that waits":            {897, 0, laneWindow{size: maxWindow, messages: 897}, 0, 0, false},
		"a small window that is not full": {12, 0, laneWindow{size: firstWindow, messages: 12}, 4, 16 * mi, false},
	} {
		lane := store.Lane{Queue: "q"}
		cl := claimed{messages: c.messages, bytes: c.bytes, perDestination: map[store.Lane]*laneWindow{lane: &c.window}}
		if n, bytes, full := cl.mayClaim(lane, time.Now()); n != c.want || bytes != c.wantBytes || full != c.full {
			t.Errorf("%s: %d messages, %d bytes, full: %v; want %d, %d, %v", name, n, bytes, full, c.want, c.wantBytes, c.full)
		}
	}
}

func TestIdleDestinationsAreForgotten(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	idle, busy := store.Lane{Queue: "idle"}, store.Lane{Queue: "busy"}
	c := claimed{perDestination: map[store.Lane]*laneWindow{idle: {used: began}, busy: {used: began, messages: 1}}}
	if c.has(idle) || !c.has(busy) || c.has(store.Lane{Queue: "unknown"}) {
		t.Error("it is not known for which messages are claimed")
	}
	for after, want := range map[time.Duration]int{0: 2, windowKept - 1: 2, windowKept: 1} {
		c := claimed{perDestination: map[store.Lane]*laneWindow{idle: {used: began}, busy: {used: began, messages: 1}}}
		c.forgetIdle(began)
		if c.forgetIdle(began.Add(after)); len(c.perDestination) != want {
			t.Errorf("after %s %d are remembered, want %d", after, len(c.perDestination), want)
		}
	}
	c.forgetIdle(began.Add(windowKept / 2))
	if c.forgetIdle(began.Add(windowKept + 1)); c.perDestination[idle] == nil {
		t.Error("it looks for them more often than it should")
	}
}

func TestSetsOfQueuesAreBounded(t *testing.T) {
	var s queueSet
	for i := range maxTargets {
		s.add(fmt.Sprint("q", i))
	}
	s.add("q1") // is there already
	if !s.has("q0") || !s.has(fmt.Sprint("q", maxTargets-1)) || s.has("unknown") {
		t.Error("one of the first is forgotten")
	}
	if s.add("one more"); s.has("q0") || !s.has("one more") {
		t.Error("more than may be are remembered")
	}
	var d DelayQueues
	for range 1001 {
		d.MarkLost("q")
	}
	expect.Equal(t, len(d.lostQueues), 1000, "queues are marked as lost")
}

// Each attempt of a message has its own jitter, and so has each message.
func TestSeedsDiffer(t *testing.T) {
	seen := map[uint64]bool{}
	for attempt := range 10 {
		seen[seed(uuid.Nil, attempt)] = true
		seen[seed(uuid.UUID{15: 1}, attempt)] = true
	}
	expect.Equal(t, len(seen), 20, "seeds")
}

// Unreachable returns the lanes whose messages RabbitMQ did not take when they were last tried.
func (s *Scheduler) Unreachable() (lanes []store.Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for lane, b := range s.backoffs {
		if !b.reachable {
			lanes = append(lanes, lane)
		}
	}
	return lanes
}

// How long a lane rests, and what of it people hear.
func TestLanesBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []error
		s := &Scheduler{backoffs: map[store.Lane]backoff{}, report: func(_ store.Lane, err error) { reports = append(reports, err) }}
		lane, full := store.Lane{Queue: "q"}, errors.New("full")
		rests := func(obstacle error, want ...time.Duration) {
			t.Helper()
			for _, want := range want {
				if s.setBackoff(lane, obstacle); time.Until(s.backoffUntil(lane)) != want {
					t.Errorf("%v: it rests %s, want %s", obstacle, time.Until(s.backoffUntil(lane)), want)
				}
			}
		}
		const ms = time.Millisecond
		rests(ErrLookupPending, 250*ms, 500*ms, 1000*ms, 1000*ms)
		if lanes := s.Unreachable(); len(lanes) != 0 || len(reports) != 0 {
			t.Errorf("while its queue is looked up, the lane is unreachable: %v, %v", lanes, reports)
		}
		rests(full, 4000*ms)
		if len(s.Unreachable()) != 1 || len(reports) != 1 {
			t.Errorf("after an obstacle the lane is reachable: %v", reports)
		}
		rests(ErrLookupPending, 1000*ms)
		expect.Equal(t, len(s.Unreachable()), 1, "a lookup makes an unreachable lane reachable")
		reports = nil
		delete(s.backoffs, lane)
		rests(ErrTryAtOnce, 0, 500*ms)
		delete(s.backoffs, lane)
		rests(context.Canceled, 250*ms)
		if delete(s.backoffs, lane); len(reports) != 0 {
			t.Errorf("what is no trouble is reported: %v", reports)
		}
		s.setBackoff(lane, nil)
		if len(reports) != 0 {
			t.Errorf("a lane that works is reported: %v", reports)
		}
		rests(full, 250*ms, 500*ms, 1000*ms, 2000*ms, 4000*ms, 8000*ms, maxBackoff, maxBackoff)
		s.setBackoff(lane, nil)
		if want := slices.Concat(slices.Repeat([]error{full}, 8), []error{nil}); !slices.Equal(reports, want) {
			t.Errorf("reported: %v", reports)
		}
		// Without messages it is forgotten, not at once.
		rests(full, 250*ms)
		reports = nil
		until := s.backoffUntil(lane)
		if sleep := s.forgetBackoffs(nil, until.Add(backoffKept)); sleep != backoffKept || len(reports) != 0 || len(s.backoffs) != 1 {
			t.Errorf("it sleeps %s, reported %v", sleep, reports)
		}
		if sleep := s.forgetBackoffs([]store.NextDue{{Lane: lane}}, until.Add(time.Hour)); sleep != maxSleep || len(reports) != 0 {
			t.Errorf("with messages: it sleeps %s, reported %v", sleep, reports)
		}
		if sleep := s.forgetBackoffs(nil, until.Add(backoffKept+1)); sleep != maxSleep || len(reports) != 1 || reports[0] != nil || len(s.backoffs) != 0 {
			t.Errorf("forgotten: it sleeps %s, reported %v", sleep, reports)
		}
	})
}

// A queue without a retry exchange is looked up ever less often, and so is one for which the lookup fails.
func TestAMissingExchangeIsLookedUpEverLessOften(t *testing.T) {
	for name, answer := range map[string]error{"missing": nil, "no answer": errors.New("closed")} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var at []time.Duration
			l := newExchangeLookup(func(context.Context, string) (bool, error) {
				at = append(at, time.Since(began))
				return false, answer
			}, func() {})
			defer l.close()
			for time.Since(began) < 4*time.Minute {
				yes, _, err := l.exists("q", time.Now())
				if want := answer; yes || len(at) > 0 && !errors.Is(err, want) || len(at) == 0 && !errors.Is(err, ErrLookupPending) {
					t.Fatalf("%s: after %s: %v, %v", name, time.Since(began), yes, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			const s = time.Second
			if want := []time.Duration{0, 2 * s, 6 * s, 14 * s, 30 * s, 62 * s, 122 * s, 182 * s}; !slices.Equal(at, want) {
				t.Errorf("%s: it was looked up after %v, want %v", name, at, want)
			}
		})
	}
}

// The number of waiting lookups is bounded: beyond it no name is remembered, and no known one is looked up again.
func TestLookupsThatWaitAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context, _ string) (bool, error) { <-ctx.Done(); return false, ctx.Err() }
		l := newExchangeLookup(hangs, func() {})
		defer l.close()
		l.answers["old"] = &lookupAnswer{asOf: time.Now().Add(-time.Hour)}
		for i := range maxAskers + maxPending {
			l.exists(fmt.Sprint("q", i), time.Now())
			synctest.Wait()
		}
		if l.workers != maxAskers || len(l.pending) != maxPending {
			t.Fatalf("%d lookups are under way, %d wait", l.workers, len(l.pending))
		}
		if _, _, err := l.exists("one more", time.Now()); !errors.Is(err, ErrLookupPending) || l.answers["one more"] != nil {
			t.Errorf("one more: %v, remembered: %v", err, l.answers["one more"] != nil)
		}
		if l.exists("old", time.Now()); l.answers["old"].pending || len(l.pending) != maxPending {
			t.Errorf("%d lookups wait", len(l.pending))
		}
	})
}

// Answers are forgotten when there are too many, all but those that are on their way.
func TestAnswersAreForgottenWhenThereAreTooMany(t *testing.T) {
	l := newExchangeLookup(func(ctx context.Context, _ string) (bool, error) { <-ctx.Done(); return false, ctx.Err() }, func() {})
	l.close() // no lookup begins
	for i := range maxAnswers - 1 {
		l.answers[fmt.Sprint("q", i)] = &lookupAnswer{pending: i == 0}
	}
	if l.exists("the last", time.Time{}); len(l.answers) != maxAnswers {
		t.Errorf("%d answers are remembered, want %d", len(l.answers), maxAnswers)
	}
	if l.exists("one more", time.Time{}); len(l.answers) != 2 || l.answers["q0"] == nil || l.answers["one more"] == nil {
		t.Errorf("%d answers are remembered, want one that is on its way and the new one", len(l.answers))
	}
}

// Which answers are known without another lookup.
func TestWhichAnswersAreKnown(t *testing.T) {
	now := time.Now()
	since := now.Add(-time.Minute)
	for name, c := range map[string]struct {
		answer     *lookupAnswer
		yes, known bool
	}{
		"never asked":          {nil, false, false},
		"missing":              {&lookupAnswer{asOf: now}, false, true},
		"missing long ago":     {&lookupAnswer{asOf: since}, false, false},
		"there":                {&lookupAnswer{exists: true, asOf: now}, true, true},
		"there long ago":       {&lookupAnswer{exists: true, asOf: since}, true, true},
		"then it is not known": {&lookupAnswer{asOf: now, err: errors.New("closed")}, false, false},
		"no answer yet":        {&lookupAnswer{pending: true}, false, false},
	} {
		l := newExchangeLookup(nil, func() {})
		if c.answer != nil {
			l.answers["q"] = c.answer
		}
		if yes, known := l.cached("q", since); yes != c.yes || known != c.known {
			t.Errorf("%s: %v, known: %v", name, yes, known)
		}
		l.close()
	}
}

// countedStore counts how often its messages are counted.
type countedStore struct {
	*memstore.Store
	counts int
}

func (s *countedStore) Counts(ctx context.Context) ([]store.QueueCount, error) {
	s.counts++
	return s.Store.Counts(ctx)
}

// names returns reported names of which is known what targets says, and nothing of others.
func names(s store.Store, targets map[string]bool) *ReportedNames {
	answer := func(queue string) (yes, known bool) { yes, known = targets[queue]; return yes, known }
	return &ReportedNames{turn: semaphore.NewWeighted(1), store: s, lookUpIfUnknown: answer, cached: answer, reporterOf: map[string]string{}, perUser: map[string]int{}, recounted: time.Now(), loaded: true}
}

// Names are recounted every 10 s at most, and not before RabbitMQ had a minute to answer.
func TestWhenNamesAreCountedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &countedStore{Store: memstore.New()}
		sender := NewSender(&declarer{}, func() policy.Set { return policy.Set{{Name: "p", Queues: []string{"*"}}} }, nil, nil, nil, func(Event) {})
		defer sender.Close()
		n := NewReportedNames(s, sender)
		for _, c := range []struct {
			after time.Duration
			full  bool
			want  int
		}{{time.Minute, false, 0}, {1, false, 1}, {time.Hour, false, 1}, {time.Hour, true, 2}, {10 * time.Second, true, 2}, {1, true, 3}} {
			time.Sleep(c.after)
			if n.perUser["ann"] = 0; c.full {
				n.perUser["ann"] = maxNamesEach
			}
			if n.admits(t.Context(), uuid.NewString(), "ann"); s.counts != c.want {
				t.Errorf("%s later they were counted %d times, want %d", c.after, s.counts, c.want)
			}
			synctest.Wait()
		}
	})
}

// A recounted name needs a stored message, and to be no target or to have had a place before.
func TestWhichNamesAreCountedAgain(t *testing.T) {
	s := memstore.New()
	for _, queue := range []string{"missing", "counted", "new", "target", ""} {
		must(t, s.Add(t.Context(), []*store.Record{{ID: uuid.New(), Queue: queue, State: store.Parked}}))
	}
	n := names(s, map[string]bool{"target": true, "missing": false})
	n.lookUpIfUnknown = func(queue string) (yes, known bool) {
		if queue == "" {
			t.Error("the retry exchange of a message without a queue is looked up")
		}
		return n.cached(queue)
	}
	n.count("counted", "ann")
	n.count("gone", "ann")
	n.count("target", "ann")
	n.count("gone too", "bob") // who has no name any more, and takes no memory
	n.recount(t.Context())
	if !maps.Equal(n.reporterOf, map[string]string{"counted": "ann", "missing": ""}) || !maps.Equal(n.perUser, map[string]int{"ann": 1, "": 1}) {
		t.Errorf("%v are counted, %v", n.reporterOf, n.perUser)
	}
}

// declarer is a connection that counts what is declared on it. No queue has a retry exchange there.
type declarer struct {
	Declarer
	err      error
	declared int
}

func (*declarer) BindRetryExchange(context.Context, string) error { return nil }

func (*declarer) RetryExchangeExists(context.Context, string) (bool, error) { return false, nil }

func (d *declarer) Declare(context.Context, delay.Topology) error { d.declared++; return d.err }

// What cannot be declared is tried again after 15 s, what can expire in time, and all else is declared once.
func TestWhenATopologyIsDeclaredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, refused := &declarer{}, errors.New("refused")
		d := NewDelayQueues(b, func() policy.Set { return nil }, nil, 0, func(string, error) {})
		for _, c := range []struct {
			after    time.Duration
			within   time.Duration
			err      error // what RabbitMQ would answer
			want     error
			declared int
		}{
			{0, 0, refused, refused, 1},
			{time.Second, 0, nil, refused, 1},
			{tryAgainAfter - time.Second - 1, time.Second, nil, refused, 1},
			{1, 0, refused, refused, 2},
			{tryAgainAfter, 0, nil, nil, 3},
			{time.Second, 0, refused, nil, 3},
			{time.Hour, 0, refused, nil, 3},
			{0, time.Hour + time.Second, refused, nil, 3},
			{0, time.Hour, nil, nil, 4},
			{2 * time.Second, time.Second, nil, nil, 5},
			{time.Second, time.Second, nil, nil, 5},
			{1, time.Second, nil, nil, 6},
		} {
			time.Sleep(c.after)
			b.err = c.err
			if err := d.declare(t.Context(), "key", func() delay.Topology { return delay.Topology{} }, c.within); !errors.Is(err, c.want) || b.declared != c.declared {
				t.Errorf("%s later, within %s: %v, declared %d times; want %v, %d", c.after, c.within, err, b.declared, c.want, c.declared)
			}
		}
		d.Wait()
	})
}

// When a queue was lost, what it needs is declared again, and nothing else.
func TestOnlyALostQueueIsDeclaredAgain(t *testing.T) {
	d := NewDelayQueues(&declarer{}, func() policy.Set { return nil }, nil, 0, func(string, error) {})
	defer d.Wait()
	lost, other := wayOfQueue{queue: "q"}, wayOfQueue{queue: "r"}
	for _, key := range []any{lost, other, "q", ""} {
		d.declared[key] = declaration{}
	}
	d.MarkLost("q")
	d.forgetLost()
	var left []any
	for _, key := range []any{lost, other, "q", ""} {
		if _, declared := d.declared[key]; declared {
			left = append(left, key)
		}
	}
	if !slices.Equal(left, []any{other, "q", ""}) || len(d.lostQueues) != 0 {
		t.Errorf("declared are %v, lost %v", left, d.lostQueues)
	}
}

// What a ticket needs is declared again after half of its time to confirm; otherwise it may expire before the confirm.
func TestWhatATicketNeedsIsDeclaredAgainInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &declarer{}
		d := NewDelayQueues(b, func() policy.Set { return policy.Set{{Name: "p", Queues: []string{"*"}}} }, nil, 0, func(string, error) {})
		defer d.Wait()
		way, err := delay.NewLevels(delay.Quorum)
		must(t, err)
		m := &delayedMessage{way: way, rec: &store.Record{Queue: "q", Proven: true}}
		ticket := &delay.Ticket{Exchange: "x", DeclareFirst: &delay.Topology{}, ConfirmWithin: 10 * time.Second}
		for _, c := range []struct {
			after    time.Duration
			declared int // the first time also what the way needs
		}{{0, 2}, {5 * time.Second, 2}, {1, 3}, {5 * time.Second, 3}, {1, 4}} {
			time.Sleep(c.after)
			if err := d.prepare(t.Context(), m, ticket); err != nil || b.declared != c.declared {
				t.Errorf("%s later: declared %d times, %v; want %d", c.after, b.declared, err, c.declared)
			}
		}
	})
}

// Text for people keeps what is UTF-8, shows other bytes, and has at most maxText bytes.
func TestTextForPeople(t *testing.T) {
	full := strings.Repeat("x", maxText)
	for s, want := range map[string]string{
		"":                      "",
		"größe":                 "größe",
		"a\xffb":                `a\xffb`,
		"\uFFFD":                "\uFFFD", // the character itself, and no byte that is not UTF-8
		"\xc3":                  `\xc3`,
		full:                    full,
		full + "y":              full,
		full[1:] + "ö":          full[1:],
		full[2:] + "ö":          full[2:] + "ö",
		full[3:] + "\xffyy":     full[3:],
		full[4:] + "\xff":       full[4:] + `\xff`,
		strings.Repeat(full, 3): full,
	} {
		if got := printable(s); got != want {
			t.Errorf("%.20q…, %d bytes: %.20q…, %d bytes; want %.20q…, %d", s, len(s), got, len(got), want, len(want))
		}
	}
}

var must = expect.NoError

// Dead letters that differ in more than what RabbitMQ changes have different fingerprints.
func TestAFingerprintIsOfAllThatTellsMessagesApart(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	message := func() *wire.Message {
		return &wire.Message{Headers: amqp.Table{"n": int64(1), "x-delivery-count": int64(1), "x-acquired-count": int64(1),
			"x-death": []any{amqp.Table{"queue": "q", "count": int64(1), "time": now}, amqp.Table{"queue": "p", "count": int64(1), "time": now}}}}
	}
	death := func(m *wire.Message, n int) amqp.Table { return m.Headers["x-death"].([]any)[n].(amqp.Table) }
	var scratch []byte
	of := func(change func(*wire.Message)) [16]byte {
		m := message()
		change(m)
		return fingerprint(m, &scratch)
	}
	seen := map[content]string{contentOf(of(func(*wire.Message) {})): "nothing"}
	differs := func(name string, change func(*wire.Message)) {
		t.Helper()
		c := contentOf(of(change))
		if other, there := seen[c]; there {
			t.Errorf("%s changes no more than %s does", name, other)
		}
		seen[c] = name
	}
	fields := reflect.TypeFor[wire.Message]()
	for i := range fields.NumField() {
		name := fields.Field(i).Name
		if name == "Headers" {
			continue
		}
		differs(name, func(m *wire.Message) {
			switch f := reflect.ValueOf(m).Elem().Field(i).Addr().Interface().(type) {
			case *string:
				*f = "x"
			case *[]byte:
				*f = []byte("x")
			case *uint8:
				*f = 3
			case *time.Time:
				*f = now
			default:
				t.Fatalf("%s is a %T", name, f)
			}
		})
	}
	differs("a header", func(m *wire.Message) { m.Headers["n"] = int64(2) })
	differs("another header", func(m *wire.Message) { m.Headers["o"] = int64(1) })
	differs("the queue", func(m *wire.Message) { death(m, 0)["queue"] = "r" })
	differs("the count", func(m *wire.Message) { death(m, 0)["count"] = int64(2) })
	differs("an earlier death", func(m *wire.Message) { death(m, 1)["time"] = now.Add(time.Second) })
	same := of(func(m *wire.Message) {
		m.Headers["x-delivery-count"], m.Headers["x-acquired-count"] = int64(9), int64(9)
	})
	expect.Equal(t, same, of(func(*wire.Message) {}), "what RabbitMQ counts changes the fingerprint")
	if later := of(func(m *wire.Message) { death(m, 0)["time"] = now.Add(time.Second) }); contentOf(later) != contentOf(same) || !timeOf(later).Equal(now.Add(time.Second)) {
		t.Error("the time of the newest death is not beside the content")
	}
}

// Receipts stay bounded, whatever connections, replicas and queues there are.
func TestKnownReceiptsAreBounded(t *testing.T) {
	var r receipts
	r.reset(outage{}, true)
	n := uint64(0)
	for range 2 { // what 20 processes write, a batch at a time
		for p := range 20 {
			kept := make([]store.Receipt, store.ReceiptsKept)
			for i := range kept {
				n++
				kept[i] = store.Receipt{ID: uuid.New(), FirstFailed: time.Unix(int64(n), 0), Process: fmt.Sprint(p)}
				binary.BigEndian.PutUint64(kept[i].Fingerprint[:], n)
			}
			r.load(kept)
		}
	}
	if most := r.processes.maxNames * 2 * store.ReceiptsKept; len(r.byContent) > most || len(r.processes.byName) != r.processes.maxNames {
		t.Errorf("%d receipts of other processes are known, want at most %d", len(r.byContent), most)
	}
	for _, c := range []struct{ messages, queues, most int }{{2 * maxIssued, 10, maxIssued}, {3000, 3000, 512}} {
		r.reset(outage{}, true)
		now := time.Now()
		for i := range c.messages {
			d := wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeDeadLetters, MessageID: fmt.Sprint(i),
				Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": fmt.Sprint(i % c.queues), "time": now}}}}}
			r.identify(&d, now)
		}
		if len(r.byContent) > c.most || len(r.queues.byName) > c.queues {
			t.Errorf("%d receipts of %d queues are known, want at most %d", len(r.byContent), len(r.queues.byName), c.most)
		}
	}
}

// The receipts of a vanished process outlast many of another: RabbitMQ delivers again up to 31 s later.
func TestKnownReceiptsAreOfEachProcess(t *testing.T) {
	var r receipts
	r.reset(outage{}, true)
	gone := store.Receipt{ID: uuid.New(), Fingerprint: [16]byte{1}, FirstFailed: time.Unix(1, 0), Process: "gone"}
	r.load([]store.Receipt{gone})
	for i := range uint64(10 * store.ReceiptsKept) {
		k := store.Receipt{ID: uuid.New(), FirstFailed: time.Unix(2, 0), Process: "busy"}
		binary.BigEndian.PutUint64(k.Fingerprint[:], 1<<32+i)
		r.load([]store.Receipt{k})
	}
	if k := r.byContent[contentOf(gone.Fingerprint)]; len(k) != 1 || k[0].id != gone.ID {
		t.Errorf("the receipt of the process that vanished is %v", k)
	}
}

// Issued ids outlast thousands of other messages: RabbitMQ may be late to publish again.
func TestKnownReceiptsOutlastABusyQueue(t *testing.T) {
	now := time.Now()
	dead := func(queue string, i int) *wire.Delivery {
		return &wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeDeadLetters, MessageID: fmt.Sprint(i),
			Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": queue, "time": now}}}}}
	}
	for name, c := range map[string]struct {
		busy  string
		after int
	}{"of its queue": {"q", maxIssued / 2}, "of another": {"busy", 2 * maxIssued}} {
		var r receipts
		r.reset(outage{}, true)
		first := r.identify(dead("q", 0), now)
		for i := range c.after {
			r.identify(dead(c.busy, i+1), now)
		}
		if again := r.identify(dead("q", 0), now); again.id != first.id {
			t.Errorf("%s: after %d others a copy has another id", name, c.after)
		}
	}
}

// Other replicas' receipts are read again when a message that may have been delivered before has none left.
func TestWhetherReceiptsAreMissing(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	message := func(id string, redelivered bool, after time.Duration) wire.Delivery {
		return wire.Delivery{Redelivered: redelivered, Message: wire.Message{Exchange: wire.ExchangeDeadLetters, MessageID: id,
			Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": "q", "reason": "rejected", "time": now.Add(after)}}}}}
	}
	first, named := message("", true, 0), message("m", false, 0)
	withID := message("", true, 0)
	withID.Message.Headers = amqp.Table{wire.HeaderID: uuid.NewString(), wire.HeaderQueue: "q",
		"x-death": []any{amqp.Table{"queue": "q", "reason": "rejected", "exchange": wire.RetryExchange("q")}}}
	for name, c := range map[string]struct {
		known []wire.Delivery // that have a receipt
		used  bool
		batch []wire.Delivery
		want  bool
	}{
		"a redelivery":                      {[]wire.Delivery{first}, false, []wire.Delivery{first}, false},
		"a redelivery without a receipt":    {nil, false, []wire.Delivery{first}, true},
		"a redelivery whose receipt's used": {[]wire.Delivery{first}, true, []wire.Delivery{first}, true},
		"two with one receipt":              {[]wire.Delivery{first}, false, []wire.Delivery{first, first}, true},
		"two with two receipts":             {[]wire.Delivery{first, first}, false, []wire.Delivery{first, first}, false},
		"the first delivery":                {nil, false, []wire.Delivery{message("", false, 0)}, false},
		"with an id in its headers":         {nil, false, []wire.Delivery{withID}, false},
		"behind such a message":             {nil, false, []wire.Delivery{withID, message("", false, 0), first}, true},
		"a copy after a leader moved":       {[]wire.Delivery{named}, false, []wire.Delivery{message("m", false, maxLeaderMove)}, false},
		"too late for one":                  {[]wire.Delivery{named}, false, []wire.Delivery{message("m", false, maxLeaderMove+time.Second)}, true},
		"as much too early":                 {[]wire.Delivery{named}, false, []wire.Delivery{message("m", false, -maxLeaderMove-time.Second)}, true},
	} {
		var r receipts
		r.reset(outage{}, true)
		for i := range c.known {
			r.load([]store.Receipt{{ID: uuid.New(), Fingerprint: fingerprint(&c.known[i].Message, &r.scratch), FirstFailed: now, Process: "other"}})
		}
		for _, all := range r.byContent {
			for _, k := range all {
				k.usedByRedelivered = c.used
			}
		}
		expect.Equal(t, r.areMissing(c.batch), c.want, "%s: missing", name)
	}
}

// The newest issued ids are remembered, at least as many as a store keeps receipts of.
func TestTheNewestIssuedIDsAreRemembered(t *testing.T) {
	var r receipts
	r.reset(outage{}, true)
	var ids []uuid.UUID
	for range 2 * store.ReceiptsKept {
		ids = append(ids, uuid.New())
		r.noteIssued(ids[len(ids)-1])
		r.noteIssued(ids[0]) // is known
	}
	if len(r.issued) != len(ids) {
		t.Fatalf("%d ids are remembered, want %d", len(r.issued), len(ids))
	}
	one := uuid.New()
	r.noteIssued(one)
	if len(r.issued) != store.ReceiptsKept+1 || len(r.newest) != len(r.issued) || r.issued[ids[store.ReceiptsKept-1]] || !r.issued[ids[store.ReceiptsKept]] || !r.issued[one] {
		t.Errorf("%d ids are remembered, the oldest of them %v", len(r.issued), r.issued[ids[store.ReceiptsKept]])
	}
}

// What RabbitMQ may publish again after an outage, and what may be such a copy, to the nanosecond.
func TestTheMarginsOfAnOutage(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	short, long := outage{began, began.Add(4 * time.Second)}, outage{began, began.Add(time.Hour)}
	const s = time.Second
	for _, c := range []struct {
		name     string
		outage   outage
		at       time.Duration // when it was dead-lettered, after the outage began
		precedes bool
		follows  bool
	}{
		{"long before", short, -30*s - 1, false, false},
		{"before", short, -30 * s, true, false},
		{"a second before the middle", short, 1 * s, true, false},
		{"later, by its whole second", short, 1*s + 1, true, true},
		{"in the middle", short, 2 * s, true, true},
		{"after the middle", short, 2*s + 1, false, true},
		{"after", short, 34 * s, false, true},
		{"long after", short, 34*s + 1, false, false},
		{"5 s into a long one", long, 5 * s, true, true},
		{"later in a long one", long, 5*s + 1, false, true},
		{"4 s into a long one", long, 4 * s, true, false},
	} {
		at := began.Add(c.at)
		if c.outage.precedes(at) != c.precedes || c.outage.follows(at) != c.follows {
			t.Errorf("%s: it precedes %v, follows %v; want %v, %v", c.name, c.outage.precedes(at), c.outage.follows(at), c.precedes, c.follows)
		}
	}
	unknown := outage{ended: began}
	for _, at := range []time.Time{{}, began, began.Add(s)} {
		if unknown.precedes(at) || unknown.follows(at) || (outage{}).precedes(at) || (outage{}).follows(at) {
			t.Errorf("%s precedes or follows an outage of which nothing is known", at)
		}
	}
}

// An unseen outage began about when the newest message with a receipt failed, unless that is long ago.
func TestAnUnseenOutageBeganWithTheNewestReceipt(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	const none = time.Duration(-1)
	for name, c := range map[string]struct {
		failed []time.Duration // ago
		want   time.Duration
	}{
		"no receipt":           {nil, none},
		"the newest of some":   {[]time.Duration{3 * time.Minute, time.Minute, 2 * time.Minute}, time.Minute},
		"now":                  {[]time.Duration{0}, 0},
		"by a clock ahead":     {[]time.Duration{-time.Second}, none},
		"just long ago":        {[]time.Duration{maxUnseenOutage}, none},
		"just not long ago":    {[]time.Duration{maxUnseenOutage - 1}, maxUnseenOutage - 1},
		"hours ago":            {[]time.Duration{3 * time.Hour}, none},
		"a clock ahead as one": {[]time.Duration{-time.Hour, time.Minute, 3 * time.Hour}, time.Minute},
	} {
		k := keeper{connectedAt: now}
		var kept []store.Receipt
		for _, ago := range c.failed {
			kept = append(kept, store.Receipt{FirstFailed: now.Add(-ago)})
		}
		began := k.unseenOutage(kept)
		if c.want == none && !began.IsZero() || c.want != none && !began.Equal(now.Add(-c.want)) {
			t.Errorf("%s: it began %s before the connection, want %s", name, now.Sub(began), c.want)
		}
	}
	expect.Equal(t, maxUnseenOutage, 10*time.Minute, "an outage may be unseen for")
}

// A connection that delivered nothing and ended soon is part of the outage before it.
func TestWhenAnOutageBegins(t *testing.T) {
	for name, c := range map[string]struct {
		anyBatch, first bool
		lasted          time.Duration
		is              bool // the beginning of another outage
	}{
		"it delivered":             {true, false, time.Second, true},
		"it ended soon":            {false, false, time.Second, false},
		"it ended a little later":  {false, false, marginBefore, false},
		"it lasted":                {false, false, marginBefore + 1, true},
		"the first, ended at once": {false, true, 0, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			lost := time.Now().Add(-time.Hour)
			k := keeper{connectedAt: time.Now(), anyBatch: c.anyBatch, lostAt: lost}
			if c.first {
				k.lostAt = time.Time{}
			}
			time.Sleep(c.lasted)
			if k.Disconnected(); k.lostAt.Equal(time.Now()) != c.is || !c.is && !k.lostAt.Equal(lost) {
				t.Errorf("%s: the connection was lost %s ago", name, time.Since(k.lostAt))
			}
		})
	}
}

// The start of a seen outage is not estimated, whenever receipts are read.
func TestASeenOutageIsNotGuessed(t *testing.T) {
	for name, seen := range map[string]func(*keeper){
		"it was seen":           func(k *keeper) { k.lostAt = time.Now().Add(-5 * time.Minute) },
		"a batch was delivered": func(k *keeper) { k.anyBatch = true },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			r := &store.Record{ID: uuid.New(), Queue: "q", State: store.Parked, FirstFailed: time.Now(), Fingerprint: [16]byte{1}}
			must(t, s.Add(t.Context(), []*store.Record{r}))
			time.Sleep(time.Second)
			k := keeper{store: s, connectedAt: time.Now()}
			guessed := k
			seen(&k)
			lost := k.lostAt
			if err := k.load(t.Context()); err != nil || !k.lostAt.Equal(lost) {
				t.Errorf("%s: it is said to begin %s ago, %v", name, time.Since(k.lostAt), err)
			}
			if err := guessed.load(t.Context()); err != nil || !guessed.lostAt.Equal(r.FirstFailed) || !guessed.receipts.outage.began.Equal(r.FirstFailed) {
				t.Errorf("without either it is said to begin %s ago, %v", time.Since(guessed.lostAt), err)
			}
		})
	}
}
