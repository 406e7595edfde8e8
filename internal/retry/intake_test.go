package retry_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// A dead letter that RabbitMQ redelivers keeps its id; two equal dead letters have two.
func TestARedeliveryKeepsItsID(t *testing.T) {
	s := memstore.New()
	f := newIntake(s)
	ctx := context.Background()
	twins := []wire.Delivery{deadLetter("q", "same"), deadLetter("q", "same")}
	must(t, f.Handle(ctx, twins))
	first := kept(t, s)
	if first[0].Record.ID == first[1].Record.ID {
		t.Fatal("two dead letters have one id")
	}
	// The process dies; another one connects and gets both again.
	f = connected(t, s)
	must(t, f.Handle(ctx, redelivered("same", "same", "same", "new")))
	ids := idsOf(t, s)
	if len(ids) != 4 || ids[first[0].Record.ID.String()] != 2 || ids[first[1].Record.ID.String()] != 2 {
		t.Errorf("6 records have the ids %v; want the first two twice and two new ones", ids)
	}
}

// redelivered are dead letters of q that RabbitMQ delivers again.
func redelivered(bodies ...string) (batch []wire.Delivery) {
	for _, body := range bodies {
		batch = append(batch, again(deadLetter("q", body), true))
	}
	return batch
}

// sharedStore is a store that several services use at once.
type sharedStore struct {
	*memstore.Store
	notRead
}

// notRead has the methods of a shared store that the intake never calls.
type notRead struct{ store.Shared }

// When a replica dies, another finds the ids that it gave, also since they connected, and gives each once.
func TestARedeliveryToAnotherReplicaKeepsItsID(t *testing.T) {
	s := sharedStore{Store: memstore.New()}
	dies, lives := newIntake(s), newIntake(s)
	ctx := context.Background()
	for _, f := range []*retry.Intake{dies, lives} {
		must(t, f.Connected(ctx))
	}
	must(t, dies.Handle(ctx, []wire.Delivery{deadLetter("q", "same"), deadLetter("q", "same"), deadLetter("q", "one")}))
	given := idsOf(t, s)
	// The last two were never kept: these are others.
	for _, bodies := range [][]string{{"same"}, {"same", "one"}, {"same", "one"}} {
		must(t, lives.Handle(ctx, redelivered(bodies...)))
	}
	ids := idsOf(t, s)
	for id := range given {
		expect.Equal(t, ids[id], 2, "records have the id %s", id)
	}
	expect.Equal(t, len(ids), 5, "8 records have … ids")
}

// lostAnswer is a store on a network that stored its records, and whose answer was lost.
type lostAnswer struct {
	*memstore.Store
	lost bool
}

func (s *lostAnswer) Add(ctx context.Context, records []*store.Record) error {
	if err := s.Store.Add(ctx, records); err != nil || s.lost {
		return err
	}
	s.lost = true
	return errors.New("the answer was lost")
}

// A batch that is passed again may have been stored: its copy has the same ids.
func TestABatchOfferedAgainKeepsItsIDs(t *testing.T) {
	type handler interface {
		Handle(context.Context, []wire.Delivery) error
	}
	for name, on := range map[string]func(store.Store) handler{
		"intake":        func(s store.Store) handler { return newIntake(s) },
		"parked intake": func(s store.Store) handler { return retry.NewParkedIntake(s, nil, nil, nil, none) },
	} {
		s := &lostAnswer{Store: memstore.New()}
		f := on(s)
		batch := []wire.Delivery{deadLetter("q", "same"), deadLetter("q", "same")}
		if err := f.Handle(context.Background(), batch); err == nil {
			t.Fatal("an error of the store was not returned")
		}
		for range 2 { // the second one comes after it was taken: it is another
			must(t, f.Handle(context.Background(), batch))
		}
		ids := idsOf(t, s)
		twice := 0
		for _, n := range ids {
			if n == 2 {
				twice++
			}
		}
		if len(ids) != 4 || twice != 2 {
			t.Errorf("%s: 6 records have the ids %v, want two twice and two once", name, ids)
		}
	}
}

// What is parked of an error group that people know of is counted as quiet, whatever its rule says; other groups of the
// queue are not.
func TestAGroupThatPeopleKnowOfIsParkedQuietly(t *testing.T) {
	s := memstore.New()
	inForce := retry.NewInForce(retry.Rules{Policies: policy.Set{{Name: "p", Queues: []string{"q"}, Attempts: 1,
		Backoff: policy.Fixed(time.Second)}}})
	handlers := []interface {
		Handle(context.Context, []wire.Delivery) error
	}{retry.NewIntake(s, inForce, nil, nil, nil, none), retry.NewParkedIntake(s, inForce, nil, nil, none)}
	fail := func(text string) {
		for i, exchange := range []string{wire.ExchangeFailures, ""} {
			must(t, handlers[i].Handle(t.Context(), []wire.Delivery{{Message: wire.Message{Exchange: exchange,
				RoutingKey: "q", Headers: amqp.Table{wire.HeaderError: text, wire.HeaderQueue: "q", wire.HeaderReason: "reported"}}}}))
		}
	}
	quiet := func() int { return int(expectLedger(t, s)[store.EverParkedQuietly]) }
	fail("boom")
	fail("bang")
	expect.Equal(t, quiet(), 0, "messages parked quietly before")
	known := map[errorgroup.ID]bool{}
	for _, l := range kept(t, s) {
		if l.Record.Error == "boom" {
			known[s.GroupOf(l.Record)] = true
		}
	}
	inForce.SetKnown(known)
	fail("bang")
	expect.Equal(t, quiet(), 0, "messages of the other group parked quietly")
	fail("boom")
	expect.Equal(t, quiet(), 2, "messages of the group parked quietly")
	inForce.SetKnown(nil)
	fail("boom")
	expect.Equal(t, quiet(), 2, "messages parked quietly once it is open")
}

