// Package faults_test breaks things under load and then accounts for every
// message by its id: none lost, early, in another queue or altered, and
// duplicates only where a crash explains them.
package faults_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// fault is when something was broken, from just before until its effects were over. What
// had arrived when the tally was settled was no longer in flight.
type fault struct{ from, to, settled time.Time }

// maxCopies is how often one fault can duplicate one message: its acknowledgement to RabbitMQ,
// the confirm of its at-least-once dead-lettering, and that of its retry may be lost.
const maxCopies = 3

// sums are what became of the messages of a tally.
type sums struct {
	Messages, Lost int // not acknowledged
	Early          int // came before they were due
	Changed        int // came altered, to another queue, or as what they are not
	Doubled        int // copies
	Unexplained    int // copies without a fault that explains them
}

func (s *sums) add(other sums) {
	s.Messages += other.Messages
	s.Lost += other.Lost
	s.Early += other.Early
	s.Changed += other.Changed
	s.Doubled += other.Doubled
	s.Unexplained += other.Unexplained
}

// during runs what breaks something. Messages that are in flight meanwhile, and no
// others, may be duplicated.
func (t *tally) during(breaks func()) {
	t.mu.Lock()
	f := fault{from: time.Now(), settled: t.settled}
	t.mu.Unlock()
	breaks()
	f.to = time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, f)
}

// account checks each message, and fails the test for those that no fault explains.
func (t *tally) account() {
	t.test.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	duplicates, inFlight, unexplained := duplicates(t.faults, t.failed, t.seen)
	for i, w := range append(t.wrong, unexplained...) {
		if i == 10 {
			t.test.Errorf("and %d more", len(t.wrong)+len(unexplained)-i)
			break
		}
		t.test.Error(w)
	}
	t.sum.Doubled, t.sum.Unexplained = duplicates, len(unexplained)
	t.test.Logf("%d messages: 0 lost, %d wrong, %d duplicates over %d faults with %d in flight", len(t.bodies),
		len(t.wrong), duplicates, len(t.faults), inFlight)
}

// result is what is known of its messages so far.
func (t *tally) result() sums {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.sum
	s.Messages, s.Changed = len(t.bodies), len(t.wrong)-s.Early
	return s
}

// duplicates counts those among the arrivals of messages, tells how many messages were in
// flight at a fault, and which duplicates no fault explains. Keys are "id failures".
//
// A message is in flight from its failure until it has arrived and the tally was settled. One
// that was doubled fails twice from then on: its copies explain as many at each attempt
// after.
func duplicates(faults []fault, failed map[string]time.Time, seen map[string][]time.Time) (all, inFlight int,
	unexplained []string) {
	extra := func(key string) int { return max(len(seen[key])-1, 0) }
	for key, arrivals := range seen {
		id, attempt, _ := strings.Cut(key, " ")
		before := 0
		if n := 0; attempt != "0" {
			_, _ = fmt.Sscan(attempt, &n)
			before = extra(fmt.Sprint(id, " ", n-1))
		}
		all += max(extra(key)-before, 0)
		for _, f := range faults {
			if !failed[key].After(f.to) && arrivals[0].After(f.settled) {
				inFlight++
			}
		}
		alone, used := 0, make([]int, len(faults))
		for i := 1; i < len(arrivals); i++ {
			explains := func(f fault) bool {
				return !failed[key].After(f.to) && arrivals[i-1].After(f.settled) && !arrivals[i].Before(f.from)
			}
			free := -1
			for n, f := range faults {
				if explains(f) && used[n] < maxCopies*(1+before) {
					free = n
				}
			}
			if free < 0 {
				alone++
				continue
			}
			used[free]++
		}
		if alone > before {
			unexplained = append(unexplained,
				fmt.Sprintf("%s came %d times as attempt %s, and was not in flight when something broke", id,
					len(arrivals), attempt))
		}
	}
	slices.Sort(unexplained)
	return all, inFlight, unexplained
}

