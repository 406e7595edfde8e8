package faults_test

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
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
	t.test.Logf("%d messages: 0 lost, %d wrong, %d duplicates over %d faults with %d in flight", len(t.bodies), len(t.wrong), duplicates, len(t.faults), inFlight)
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
func duplicates(faults []fault, failed map[string]time.Time, seen map[string][]time.Time) (all, inFlight int, unexplained []string) {
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
			unexplained = append(unexplained, fmt.Sprintf("%s came %d times as attempt %s, and was not in flight when something broke", id, len(arrivals), attempt))
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
		"one arrival each":                   {kill, nil, map[string][]time.Time{"a 0": at(99), "a 1": at(102)}, 0, 0},
		"twice without a fault":              {nil, nil, map[string][]time.Time{"a 1": at(99, 100)}, 1, 1},
		"in flight at a kill":                {kill, map[string]time.Time{"a 1": at(98)[0]}, map[string][]time.Time{"a 1": at(99, 103)}, 1, 0},
		"in flight, returned after":          {kill, map[string]time.Time{"a 1": at(98)[0]}, map[string][]time.Time{"a 1": at(102, 103)}, 1, 0},
		"failed after the kill":              {kill, map[string]time.Time{"a 1": at(102)[0]}, map[string][]time.Time{"a 1": at(103, 103)}, 1, 1},
		"settled before the kill":            {kill, map[string]time.Time{"a 1": at(10)[0]}, map[string][]time.Time{"a 1": at(11, 103)}, 1, 1},
		"twice before the kill":              {kill, map[string]time.Time{"a 1": at(98)[0]}, map[string][]time.Time{"a 1": at(98, 99)}, 1, 1},
		"again and again after one kill":     {kill, map[string]time.Time{"a 1": at(98)[0]}, map[string][]time.Time{"a 1": at(99, 102, 103, 104, 105)}, 4, 1},
		"both copies fail and return":        {kill, map[string]time.Time{"a 1": at(98)[0], "a 2": at(120)[0]}, map[string][]time.Time{"a 1": at(99, 103), "a 2": at(121, 125)}, 1, 0},
		"both copies return, and one double": {kill, map[string]time.Time{"a 1": at(98)[0], "a 2": at(120)[0]}, map[string][]time.Time{"a 1": at(99, 103), "a 2": at(121, 125, 126)}, 2, 1},
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
		MessageId: id, DeliveryMode: 2, ContentType: "application/octet-stream", ContentEncoding: "identity", Priority: uint8(random.IntN(5)),
		CorrelationId: fmt.Sprint(random.Uint64()), ReplyTo: "answers", Timestamp: at, Type: "soak", AppId: "test/faults",
		Headers: amqp.Table{
			"bool": random.IntN(2) == 0, "uint8": uint8(random.Uint32()), "int8": int8(random.Uint32()), "int16": int16(random.Uint32()),
			"uint16": uint16(random.Uint32()), "uint32": random.Uint32(), "int32": int32(random.Uint32()), "int64": int64(random.Uint64()), "float32": random.Float32(), "float64": math.MaxFloat64 * random.Float64(),
			"decimal": amqp.Decimal{Scale: 2, Value: int32(random.Uint32() >> 1)}, "string": fmt.Sprintf("ä\x00\xff%d", random.Uint64()), "empty": "",
			"bytes": nested[:], "time": at.Add(time.Hour), "nothing": nil,
			"list":  []any{nested[:1], "text", int64(random.Uint64()), []any(nil), amqp.Table{"in": "a list", "false": false}},
			"table": amqp.Table{"int16": int16(random.Uint32()), "table": amqp.Table{"deep": []any{nil, 1.5}}, "": "no name"},
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
			all = append(all, fmt.Sprintf("%s came with header %s = %T(%v), and was published with %T(%v)", d.MessageId, name, is, is, value, value))
		}
	}
	for name := range d.Headers {
		if _, ours := want.Headers[name]; !ours && name != "n" && name != "of" && !strings.HasPrefix(name, "x-") {
			all = append(all, fmt.Sprintf("%s came with header %s, which it had not", d.MessageId, name))
		}
	}
	is := amqp.Publishing{MessageId: d.MessageId, DeliveryMode: d.DeliveryMode, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Expiration: d.Expiration, UserId: d.UserId}
	want.Headers = nil
	if !reflect.DeepEqual(is, want) {
		all = append(all, fmt.Sprintf("%s came with properties %+v, and was published with %+v", d.MessageId, is, want))
	}
	return all
}

// The comparison can fail, for each header and property.
func TestAChangedHeaderIsSeen(t *testing.T) {
	as := func(p amqp.Publishing) amqp.Delivery {
		return amqp.Delivery{MessageId: p.MessageId, DeliveryMode: p.DeliveryMode, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, Priority: p.Priority,
			CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, Timestamp: p.Timestamp, Type: p.Type, AppId: p.AppId, Headers: p.Headers}
	}
	if c := changes(as(various("orders-1", false))); len(c) != 0 {
		t.Errorf("nothing changed, and %q", c)
	}
	for name := range various("orders-1", false).Headers {
		p := various("orders-1", false)
		delete(p.Headers, name)
		if len(changes(as(p))) != 1 {
			t.Errorf("without header %s: %q", name, changes(as(p)))
		}
		p.Headers[name] = int64(-1)
		if len(changes(as(p))) != 1 {
			t.Errorf("with another header %s: %q", name, changes(as(p)))
		}
	}
	other := various("orders-1", false)
	other.ReplyTo = ""
	other.Headers["more"] = true
	if len(changes(as(other))) != 2 {
		t.Errorf("with a header more and a property less: %q", changes(as(other)))
	}
}