func expectLedger(t *testing.T, s store.Store) store.Sums {
	t.Helper()
	lines, err := s.Ledger(t.Context())
	must(t, err)
	expect.Equal(t, len(lines), 1, "lines of the ledger")
	return lines[0].Sums
}

// Stores keep microseconds: a due time is rounded up to them, since early is never.
func TestNeverEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ns := range []time.Duration{0, 1, 499, 500, 999} {
			time.Sleep(time.Millisecond + ns)
			s := memstore.New()
			rules := retry.Rules{Policies: policy.Set{{Name: "p", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Second), Jitter: policy.None}}}
			must(t, retry.NewIntake(s, retry.NewInForce(rules), nil, nil, nil, none).Handle(context.Background(), []wire.Delivery{deadLetter("q", "")}))
			least := time.Now().Add(time.Second)
			if due := kept(t, s)[0].Record.Due; due.Before(least) || due.Sub(least) >= time.Microsecond || due.UnixNano()%1000 != 0 {
				t.Errorf("due %s after the least wait, or not in the store's microseconds", due.Sub(least))
			}
		}
	})
}

// Malformed messages of brokers and clients.
func TestForgedOriginsAreParked(t *testing.T) {
	for name, headers := range map[string]amqp.Table{
		"none": nil, "no x-death": {}, "not a list": {"x-death": "orders"}, "empty list": {"x-death": []any{}},
		"not a table": {"x-death": []any{"orders"}}, "no queue": {"x-death": []any{amqp.Table{"reason": "rejected"}}},
		"queue of another type": {"x-death": []any{amqp.Table{"queue": int64(5), "reason": "rejected"}}},
		"queue of 256 bytes":    {"x-death": []any{amqp.Table{"queue": strings.Repeat("q", 256), "reason": "rejected"}}},
		"no reason":             {"x-death": []any{amqp.Table{"queue": "orders"}}},
		"forged by others":      {"x-first-death-queue": "orders", "x-last-death-queue": "orders"},
	} {
		s := memstore.New()
		d := wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeDeadLetters, Headers: headers}}
		must(t, newIntake(s).Handle(context.Background(), []wire.Delivery{d}))
		if r := kept(t, s)[0].Record; r.State != store.Parked || r.Queue != "" || r.ParkedFor == "" {
			t.Errorf("%s: kept as %+v", name, r)
		}
	}
}

func TestAttemptsAreCountedInOurHeaderOnly(t *testing.T) {
	for _, c := range []struct {
		header any
		want   int
		noted  bool
	}{{nil, 1, true}, {int64(1), 2, false}, {int32(1), 2, false}, {uint8(1), 2, false}, {int64(-1), 1, true}, {int64(wire.MaxAttempt + 1), 1, true},
		{int64(wire.MaxAttempt), wire.MaxAttempt + 1, false}, {"2", 3, false}, {2.0, 3, false}, {1.5, 3, false}, {"two", 1, true}, {true, 1, true}} {
		s := memstore.New()
		d := retriedFrom("q", "")
		d.Message.Headers[wire.HeaderAttempt] = c.header
		must(t, newIntake(s).Handle(context.Background(), []wire.Delivery{d}))
		if r := kept(t, s)[0].Record; r.Failures != c.want || (len(r.Notes) > 0) != c.noted {
			t.Errorf("%T %v: attempt %d, notes %v; want %d, noted %v", c.header, c.header, r.Failures, r.Notes, c.want, c.noted)
		}
	}
}

// derived gives a delivery the headers of the third attempt at another message, as frameworks copy them.
func derived(d wire.Delivery) wire.Delivery {
	of := wire.Message{Body: []byte("order")}
	h := headers.History{ID: headers.NewID(&of).String(), Failures: 2, Replays: 4, Queue: "q", FirstFailed: time.Now().Add(-time.Hour)}
	maps.Copy(d.Message.Headers, h.ApplyTo(of).Headers)
	return d
}

// What a handler publishes with its delivery's headers is another message, wherever; the delivery keeps its own id.
func TestADerivedMessageIsAnother(t *testing.T) {
	report := func(body string) wire.Delivery {
		return wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: "q", Headers: amqp.Table{}, Body: []byte(body)}}
	}
	elsewhere := report("order")
	elsewhere.Message.RoutingKey = "other"
	s := memstore.New()
	f := newIntake(s)
	batch := []wire.Delivery{derived(deadLetter("other", "order")), derived(elsewhere)}
	for i := range 10 {
		body := fmt.Sprint("derived ", i)
		batch = append(batch, derived(deadLetter("q", body)), derived(retriedFrom("q", body)), derived(report(body)))
	}
	must(t, f.Handle(t.Context(), batch))
	for _, l := range kept(t, s) {
		if r := l.Record; r.Failures != 1 || r.Replays != 0 || !r.FirstFailed.Equal(r.FailedAt) || len(r.Notes) != 1 || r.ID.String() == r.Message.Headers[wire.HeaderID] {
			t.Errorf("%q is kept as %+v", r.Message.Body, r)
		}
	}
	if ids := idsOf(t, s); len(ids) != len(batch) {
		t.Errorf("%d derived messages have %d ids", len(batch), len(ids))
	}
	for _, own := range []wire.Delivery{derived(deadLetter("q", "order")), derived(retriedFrom("q", "order")), derived(report("order"))} {
		s := memstore.New()
		must(t, newIntake(s).Handle(t.Context(), []wire.Delivery{own}))
		if r := kept(t, s)[0].Record; r.Failures != 3 || r.Replays != 4 || r.ID.String() != own.Message.Headers[wire.HeaderID] || len(r.Notes) > 0 {
			t.Errorf("the delivery itself is kept as %+v", r)
		}
	}
}