// The account can fail: a duplicate needs a fault while the message was in flight.
func TestADuplicateNeedsAFaultWhileItWasInFlight(t *testing.T) {
	at := func(seconds ...int) (all []time.Time) {
		for _, s := range seconds {
			all = append(all, time.Unix(int64(s), 0))
		}
		return all
	}
	kill := []fault{{time.Unix(100, 0), time.Unix(101, 0), time.Unix(90, 0)}}
	for name, c := range map[string]struct {
		faults           []fault
		failed           map[string]time.Time
		seen             map[string][]time.Time
		all, unexplained int
	}{
		"one arrival each":      {kill, nil, map[string][]time.Time{"a 0": at(99), "a 1": at(102)}, 0, 0},
		"twice without a fault": {nil, nil, map[string][]time.Time{"a 1": at(99, 100)}, 1, 1},
		"in flight at a kill": {kill, map[string]time.Time{"a 1": at(98)[0]},
			map[string][]time.Time{"a 1": at(99, 103)}, 1, 0},
		"in flight, returned after": {kill, map[string]time.Time{"a 1": at(98)[0]},
			map[string][]time.Time{"a 1": at(102, 103)}, 1, 0},
		"failed after the kill": {kill, map[string]time.Time{"a 1": at(102)[0]},
			map[string][]time.Time{"a 1": at(103, 103)}, 1, 1},
		"settled before the kill": {kill, map[string]time.Time{"a 1": at(10)[0]},
			map[string][]time.Time{"a 1": at(11, 103)}, 1, 1},
		"twice before the kill": {kill, map[string]time.Time{"a 1": at(98)[0]},
			map[string][]time.Time{"a 1": at(98, 99)}, 1, 1},
		"again and again after one kill": {kill, map[string]time.Time{"a 1": at(98)[0]},
			map[string][]time.Time{"a 1": at(99, 102, 103, 104, 105)}, 4, 1},
		"both copies fail and return": {kill, map[string]time.Time{"a 1": at(98)[0], "a 2": at(120)[0]},
			map[string][]time.Time{"a 1": at(99, 103), "a 2": at(121, 125)}, 1, 0},
		"both copies return, and one double": {kill, map[string]time.Time{"a 1": at(98)[0], "a 2": at(120)[0]},
			map[string][]time.Time{"a 1": at(99, 103), "a 2": at(121, 125, 126)}, 2, 1},
	} {
		all, _, unexplained := duplicates(c.faults, c.failed, c.seen)
		if all != c.all || len(unexplained) != c.unexplained {
			t.Errorf("%s: %d duplicates, unexplained %q; want %d and %d", name, all, unexplained, c.all, c.unexplained)
		}
	}
}

// largestBody is what RabbitMQ 4 takes by default.
const largestBody = 16 << 20

// various is a message by its id: of any size, with headers of every AMQP type that the
// client can write, and all properties. It is the same each time.
func various(id string, withBody bool) amqp.Publishing {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(id))
	random := rand.New(rand.NewPCG(sum.Sum64(), 0))
	var nested [4]byte
	for i := range nested {
		nested[i] = byte(random.Uint32())
	}
	at := time.Unix(random.Int64N(1<<32), 0)
	p := amqp.Publishing{
		MessageId: id, DeliveryMode: 2, ContentType: "application/octet-stream", ContentEncoding: "identity",
		Priority:      uint8(random.IntN(5)),
		CorrelationId: fmt.Sprint(random.Uint64()), ReplyTo: "answers", Timestamp: at, Type: "soak",
		AppId: "test/faults",
		Headers: amqp.Table{
			"bool": random.IntN(2) == 0, "uint8": uint8(random.Uint32()), "int8": int8(random.Uint32()),
			"int16":  int16(random.Uint32()),
			"uint16": uint16(random.Uint32()), "uint32": random.Uint32(), "int32": int32(random.Uint32()),
			"int64": int64(random.Uint64()), "float32": random.Float32(),
			"float64": math.MaxFloat64 * random.Float64(),
			"decimal": amqp.Decimal{Scale: 2, Value: int32(random.Uint32() >> 1)}, "string": fmt.Sprintf("ä\x00\xff%d",
				random.Uint64()), "empty": "",
			"bytes": nested[:], "time": at.Add(time.Hour), "nothing": nil,
			"list": []any{nested[:1], "text", int64(random.Uint64()), []any(nil), amqp.Table{"in": "a list",
				"false": false}},
			"table": amqp.Table{"int16": int16(random.Uint32()), "table": amqp.Table{"deep": []any{nil, 1.5}},
				"": "no name"},
		},
	}
	if withBody {
		p.Body = make([]byte, sizeOf(id, random))
		seed := [32]byte{}
		copy(seed[:], id)
		_, _ = rand.NewChaCha8(seed).Read(p.Body)
	}
	return p
}

// sizeOf is how large the body of a message is: mostly small, with each size around a frame
// (131,072 bytes and its 8 of its own), 1 MiB and 16 MiB now and then.
func sizeOf(id string, random *rand.Rand) int {
	n := 0
	_, _ = fmt.Sscan(id[strings.LastIndex(id, "-")+1:], &n)
	switch {
	case n%1499 == 100:
		return largestBody
	case n%499 == 50:
		return 1 << 20
	case n%97 == 20:
		return 131072 - 10 + random.IntN(12)
	case n%19 == 10:
		return random.IntN(64 << 10)
	case n%11 == 5:
		return 0
	}
	return random.IntN(400)
}

// changes is in what a delivery's headers and properties are not those that were published.
// Bodies are compared by their tally.
func changes(d amqp.Delivery) (all []string) {
	want := various(d.MessageId, false)
	for name, value := range want.Headers {
		if is, there := d.Headers[name]; !there || !reflect.DeepEqual(is, value) {
			all = append(all, fmt.Sprintf("%s came with header %s = %T(%v), and was published with %T(%v)", d.MessageId,
				name, is, is, value, value))
		}
	}
	for name := range d.Headers {
		if _, ours := want.Headers[name]; !ours && name != "n" && name != "of" && !strings.HasPrefix(name, "x-") {
			all = append(all, fmt.Sprintf("%s came with header %s, which it had not", d.MessageId, name))
		}
	}
	is := amqp.Publishing{MessageId: d.MessageId, DeliveryMode: d.DeliveryMode, ContentType: d.ContentType,
		ContentEncoding: d.ContentEncoding, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId,
		Expiration: d.Expiration, UserId: d.UserId}
	want.Headers = nil
	if !reflect.DeepEqual(is, want) {
		all = append(all, fmt.Sprintf("%s came with properties %+v, and was published with %+v", d.MessageId, is, want))
	}
	return all
}

// The comparison can fail, for each header and property.
func TestAChangedHeaderIsSeen(t *testing.T) {
	as := func(p amqp.Publishing) amqp.Delivery {
		return amqp.Delivery{MessageId: p.MessageId, DeliveryMode: p.DeliveryMode, ContentType: p.ContentType,
			ContentEncoding: p.ContentEncoding, Priority: p.Priority,
			CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, Timestamp: p.Timestamp, Type: p.Type, AppId: p.AppId,
			Headers: p.Headers}
	}
	expect.Equal(t, len(changes(as(various("orders-1", false)))), 0, "changes")
	for name := range various("orders-1", false).Headers {
		p := various("orders-1", false)
		delete(p.Headers, name)
		expect.Equal(t, len(changes(as(p))), 1, "without header %s: %q", name, changes(as(p)))
		p.Headers[name] = int64(-1)
		expect.Equal(t, len(changes(as(p))), 1, "with another header %s: %q", name, changes(as(p)))
	}
	other := various("orders-1", false)
	other.ReplyTo = ""
	other.Headers["more"] = true
	expect.Equal(t, len(changes(as(other))), 2, "with a header more and a property less: %q", changes(as(other)))
}