// A message that failed before keeps the time of its first failure, whoever counted.
func TestTheFirstFailureIsKeptOverAllAttempts(t *testing.T) {
	first := time.Now().Add(-time.Hour).Truncate(time.Second)
	for _, failures := range []int64{1, 0} { // 0: a person has replayed it
		d := retriedFrom("q", "")
		d.Message.Headers[wire.HeaderAttempt], d.Message.Headers[wire.HeaderFirstFailed] = failures, first
		parked := d
		parked.Message.Exchange = wire.ExchangeParked
		s := memstore.New()
		must(t, newIntake(s).Handle(context.Background(), []wire.Delivery{d}))
		must(t, retry.NewParkedIntake(s, nil, nil, nil, none).Handle(context.Background(), []wire.Delivery{parked}))
		all := kept(t, s)
		for _, l := range all {
			if r := l.Record; !r.FirstFailed.Equal(first) || !r.FailedAt.After(first) {
				t.Errorf("%v, attempt %d: it failed first at %s, and at %s", r.State, r.Failures, r.FirstFailed, r.FailedAt)
			}
		}
		expect.Equal(t, len(all), 2, "records")
	}
}

func BenchmarkTake(b *testing.B) {
	s := discardingStore{memstore.New()}
	f := newIntake(s)
	batch := make([]wire.Delivery, 512)
	for i := range batch {
		batch[i] = deadLetter("orders", string(make([]byte, 1024)))
	}
	b.ReportAllocs()
	for b.Loop() {
		must(b, f.Handle(context.Background(), batch))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batch)), "ns/message")
}

type discardingStore struct{ store.Store }

func (discardingStore) Add(context.Context, []*store.Record) error { return nil }

// smallStore is a store that has room for so many records in one commit, and for so many in all.
type smallStore struct {
	*memstore.Store
	atOnce, inAll int
}

func (s *smallStore) Add(ctx context.Context, records []*store.Record) error {
	if len(records) > min(s.atOnce, s.inAll) {
		return store.ErrFull
	}
	s.inAll -= len(records)
	return s.Store.Add(ctx, records)
}

// If a store has no room for a whole batch, it gets the batch in parts: otherwise an empty store with a small reserve
// would get the same batch for ever. If the store fills up half way, each message is still stored and reported once.
func TestABatchThatDoesNotFitIsStoredInParts(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		atOnce, inAll int
		full          bool
	}{"at once": {atOnce: 10, inAll: 10}, "in parts": {atOnce: 3, inAll: 10}, "one by one": {atOnce: 1, inAll: 10},
		"fills up": {atOnce: 3, inAll: 7, full: true}, "is full": {atOnce: 10, full: true}} {
		for _, isParked := range []bool{false, true} {
			s := &smallStore{memstore.New(), c.atOnce, c.inAll}
			var events []retry.Event
			listen := func(e retry.Event) { events = append(events, e) }
			handle := retry.NewParkedIntake(s, nil, nil, nil, listen).Handle
			if !isParked {
				handle = listeningIntake(s, listen).Handle
			}
			var batch []wire.Delivery
			for i := range 10 {
				batch = append(batch, deadLetter(fmt.Sprint("q", i), strconv.Itoa(i)))
			}
			must(t, handle(ctx, nil)) // a batch may be empty
			err := handle(ctx, batch)
			if errors.Is(err, store.ErrFull) != c.full || len(kept(t, s)) != c.inAll && c.atOnce == 1 || err != nil && len(events) > 0 {
				t.Errorf("%s: %d stored, %d events, %v", name, len(kept(t, s)), len(events), err)
			}
			if s.inAll = 11; err != nil {
				expect.Err(t, handle(ctx, batch), nil, "%s, with room", name)
			}
			bodies := map[string]int{}
			for _, l := range kept(t, s) {
				bodies[string(l.Record.Message.Body)]++
			}
			stored := map[retry.Kind][]string{}
			for _, e := range events {
				stored[e.Kind] = append(stored[e.Kind], e.Queue)
			}
			queues := []string{"q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q9"}
			reported := slices.Equal(stored[retry.Failed], queues) && slices.Equal(stored[retry.Waiting], queues)
			if isParked { // whose queue is not known
				reported = len(stored[retry.Parked]) == 10
			}
			if len(bodies) != 10 || len(kept(t, s)) != 10 || !reported {
				t.Errorf("%s, of redrive.parked %t: stored %v, and reported %v", name, isParked, bodies, stored)
			}
			// The next batch is another one.
			if err := handle(ctx, batch[:1]); err != nil || len(kept(t, s)) != 11 {
				t.Errorf("%s: the next batch: %d stored, %v", name, len(kept(t, s)), err)
			}
		}
	}
}