// The policy of these tests: each message fails twice and is acknowledged at its
// third attempt.
const (
	failures = 2
	wait     = 150 * time.Millisecond
	policies = `policies: [{name: p, queues: ["*"], attempts: 50, backoff: {fixed: 150ms}, jitter: none}]`
	// The same without a breaker: each message that is retried fails again at first, which
	// is a storm.
	unbroken = `policies: [{name: p, queues: ["*"], attempts: 50, backoff: {fixed: 150ms}, jitter: none, breaker: off}]`
	// The same, waiting in RabbitMQ.
	policiesInRabbitMQ = `policies: [{name: p, queues: ["*"], attempts: 50, backoff: {fixed: 150ms}, wait: {levels: [150ms]}}]`
)

// tally knows what was published to one queue and what became of it.
type tally struct {
	test  *testing.T
	v     *brokertest.VHost
	queue string

	mu     sync.Mutex
	bodies map[string][sha256.Size]byte // published, by message id
	failed map[string]time.Time         // when it first failed, by message id and failures so far
	seen   map[string][]time.Time       // when it came, by message id and x-redrive-attempt
	came   int                          // how many are in seen
	acked  map[string]int
	// ackedAt is when the latest was.
	ackedAt time.Time
	// uncertain are messages that RabbitMQ has not confirmed: they may come, or not.
	uncertain map[string]bool
	ids       map[string]string // the first x-redrive-id by message id: no copy has another
	faults    []fault
	settled   time.Time // see settle
	wrong     []string
	failures  int  // of each message
	various   bool // its messages differ in size and headers: see the function
	sum       sums
	at        string             // see only
	conns     []*amqp.Connection // of its own clients
	inTest    func() string      // what a service that runs within the test says of itself
}

// newTally declares the queue as docs/explanation/promises.md advises for messages that must not
// be lost: with at-most-once dead-lettering RabbitMQ itself drops dead letters
// while the intake has no leader, as just after a restart.
func newTally(t *testing.T, v *brokertest.VHost, queue string) *tally {
	v.Queue(queue, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
	return emptyTally(t, v, queue)
}

func emptyTally(t *testing.T, v *brokertest.VHost, queue string) *tally {
	return &tally{test: t, v: v, queue: queue, failures: failures, bodies: map[string][sha256.Size]byte{},
		failed: map[string]time.Time{}, seen: map[string][]time.Time{}, acked: map[string]int{},
		uncertain: map[string]bool{}, ids: map[string]string{}}
}

// publish publishes n messages, confirmed.
func (t *tally) publish(n int) {
	t.test.Helper()
	t.v.PublishMany(t.queue, n, func(int) amqp.Publishing { return t.next(false) })
}

// publishOne publishes one message, confirmed, by a connection that stays for the next: where
// there are thousands, RabbitMQ would have as many connections. It returns the message's id.
func (t *tally) publishOne() string {
	t.test.Helper()
	p := t.next(false)
	t.v.Publish("", t.queue, p)
	return p.MessageId
}

// next is the next message to publish; uncertain until its confirm is read, if so.
func (t *tally) next(uncertain bool) amqp.Publishing {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.bodies)
	p := amqp.Publishing{MessageId: fmt.Sprintf("%s-%d", t.queue, n), DeliveryMode: 2, Headers: amqp.Table{}}
	p.Body = []byte("body of " + p.MessageId)
	if t.various {
		p = various(p.MessageId, true)
	}
	p.Headers["n"], p.Headers["of"] = p.MessageId, t.v.Name
	t.bodies[p.MessageId] = sha256.Sum256(p.Body)
	if uncertain {
		t.uncertain[p.MessageId] = true
	}
	return p
}

// consume takes deliveries until ctx ends, and connects again when it must.
func (t *tally) consume(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := t.connect()
		if err != nil {
			<-time.After(50 * time.Millisecond)
			continue
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		if ch, err := conn.Channel(); err == nil && ch.Qos(500, 0, false) == nil {
			if in, err := ch.Consume(t.queue, "", false, false, false, false, nil); err == nil {
				for d := range in {
					t.delivered(d)
				}
			}
		}
		stop()
		conn.Close()
	}
}