// What becomes of a failed message, as a record, and what log and metrics hear of it.
func TestVerdicts(t *testing.T) {
	longest, withoutKeys := strings.Repeat("q", 255), deadLetter("q", "x")
	withoutKeys.Message.Headers["x-death"].([]any)[0].(amqp.Table)["routing-keys"] = []any{}
	policies := policy.Set{
		{Name: "audited", Queues: []string{"audited"}, Attempts: 1, Backoff: policy.Fixed(time.Second), Exhausted: policy.Exhausted{Action: policy.Forward, Destination: policy.Destination{Exchange: "audit", RoutingKey: "failed"}}},
		{Name: "dropped", Queues: []string{"dropped"}, Attempts: 1, Backoff: policy.Fixed(time.Second), Exhausted: policy.Exhausted{Action: policy.Discard}},
		{Name: "q", Queues: []string{"q", longest}, Attempts: 3, Backoff: policy.Fixed(time.Second)},
	}
	user := amqp.Table{wire.HeaderQueue: "q", wire.HeaderAttempt: int64(0), wire.HeaderUserID: "shop", wire.HeaderExchange: "first", wire.HeaderRoutingKey: "eu"}
	through := func(exchange string, d wire.Delivery) wire.Delivery {
		d.Message.Headers["x-death"].([]any)[0].(amqp.Table)["exchange"] = exchange
		for k, v := range user {
			d.Message.Headers[k] = v
		}
		return d
	}
	annotated := func(reason string, annotations amqp.Table) wire.Delivery {
		d := deadLetter("q", "x")
		d.Message.Headers["x-death"].([]any)[0].(amqp.Table)["reason"] = reason
		maps.Copy(d.Message.Headers, annotations)
		return d
	}
	hour, old := amqp.Table{wire.HeaderDelay: int64(3_600_000)}, amqp.Table{wire.HeaderError: "old"}
	park := amqp.Table{wire.HeaderPark: "why", wire.HeaderRejectReason: "no stock"}
	deepHeader, duplicateHeader := deadLetter("q", "x"), deadLetter("q", "x")
	deepHeader.CannotRepublish, duplicateHeader.DuplicateHeader = "a header of no known type", "x-death stands twice"
	// RabbitMQ writes the head entry; a publisher can have written those after it.
	failedTwice := deadLetter("q", "x")
	failedTwice.Message.Headers["x-death"] = append(failedTwice.Message.Headers["x-death"].([]any),
		amqp.Table{"queue": "dropped", "reason": "expired", "exchange": "forged", "routing-keys": []any{"forged"}, "count": int64(1)})
	published := deadLetter("q", "x")
	published.Message.Exchange, published.Message.RoutingKey = "", "q"
	for name, c := range map[string]struct {
		of    wire.Delivery
		event retry.Kind
		want  func(*store.Record) bool
	}{
		"retried": {deadLetter("q", "x"), retry.Waiting, func(r *store.Record) bool {
			return r.State == store.Waiting && r.Proven && r.Message.Exchange == "shop" && r.Message.RoutingKey == "key" && r.Policy == "q"
		}},
		"forwarded": {deadLetter("audited", "x"), retry.Waiting, func(r *store.Record) bool {
			return r.State == store.Waiting && r.Forward != nil && *r.Forward == store.Destination{Exchange: "audit", RoutingKey: "failed"}
		}},
		"discarded":             {deadLetter("dropped", "x"), retry.Discarded, nil},
		"cannot be republished": {deepHeader, retry.Parked, func(r *store.Record) bool { return r.ParkedFor == deepHeader.CannotRepublish && r.Queue == "q" }},
		"headers twice": {duplicateHeader, retry.Parked, func(r *store.Record) bool {
			return strings.Contains(r.ParkedFor, duplicateHeader.DuplicateHeader) && r.Queue == "" && !r.Proven
		}},
		// What is at the limits of what RabbitMQ writes is retried.
		"the longest name": {deadLetter(longest, "x"), retry.Waiting, func(r *store.Record) bool { return r.Queue == longest && r.Message.RoutingKey == "key" }},
		"no routing keys":  {withoutKeys, retry.Waiting, func(r *store.Record) bool { return r.Queue == "q" && r.Message.RoutingKey == "" }},
		"failed in two queues": {failedTwice, retry.Waiting, func(r *store.Record) bool {
			return r.Queue == "q" && r.Reason == "rejected" && r.Message.Exchange == "shop" && r.Message.RoutingKey == "key"
		}},
		"published to the intake": {published, retry.Parked, func(r *store.Record) bool {
			return strings.Contains(r.ParkedFor, "not dead-lettered or reported") && r.Queue == "" && !r.Proven
		}},
		"our own queue": {deadLetter(wire.QueueIntake, "x"), retry.Parked, func(r *store.Record) bool { return strings.Contains(r.ParkedFor, "own") }},
		"no policy":     {deadLetter("others", "x"), retry.Parked, func(r *store.Record) bool { return strings.Contains(r.ParkedFor, "no policy") }},
		"reported": {wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: "q", Headers: amqp.Table{wire.HeaderError: "no stock"}}}, retry.Waiting, func(r *store.Record) bool {
			return r.Error == "no stock" && !r.Proven && r.Reason == wire.ReasonReported
		}},
		"asks to be parked": {wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeFailures, RoutingKey: "q", Headers: amqp.Table{wire.HeaderPark: "no customer"}}}, retry.Parked, func(r *store.Record) bool {
			return r.ParkedFor == "its consumer parked it: no customer"
		}},
		// What a consumer annotates, or its publisher: until the next retry, and within the policy.
		"asks to be parked, a dead letter": {annotated("rejected", park), retry.Parked, func(r *store.Record) bool {
			return r.ParkedFor == "its consumer parked it: why" && r.Error == "no stock"
		}},
		"asks to be parked, no consumer did": {annotated("maxlen", park), retry.Parked, func(r *store.Record) bool {
			return strings.HasPrefix(r.ParkedFor, "its reason is maxlen") && r.Error == ""
		}},
		"asks for a delay, a dead letter": {annotated(wire.ReasonDeliveryLimit, hour), retry.Waiting,
			func(r *store.Record) bool {
				return r.Due.Sub(r.FailedAt) <= time.Second+time.Millisecond &&
					strings.Contains(fmt.Sprint(r.Notes), "asked for a delay of 1h")
			}},
		"rejected with the error of before": {annotated("rejected", old), retry.Waiting,
			func(r *store.Record) bool { return r.Error == "" }},
		// Our own headers are believed where they prove to be the message's own.
		"a client's headers": {through("shop", deadLetter("q", "x")), retry.Waiting, func(r *store.Record) bool {
			return r.Message.UserID == "" && r.Message.Exchange == "shop" && r.Message.RoutingKey == "key"
		}},
		"retried before": {through(wire.RetryExchange("q"), deadLetter("q", "x")), retry.Waiting, func(r *store.Record) bool {
			return r.Message.UserID == "shop" && r.Message.Exchange == "first" && r.Message.RoutingKey == "eu"
		}},
		"copied from another": {through(wire.RetryExchange("q"), derived(deadLetter("q", "x"))), retry.Waiting, func(r *store.Record) bool {
			return r.Message.UserID == "" && r.Message.Exchange == wire.RetryExchange("q") && r.Message.RoutingKey == "key"
		}},
		"waited in RabbitMQ before": {through(wire.ExchangeDue, deadLetter("q", "x")), retry.Waiting, func(r *store.Record) bool {
			return r.Message.UserID == "shop" && r.Message.Exchange == "first" && r.Message.RoutingKey == "eu"
		}},
	} {
		s, events := memstore.New(), []retry.Kind(nil)
		f := retry.NewIntake(s, retry.NewInForce(retry.Rules{Policies: policies}), nil, nil, nil, func(e retry.Event) { events = append(events, e.Kind) })
		must(t, f.Handle(t.Context(), []wire.Delivery{c.of}))
		all := kept(t, s)
		if !slices.Equal(events, []retry.Kind{retry.Failed, c.event}) {
			t.Errorf("%s: events %v", name, events)
		}
		if c.want == nil {
			lines, err := s.Ledger(t.Context())
			must(t, err)
			if len(all) != 0 || len(lines) != 1 || lines[0].Sums[store.DiscardedAtOnce] != 1 {
				t.Errorf("%s: %d are kept, and the ledger has %+v", name, len(all), lines)
			}
			continue
		}
		if len(all) != 1 || !c.want(all[0].Record) {
			t.Errorf("%s: kept %+v", name, all)
		}
	}
}

// recognizing is a store that recognizes a batch whose answer was lost, as Redis's does.
type recognizing struct {
	*memstore.Store
	lost map[[32]byte]bool // added, and not answered
	// answers are what becomes of the next batches: nil, store.ErrFull, which adds nothing, or another
	// error, which comes after they are added.
	answers []error
}

func (s *recognizing) Add(ctx context.Context, records []*store.Record) error {
	var answer error
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	of := store.HashOf(records)
	if errors.Is(answer, store.ErrFull) {
		return answer
	}
	if !s.lost[of] {
		if err := s.Store.Add(ctx, records); err != nil {
			return err
		}
	}
	if s.lost[of] = answer != nil; answer == nil {
		delete(s.lost, of)
	}
	return answer
}

var errNoAnswer = errors.New("the answer was lost")

// The store recognizes a batch that is passed again, whatever has changed since.
func TestABatchThatMayBeStoredIsAddedAgainAsItWas(t *testing.T) {
	for name, answers := range map[string][]error{
		"at once":              {errNoAnswer, errNoAnswer},
		"in parts":             {store.ErrFull, errNoAnswer, nil, errNoAnswer, nil},
		"in parts of parts":    {store.ErrFull, store.ErrFull, nil, errNoAnswer},
		"and then not at once": {store.ErrFull, errNoAnswer, errNoAnswer, errNoAnswer},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &recognizing{Store: memstore.New(), lost: map[[32]byte]bool{}, answers: answers}
			inForce := retry.NewInForce(retry.Rules{})
			in := retry.NewIntake(s, inForce, nil, nil, nil, none)
			rules := []policy.Policy{
				{Name: "p", Queues: []string{"*"}, Attempts: 3, Backoff: policy.Fixed(time.Minute)},
				{Name: "p", Queues: []string{"*"}, Attempts: 1, Exhausted: policy.Exhausted{Action: policy.Discard}},
				{Name: "p", Queues: []string{"*"}, Attempts: 1},
			}
			discards := policy.Policy{Name: "d", Queues: []string{"dropped"}, Attempts: 1, Exhausted: policy.Exhausted{Action: policy.Discard}}
			batch := []wire.Delivery{deadLetter("q", "a"), deadLetter("q", "b"), deadLetter("dropped", "x"), deadLetter("q", "c"), deadLetter("q", "d")}
			for i, err := 0, errNoAnswer; err != nil; i++ {
				set := policy.Set{rules[i%len(rules)]}
				if i == 0 {
					set = append(policy.Set{discards}, set...)
				}
				inForce.Replace(retry.Rules{Policies: set})
				err = in.Handle(t.Context(), batch)
				time.Sleep(time.Second)
			}
			expect.Equal(t, len(kept(t, s)), 4, "%s: records of 4 messages are kept", name)
		})
	}
}

// A replayed message fails for the same number of times as before, and must not be taken for the earlier failure.
func TestAFailureAfterAReplayIsAnotherOne(t *testing.T) {
	first := storetest.Waiting("q", 0, "a")
	again := *first
	again.FailedAt = first.FailedAt.Add(time.Millisecond)
	if store.HashOf([]*store.Record{first}) == store.HashOf([]*store.Record{&again}) {
		t.Error("both are the same batch")
	}
	other := *first
	other.ID = uuid.New()
	all := [][32]byte{store.HashOf([]*store.Record{first}), store.HashOf([]*store.Record{&other}), store.HashOf([]*store.Record{first, &other}), store.HashOf([]*store.Record{&other, first})}
	for i, h := range all {
		expect.Equal(t, slices.Index(all, h), i, "batch … is the same as another")
	}
}

// What a person made from another message says so at each failure. Its headers cannot: a publisher writes what it likes
// there. An entry that cannot be read costs that only.
func TestWhatAMessageWasMadeFromIsKnownAtItsNextFailure(t *testing.T) {
	s := memstore.New()
	replayed := derived(retriedFrom("q", "order"))
	made := &store.Record{ID: uuid.MustParse(replayed.Message.Headers[wire.HeaderID].(string)), Queue: "q", MadeFrom: uuid.New()}
	must(t, s.PutEntries(t.Context(), store.Carry(made, false, time.Now())))
	must(t, newIntake(s).Handle(t.Context(), []wire.Delivery{replayed}))
	expect.Equal(t, kept(t, s)[0].Record.MadeFrom, made.MadeFrom, "was made from")

	broken := noEntries{memstore.New()}
	must(t, newIntake(broken).Handle(t.Context(), []wire.Delivery{replayed}))
	r := kept(t, broken.Store)[0].Record
	expect.Equal(t, strings.Join(r.Notes, ";"), "it is not known from what it was made: damaged", "is noted")
}