func (t *tally) delivered(d amqp.Delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fails(d) {
		_ = d.Reject(false)
	} else if d.Ack(false) == nil {
		t.done(d.MessageId)
	}
}

// done notes an acknowledgement, with mu.
func (t *tally) done(id string) {
	t.ackedAt = time.Now()
	t.acked[id]++
}

// fails checks a delivery and reports whether the consumer fails it, with mu.
func (t *tally) fails(d amqp.Delivery) bool {
	id := d.MessageId
	want, known := t.bodies[id]
	if !known || sha256.Sum256(d.Body) != want || d.Headers["n"] != id || d.Headers["of"] != t.v.Name ||
		d.RoutingKey != t.queue {
		t.wrong = append(t.wrong, fmt.Sprintf("%q came altered or is not of this queue: %q, headers %v", id,
			d.Body[:min(len(d.Body), 100)], d.Headers))
	}
	if t.various && known {
		t.wrong = append(t.wrong, changes(d)...)
	}
	attempt, _ := d.Headers[wire.HeaderAttempt].(int64)
	if mark, ok := d.Headers[wire.HeaderID].(string); ok && t.ids[id] == "" {
		t.ids[id] = mark
	} else if ok && t.ids[id] != mark {
		t.wrong = append(t.wrong, fmt.Sprintf("%s attempt %d came as %s and as %s", id, attempt, t.ids[id], mark))
	}
	if attempt > 0 && !d.Redelivered {
		if early := t.failed[fmt.Sprint(id, " ", attempt)].Add(wait); time.Now().Before(early) {
			t.sum.Early++
			t.wrong = append(t.wrong, fmt.Sprintf("%s attempt %d came %s early", id, attempt, time.Until(early)))
		}
	}
	if attempt > int64(t.failures) {
		t.wrong = append(t.wrong, fmt.Sprintf("%s came as attempt %d though it never failed so often", id, attempt))
	}
	if !d.Redelivered { // what RabbitMQ hands out again is no duplicate of ours
		key := fmt.Sprint(id, " ", attempt)
		t.seen[key] = append(t.seen[key], time.Now())
		t.came++
	}
	if attempt >= int64(t.failures) {
		return false
	}
	if key := fmt.Sprint(id, " ", attempt+1); t.failed[key].IsZero() {
		t.failed[key] = time.Now()
	}
	return true
}

// publishing publishes until ctx ends, by whatever node takes it. What RabbitMQ does
// not confirm is not published again.
func (t *tally) publishing(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := t.connect()
		if err != nil {
			<-time.After(50 * time.Millisecond)
			continue
		}
		if ch, err := conn.Channel(); err == nil && ch.Confirm(false) == nil {
			for ctx.Err() == nil && t.publishSome(ctx, ch) {
				<-time.After(50 * time.Millisecond) // a load, not as much as there can be
			}
		}
		_ = conn.CloseDeadline(time.Now().Add(time.Second))
	}
}

// connect connects one of the test's own clients.
func (t *tally) connect() (*amqp.Connection, error) {
	t.mu.Lock()
	at := t.at
	t.mu.Unlock()
	conn, err := brokertest.Connect(cmp.Or(at, t.v.URL()))
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at != at {
		_ = conn.CloseDeadline(time.Now())
		return nil, errors.New("it is to go elsewhere")
	}
	t.conns = append(t.conns, conn)
	return conn, nil
}

// only lets the test's own clients use these brokers alone; "": all.
func (t *tally) only(urls string) {
	t.mu.Lock()
	t.at = urls
	conns := t.conns
	t.conns = nil
	t.mu.Unlock()
	for _, c := range conns {
		_ = c.CloseDeadline(time.Now().Add(time.Second))
	}
}