type noEntries struct{ *memstore.Store }

func (noEntries) Entry(context.Context, string) ([]byte, error) { return nil, errors.New("damaged") }

// Where waits in RabbitMQ end, any publisher chooses the routing key: such names are limited like all others.
func TestNamesOfMessagesThatWaitedInRabbitMQShareTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, g := memstore.New(), retry.NewSender(&slowBroker{lookups: map[string]int{}}, anyQueue, nil, impatient, nil, none)
		defer g.Close()
		c := retry.NewParkedIntake(s, nil, retry.NewReportedNames(s, g), nil, none)
		var batch []wire.Delivery
		for i := range 3000 {
			for _, prefix := range []string{"\xffinvented-", "invented-"} {
				batch = append(batch, wire.Delivery{Message: wire.Message{Exchange: wire.ExchangeDue, RoutingKey: fmt.Sprint(prefix, i)}})
			}
		}
		must(t, c.Handle(t.Context(), batch))
		counts, err := s.Counts(t.Context())
		must(t, err)
		var waiting, nameless int64
		for _, c := range counts {
			waiting += c.Waiting
			if c.Queue == "" {
				nameless += c.Parked
			}
		}
		if most := int64(1300); len(counts) > int(most) || waiting > most || nameless != 6000-waiting {
			t.Errorf("%d names, %d messages wait, %d are parked under none", len(counts), waiting, nameless)
		}
		if len(storetest.Listed(t, s, store.Range{Queues: []string{"\xffinvented-0"}})) != 0 {
			t.Errorf("a message was kept for %q", "\xffinvented-0")
		}
	})
}

// What others have parked in RabbitMQ is parked, whatever queue its headers name; only what
// RabbitMQ's own waits could not retry is due. A message's queue is in a header, if that is no longer
// than a name; of one whose wait in RabbitMQ ended it is the routing key. The caller hears which
// queues lack their binding.
func TestMessagesParkedInRabbitMQAreCollected(t *testing.T) {
	longest := strings.Repeat("q", 255)
	for name, c := range map[string]struct {
		from, header, userID, cannotRepublish string
		queue                                 string
		lost                                  bool
		parked                                string // why; "": it waits
	}{
		"parked":                        {wire.ExchangeParked, "header", "", "", "header", false, "no more attempts"},
		"with a user-id in its headers": {wire.ExchangeParked, "header", "shop", "", "header", false, "no more attempts"},
		"its wait ended":                {wire.ExchangeDue, "header", "", "", "key", true, ""},
		"its wait in a lane ended":      {wire.ExchangeLane, "header", "", "", "key", true, ""},
		"its delay ended":               {wire.ExchangeDelayed, "header", "", "", "key", true, ""},
		"cannot be republished":         {wire.ExchangeDue, "header", "", "of no known type", "key", true, "of no known type"},
		"by another alternate exchange": {"others", "header", "", "", "header", true, "others"},
		"without a queue":               {"others", "", "", "", "", false, "others"},
		"the longest name":              {"others", longest, "", "", longest, true, "others"},
		"too long a name":               {"others", longest + "q", "", "", "", false, "others"},
	} {
		var lost []string
		s, events := memstore.New(), []retry.Event(nil)
		in := retry.NewParkedIntake(s, nil, nil, func(queue string) { lost = append(lost, queue) }, func(e retry.Event) { events = append(events, e) })
		headers := amqp.Table{wire.HeaderQueue: c.header, wire.HeaderAttempt: int64(2), wire.HeaderReason: "made up",
			wire.HeaderParkReason: "no more attempts", wire.HeaderUserID: c.userID}
		d := wire.Delivery{CannotRepublish: c.cannotRepublish, Message: wire.Message{Exchange: c.from, RoutingKey: "key", Headers: headers}}
		must(t, in.Handle(t.Context(), []wire.Delivery{d}))
		r := kept(t, s)[0].Record
		want := retry.Event{Kind: retry.Parked, At: r.FailedAt, Queue: c.queue, ID: r.ID, Failures: 2, Why: r.ParkedFor}
		state := store.Parked
		if c.parked == "" {
			want.Kind, want.Way, state = retry.Waiting, retry.InStore, store.Waiting
		}
		if r.State != state || !strings.Contains(r.ParkedFor, c.parked) || (c.parked == "") != (r.ParkedFor == "") ||
			r.Queue != c.queue || r.Failures != 2 || r.Reason != "" || r.Proven {
			t.Errorf("%s: kept as %+v", name, r)
		}
		if len(events) != 1 || events[0] != want || c.lost != slices.Equal(lost, []string{c.queue}) || !c.lost && len(lost) > 0 {
			t.Errorf("%s: events %+v, want %+v; lost are %q", name, events, want, lost)
		}
		notes := strings.Join(r.Notes, "; ")
		shown, unbound := strings.Contains(notes, wire.HeaderUserID+` header is "shop"`), strings.Contains(notes, "not bound")
		if shown != (c.userID != "") || unbound != (c.parked == "") || !shown && !unbound && notes != "" {
			t.Errorf("%s: the notes are %q", name, notes)
		}
	}
}

// Why a message was parked in RabbitMQ stays the first of the reasons for which it is parked.
func TestAllReasonsForParkingAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// No policy allows a queue, so all names are known not to be targets.
		g := retry.NewSender(&slowBroker{lookups: map[string]int{}}, func() policy.Set { return nil }, nil, impatient, nil, none)
		defer g.Close()
		names := retry.NewReportedNames(memstore.New(), g)
		handle := func(s store.Store, queue, cannotRepublish string) {
			t.Helper()
			in := retry.NewParkedIntake(s, nil, names, nil, none)
			must(t, in.Handle(t.Context(), []wire.Delivery{{CannotRepublish: cannotRepublish, Message: wire.Message{Exchange: wire.ExchangeParked,
				Headers: amqp.Table{wire.HeaderQueue: queue, wire.HeaderParkReason: "no more attempts"}}}}))
		}
		for i := range 1000 {
			handle(memstore.New(), fmt.Sprint("invented.", i), "")
		}
		for why, c := range map[string]struct{ queue, cannotRepublish string }{
			`names the queue "one more"`: {"one more", ""}, "not valid UTF-8": {"\xff", ""}, "a header of no known type": {"invented.0", "a header of no known type"},
		} {
			s := memstore.New()
			handle(s, c.queue, c.cannotRepublish)
			if parked := kept(t, s)[0].Record.ParkedFor; !strings.HasPrefix(parked, "no more attempts; ") || !strings.Contains(parked, why) {
				t.Errorf("it is parked for %q, want no more attempts and %q", parked, why)
			}
		}
	})
}

// rejectedNow returns a dead letter as RabbitMQ delivers it, dead-lettered now.
func rejectedNow(body string) wire.Delivery {
	d := deadLetter("q", body)
	head := d.Message.Headers["x-death"].([]any)[0].(amqp.Table)
	head["time"], head["count"] = time.Now().Truncate(time.Second), int64(1)
	return d
}

// again is how RabbitMQ delivers something once more.
func again(d wire.Delivery, redelivered bool) wire.Delivery {
	d.Message.Headers = maps.Clone(d.Message.Headers)
	d.Redelivered = redelivered
	if redelivered {
		d.Message.Headers["x-delivery-count"], d.Message.Headers["x-acquired-count"] = int64(2), int64(1)
	}
	return d
}

// A node that dies under at-least-once dead-lettering publishes again, with another time in x-death, what it had not
// noted as safe. Both copies are the first message.
func TestACopyByAtLeastOnceDeadLetteringKeepsItsID(t *testing.T) {
	for name, marked := range map[string]bool{"RabbitMQ 3.10": false, "RabbitMQ 4.3": true} {
		inTime(t, name, func(t *testing.T) {
			ctx, s := context.Background(), memstore.New()
			f := connected(t, s)
			stored, unstored := rejectedNow("stored"), rejectedNow("unstored")
			must(t, f.Handle(ctx, []wire.Delivery{stored}))
			f.Disconnected()
			var copies []wire.Delivery
			for i := range 8 { // RabbitMQ starts again, and does not let it consume yet
				time.Sleep(500 * time.Millisecond)
				if i == 4 {
					copies = []wire.Delivery{again(rejectedNow("stored"), marked), again(rejectedNow("unstored"), marked)}
				}
				must(t, f.Connected(ctx))
				time.Sleep(100 * time.Millisecond)
				f.Disconnected()
			}
			must(t, f.Connected(ctx))
			time.Sleep(100 * time.Millisecond)
			must(t, f.Handle(ctx, []wire.Delivery{again(stored, true), again(unstored, true)}))
			time.Sleep(time.Second)
			must(t, f.Handle(ctx, copies))
			f.Disconnected() // before they were acknowledged
			time.Sleep(time.Second)
			must(t, f.Connected(ctx))
			must(t, f.Handle(ctx, []wire.Delivery{again(copies[0], true), again(copies[1], true)}))
			checkIDs(t, s, "stored", 4, 1)
			checkIDs(t, s, "unstored", 3, 1)
		})
	}
}

// Two messages with equal content are two, although RabbitMQ 4.3 marks each rejected message as delivered before.
func TestEqualMessagesHaveAnIDEach(t *testing.T) {
	fresh := func(body string) wire.Delivery {
		d := rejectedNow(body)
		d.Redelivered, d.Message.Headers["x-delivery-count"] = true, int64(1)
		return d
	}
	for name, on := range map[string]store.Store{"disk": memstore.New(), "shared": sharedStore{Store: memstore.New()}} {
		inTime(t, name, func(t *testing.T) {
			ctx, f := context.Background(), newIntake(on)
			f.Disconnected()
			must(t, f.Connected(ctx))
			handle := func(n int) {
				t.Helper()
				for range n {
					must(t, f.Handle(ctx, []wire.Delivery{fresh("ping")}))
				}
			}
			handle(3) // within one second
			time.Sleep(time.Minute)
			handle(2)
			f.Disconnected()
			time.Sleep(2 * time.Second)
			must(t, f.Connected(ctx))
			handle(2)
			time.Sleep(time.Second)
			handle(2)
			checkIDs(t, on, "ping", 9, 9)
		})
	}
}

// Two equal dead letters that come twice keep an id each, also when a batch was passed twice.
func TestABatchOfferedTwiceWritesNoReceiptThatAnotherTakes(t *testing.T) {
	ctx := context.Background()
	s := &lostAnswer{Store: memstore.New()}
	first := newIntake(s)
	twins := []wire.Delivery{rejectedNow("same"), rejectedNow("same")}
	if err := first.Handle(ctx, twins[:1]); err == nil {
		t.Fatal("the store's error was not returned")
	}
	must(t, first.Handle(ctx, twins[:1])) // kept twice
	must(t, first.Handle(ctx, twins[1:]))
	f := connected(t, s)
	must(t, f.Handle(ctx, []wire.Delivery{again(twins[0], true), again(twins[1], true)}))
	ids := idsOf(t, s)
	if len(ids) != 2 || slices.Min(slices.Collect(maps.Values(ids))) != 2 {
		t.Errorf("5 records have the ids %v; want the second twin's twice", ids)
	}
}