// publishSome reports whether all were confirmed.
func (t *tally) publishSome(ctx context.Context, ch *amqp.Channel) (all bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	confirms := map[string]*amqp.DeferredConfirmation{}
	for range 10 {
		p := t.next(true)
		c, err := ch.PublishWithDeferredConfirm("", t.queue, true, false, p)
		if err != nil {
			return false
		}
		confirms[p.MessageId] = c
	}
	all = true
	for id, c := range confirms {
		if acked, err := c.WaitContext(ctx); err != nil || !acked {
			all = false
			continue
		}
		t.mu.Lock()
		delete(t.uncertain, id)
		t.mu.Unlock()
	}
	return all
}

// missing is how many messages must still be acknowledged.
func (t *tally) missing() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.bodies {
		if t.acked[id] == 0 && !t.uncertain[id] {
			n++
		}
	}
	return n
}

// acknowledged tells how many messages are done.
func (t *tally) acknowledged() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.acked)
}

// deliveries tells how many there were.
func (t *tally) deliveries() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.came
}

// awaitAcknowledged waits until every message was acknowledged.
func (t *tally) awaitAcknowledged() {
	t.test.Helper()
	t.await(20*time.Millisecond, func() bool { return t.missing() == 0 })
}

// end shows that what fails only now comes once, and accounts for each message.
func (t *tally) end() {
	t.test.Helper()
	t.publish(300)
	t.awaitAcknowledged()
	t.account()
}

func (t *tally) isAcknowledged(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.acked[id] > 0
}

// hasFailed reports whether the consumer has rejected a message.
func (t *tally) hasFailed(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.failed[id+" 1"].IsZero()
}

// mostIdle is how long no message may be acknowledged while some are missing. What is lost never
// is; what RabbitMQ's at-least-once dead-lettering could not publish it tries again after three
// minutes.
const mostIdle = 5 * time.Minute

// await asks so often whether it is so, and counts what is missing as lost when no message
// has been acknowledged for mostIdle.
func (t *tally) await(every time.Duration, is func() bool) {
	t.test.Helper()
	for since := time.Now(); !is(); <-time.After(every) {
		t.mu.Lock()
		if t.ackedAt.After(since) {
			since = t.ackedAt
		}
		t.mu.Unlock()
		if time.Since(since) > mostIdle {
			missing := t.missing()
			t.mu.Lock()
			t.sum.Lost = missing
			t.mu.Unlock()
			t.logWhereTheyAre()
			t.test.Fatalf("%d of %d messages are missing, and none was acknowledged for %s: lost, or still on their way",
				missing, len(t.bodies), mostIdle)
		}
	}
}

// settle waits until every message was acknowledged and the services keep none: no later
// fault explains a copy of these.
func (t *tally) settle(all ...*process) {
	t.test.Helper()
	t.awaitAcknowledged()
	for _, p := range all {
		p.waitReady()
	}
	brokertest.Eventually(t.test, "the services keep no message", func() bool {
		return all[0].count("state:waiting") == 0 && t.v.Messages(wire.QueueIntake) == 0
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settled = time.Now()
}

// logWhereTheyAre logs what RabbitMQ has of what is missing, and what the service does if it runs
// within the test.
func (t *tally) logWhereTheyAre() {
	t.test.Helper()
	t.mu.Lock()
	t.test.Logf("%d published, %d of them not confirmed, %d acknowledged, the latest %s ago",
		len(t.bodies), len(t.uncertain), len(t.acked), time.Since(t.ackedAt).Round(time.Millisecond))
	t.mu.Unlock()
	var queues json.RawMessage
	const columns = "name,vhost,leader,online,messages_ready,messages_unacknowledged,messages_dlx,consumers,state"
	err := t.v.API().Call(context.Background(), http.MethodGet, "queues/"+url.PathEscape(t.v.Name)+"?columns="+columns,
		nil, &queues)
	t.test.Logf("%v\n%s", err, queues)
	if t.inTest != nil {
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		t.test.Logf("%s; goroutines:\n%s", t.inTest(), &stacks)
	}
}