// A message stored before an outage has one copy after it: further equal ones are other messages.
func TestOneReceiptIsUsedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, s := context.Background(), memstore.New()
		f := newIntake(s)
		must(t, f.Handle(ctx, []wire.Delivery{rejectedNow("x")}))
		f.Disconnected()
		time.Sleep(2 * time.Second)
		must(t, f.Connected(ctx))
		for range 2 {
			must(t, f.Handle(ctx, []wire.Delivery{rejectedNow("x")}))
			time.Sleep(time.Second)
		}
		all := newest(t, s, 0)
		if all[1].ID != all[0].ID || all[2].ID == all[0].ID {
			t.Errorf("the ids are %s, its copy %s and another's %s", all[0].ID, all[1].ID, all[2].ID)
		}
	})
}

// When Redrive goes down together with RabbitMQ, the newest receipt shows about when the outage began.
func TestACopyKeepsItsIDWhenRedriveWentDownToo(t *testing.T) {
	for name, c := range map[string]struct {
		firsts int           // equal dead letters before
		down   time.Duration // both were
		ids    int
	}{
		"one":               {1, 20 * time.Second, 1},
		"content repeated":  {2, 20 * time.Second, 3},
		"stopped for hours": {1, 3 * time.Hour, 2},
	} {
		inTime(t, name, func(t *testing.T) {
			ctx, s := context.Background(), memstore.New()
			f := connected(t, s)
			for range c.firsts {
				must(t, f.Handle(ctx, []wire.Delivery{rejectedNow("same")}))
			}
			time.Sleep(time.Second)
			must(t, f.Handle(ctx, []wire.Delivery{rejectedNow("other")}))
			time.Sleep(c.down)
			copied := again(rejectedNow("same"), false)
			f = newIntake(s) // another process, and RabbitMQ does not let it consume yet
			for range 3 {
				must(t, f.Connected(ctx))
				time.Sleep(time.Second)
				f.Disconnected()
			}
			must(t, f.Connected(ctx))
			must(t, f.Handle(ctx, []wire.Delivery{copied}))
			checkIDs(t, s, "same", c.firsts+1, c.ids)
		})
	}
}

// identified is a dead letter with a message-id, dead-lettered now.
func identified(body string) wire.Delivery {
	d := rejectedNow(body)
	d.Message.MessageID = "id of " + body
	return d
}

// When the leader of a work queue moves, RabbitMQ's at-least-once dead-lettering publishes
// again what it had not noted as safe in the intake, and our connection notices nothing.
// The copy of what has a message-id is known all the same; without one it cannot be distinguished
// from another message with equal content. All are kept. The copy may come to another replica.
func TestACopyAfterALeaderMovedKeepsItsID(t *testing.T) {
	again := func(d wire.Delivery, body string) wire.Delivery {
		c := identified(body)
		c.Message.Exchange, c.Redelivered, c.DuplicateHeader = d.Message.Exchange, d.Redelivered, d.DuplicateHeader
		c.Message.MessageID = d.Message.MessageID
		return c
	}
	for name, c := range map[string]struct {
		change func(*wire.Delivery) // of the first and of what comes after
		after  time.Duration
		equal  int // equal dead letters that come after the first
		others int // dead letters of the same queue in between
		ids    int
		moves  bool // what comes after comes to another replica
	}{
		"a copy":                     {after: 3 * time.Second, equal: 1, ids: 1},
		"within the same second":     {equal: 1, ids: 1},
		"of a node that hung":        {after: 80 * time.Second, equal: 1, ids: 1},
		"behind what else was there": {after: time.Second, equal: 1, others: 100, ids: 1},
		"RabbitMQ 4.3":               {change: func(d *wire.Delivery) { d.Redelivered = true }, after: time.Second, equal: 1, ids: 1},
		"another replica":            {after: time.Second, equal: 1, ids: 1, moves: true},
		"content repeated":           {after: time.Second, equal: 4, ids: 4},
		"long after":                 {after: 3 * time.Minute, equal: 1, ids: 2},
		"without a message-id":       {change: func(d *wire.Delivery) { d.Message.MessageID = "" }, after: time.Second, equal: 1, ids: 2},
		"reported":                   {change: func(d *wire.Delivery) { d.Message.Exchange = wire.ExchangeFailures }, after: time.Second, equal: 1, ids: 2},
		"with headers twice":         {change: func(d *wire.Delivery) { d.DuplicateHeader = "twice" }, after: time.Second, equal: 1, ids: 2},
	} {
		inTime(t, name, func(t *testing.T) {
			ctx, s := context.Background(), sharedStore{Store: memstore.New()}
			f, other := connected(t, s), connected(t, s)
			first := identified("x")
			if c.change != nil {
				c.change(&first)
			}
			must(t, f.Handle(ctx, []wire.Delivery{first}))
			for i := range c.others {
				must(t, f.Handle(ctx, []wire.Delivery{identified(fmt.Sprint("other ", i))}))
			}
			if c.moves {
				f = other
			}
			for range c.equal {
				time.Sleep(c.after)
				must(t, f.Handle(ctx, []wire.Delivery{again(first, "x")}))
			}
			checkIDs(t, s, "x", c.equal+1, c.ids)
		})
	}
}

// checkIDs checks how many records and ids a body has, and that those of one id have one first failure.
func checkIDs(t *testing.T, s store.Store, body string, records, ids int) {
	t.Helper()
	n, firsts := 0, map[string]time.Time{}
	for _, r := range newest(t, s, 0) {
		if string(r.Message.Body) != body {
			continue
		}
		n++
		id := r.ID.String()
		if first, known := firsts[id]; known && !first.Equal(r.FirstFailed) {
			t.Errorf("%s failed first at %s and at %s", id, first, r.FirstFailed)
		}
		firsts[id] = r.FirstFailed
	}
	if n != records || len(firsts) != ids {
		t.Errorf("%d records with %d ids, want %d with %d", n, len(firsts), records, ids)
	}
}
