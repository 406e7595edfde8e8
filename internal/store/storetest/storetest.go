package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// Engine is one store under test.
type Engine struct {
	Name string
	// Open makes an empty store; it is closed by the suite.
	Open func(t *testing.T) store.Store
	// Reopen closes s as a crash would and opens what it kept; nil for an engine
	// that keeps nothing.
	Reopen func(t *testing.T, s store.Store) store.Store
	// Damage changes the bytes of a kept record; nil for an engine that keeps none.
	Damage func(s store.Store, key store.Key, damage func(record []byte) []byte) error
	// Shared: several processes use one at once, see store.Shared.
	Shared bool
	// Replicas makes n stores on the same new data, each with connections of its own
	// as n processes would have, and claims with leases of this length; the suite
	// closes them. For Shared engines; it may be called at once.
	Replicas func(t *testing.T, n int, lease time.Duration) []Replica
}

const micro, second, minute, hour = time.Microsecond, time.Second, time.Minute, time.Hour

var ctx = context.Background()

var epoch = time.UnixMicro(1_800_000_000_123_456)

// testCase is one sentence or more of the contract.
type testCase struct {
	name string
	test func(*testing.T, *subject)
}

// subject is an empty store under test at first, and the one that reopen made of it.
type subject struct {
	store.Store
	engine Engine
}

// reopen is a crash, of an engine that keeps anything.
func (s *subject) reopen(t *testing.T) {
	if s.engine.Reopen != nil {
		s.Store = s.engine.Reopen(t, s.Store)
	}
}

// ended is whether what was claimed comes back, as after the end of a process.
func (s *subject) ended(t *testing.T) bool {
	s.reopen(t)
	return s.engine.Reopen != nil
}

// contract is all that holds of every engine.
var contract = []testCase{
	{"a record comes back as it was", asItWas},
	{"claims come in due order, within their bounds", dueOrder},
	{"what works at once accounts for every record", func(t *testing.T, s *subject) { workAtOnce(t, s, s, s) }},
	{"finished is gone or parked, released is waiting", finished},
	{"what is not due is not claimed, and Next returns when it is", notYet},
	{"counts are exact", counts},
	{"replay makes parked messages waiting again", replay},
	{"equal ids are kept apart", equalIDs},
	{"receipts are the newest", receipts},
	{"a receipt keeps the first failure", firstFailure},
	{"claims of the dead come back", crash},
	{"a closed store returns ErrClosed", closed},
	{"a lane's claims are its own, in due order", lanesApart},
	{"the names of queues and lanes may hold any bytes", anyLane},
	{"a change moves a record to the lane it belongs to", changeLanes},
	{"what waits for forward targets is found and counted with its queue", lanesOfAQueue},
	{"a scan visits a range in the order of Due", scanOrder},
	{"a scan goes on behind any record", scanAfter},
	{"a scan ends when visit returns false or an error, or ctx ends", scanEnds},
	{"a scan sees one moment, and visit may call the store", scanMoment},
	{"a scan visits once what is kept all the while", scanOnce},
	{"a scan leaves out what was added after NewestNumber", scanUpto},
	{"NewestNumber counts in what is being added, or nothing of it", uptoWhileAdding},
	{"by id and by key", byIDAndKey},
	{"what is due is counted between edges, claimed or not", countDue},
	{"a change moves from any state to any other", changeStates},
	{"a waiting record is claimed at its new time, not before", changeDue},
	{"what is claimed, gone or named twice is nil to edit", changeNil},
	{"a change does what edit returns, adds, and writes entries, in one step", changeOneStep},
	{"nothing is changed on an error", changeNothing},
	{"a change takes no more than its bounds", changeBounds},
	{"what is being changed is not claimed", func(t *testing.T, s *subject) { claimOrChange(t, s, s) }},
	{"the side table", sideTable},
	{"what people did to a message is known at its next failure", carriedOver},
	{"what is discarded is forgotten when its time is over", forget},
	{"groups count what is kept with the same error", groupCounts},
	{"groups know when their failures were", groupTimes},
	{"a group of which nothing is kept is listed for a day", groupForADay},
	{"a group has its note", groupNote},
	{"groups are bounded, and what is beyond is counted too", groupBound},
	{"groups are the same after a crash", groupCrash},
	{"what ended is known by its id, oldest first", pastByID},
	{"what ended is visited from the newest on, also after crashes", pastNewest},
	{"what ends is kept or past, at every moment", pastWithoutGap},
	{"the ledger counts what became of all that arrived", ledger},
	{"the ledger balances at every moment", ledgerAlways},
	{"queues with nothing left are forgotten", forgotten},
	{"a record that cannot be read stops no other, and is reported", damaged},
}

// Run runs the suite over an engine, whose functions are called by several tests at once.
func Run(t *testing.T, e Engine) {
	t.Logf("store suite on engine %s", e.Name)
	for _, c := range contract {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // most of their time they wait for a disk
			c.test(t, open(t, e))
		})
	}
	for _, c := range leases {
		if e.Shared {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.test(t, replicas(t, e, c.stores, c.lease))
			})
		}
	}
}

// Long reports whether the run takes the time for all checks, on all servers.
func Long() bool { return os.Getenv("REDRIVE_TEST_LONG") == "1" }

func open(t *testing.T, e Engine) *subject {
	s := e.Open(t)
	t.Cleanup(func() { closes(t, s) })
	return &subject{s, e}
}

func closes(t *testing.T, s store.Store) {
	expect.Err(t, s.Close(), nil, "closing")
}

// Waiting makes a record that is due after the epoch.
func Waiting(queue string, after time.Duration, body string) *store.Record {
	return &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: store.Waiting, Due: epoch.Add(after),
		Failures: 1, Reason: "rejected", FailedAt: epoch, FirstFailed: epoch, Message: wire.Message{Body: []byte(body)}}
}

// Batch makes n messages of 1 KiB.
func Batch(n int, after func() time.Duration) []*store.Record {
	body := strings.Repeat("x", 1024)
	var batch []*store.Record
	for range n {
		batch = append(batch, Waiting("orders", after(), body))
	}
	return batch
}

func parked(queue, body string) *store.Record {
	r := Waiting(queue, 0, body)
	r.State, r.ParkedFor = store.Parked, "it failed"
	return r
}

func discarded(queue string, until time.Duration, body string) *store.Record {
	r := Waiting(queue, until, body)
	r.State = store.Discarded
	return r
}

func add(t *testing.T, s store.Store, records ...*store.Record) {
	t.Helper()
	must(t, s.Add(ctx, records))
}

func claim(t *testing.T, s store.Store, queue string, after time.Duration, n int) []store.Claim {
	t.Helper()
	return claimLane(t, s, store.Lane{Queue: queue}, after, n)
}

var must = expect.NoError

// Keep is a change that keeps what with makes of a record; Remove deletes it.
func Keep(with func(*store.Record)) func(store.Key, *store.Record) store.Edit {
	return func(_ store.Key, r *store.Record) store.Edit { with(r); return store.Edit{Keep: true} }
}

func Remove(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }

// finishes finishes claims, and expects so many of them to be one's own.
func finishes(t *testing.T, s store.Store, n int, outcomes ...store.Outcome) {
	t.Helper()
	if got, err := s.Finish(ctx, outcomes); got != n || err != nil {
		t.Fatalf("finished %d of %d, %v; want %d", got, len(outcomes), err, n)
	}
}

// done is the outcome of a claim whose message was retried, park that of one that is parked.
func done(c store.Claim) store.Outcome { return store.Outcome{Claim: c, At: epoch} }

func park(c store.Claim, why string) store.Outcome {
	return store.Outcome{Claim: c, Park: why, At: epoch}
}

func bodies(claims []store.Claim) string {
	var b []string
	for _, c := range claims {
		b = append(b, string(c.Record.Message.Body))
	}
	return strings.Join(b, " ")
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// same fails a test where got is not want, and says how they differ.
func same[V any](t expect.T, what string, got, want V) {
	t.Helper()
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func countsOf(t *testing.T, s store.Store) []store.QueueCount {
	t.Helper()
	counts, err := s.Counts(ctx)
	must(t, err)
	return counts
}

// Everything is a record with each field and each header type AMQP knows.
func Everything() *store.Record {
	return &store.Record{
		ID: uuid.Must(uuid.NewV7()), Queue: "orders", State: store.Waiting, Due: epoch, Failures: 3, Replays: 2, Reason: "rejected",
		Error: "no stock", Policy: "p", Rule: "r", Notify: store.Urgent, FirstFailed: epoch.Add(-hour), FailedAt: epoch.Add(-second),
		Notes: []string{"odd", ""}, Proven: true, Forward: &store.Destination{Exchange: "x", RoutingKey: "k"},
		MadeFrom: uuid.Must(uuid.NewV7()), MadeInto: uuid.Must(uuid.NewV7()), Fingerprint: [16]byte{1, 2},
		Format: "f", Envelope: &wire.Message{Type: "e", DeliveryMode: 2, Headers: amqp.Table{"n": int32(1)}},
		AdoptedFrom: "dlq",
		Message: wire.Message{
			Exchange: "shop", RoutingKey: "order.eu", ContentType: "a/b", ContentEncoding: "gzip",
			DeliveryMode: 2, Priority: 9, CorrelationID: "c", ReplyTo: "r", Expiration: "1000", MessageID: "m",
			Timestamp: time.Unix(1_700_000_000, 0),
			Type:      "t", UserID: "u", AppID: "a", Body: []byte("\x00\xff body"),
			Headers: amqp.Table{
				"nil": nil, "bool": true, "no": false, "int8": int8(-1), "uint8": uint8(255),
				"int16": int16(-300), "uint16": uint16(65535),
				"int32": int32(math.MinInt32), "uint32": uint32(math.MaxUint32), "int64": int64(math.MinInt64),
				"float32": float32(1.5), "float64": math.Inf(-1), "decimal": amqp.Decimal{Scale: 2, Value: -1234},
				"string": "héllo\x00", "empty": "", "bytes": []byte{0, 255},
				"nobytes": []byte{}, "time": time.Unix(-5, 0),
				"table": amqp.Table{"deep": amqp.Table{"list": []any{int32(1), "two", nil, []any{}, amqp.Table{}}}},
				"list":  []any{},
			},
		},
	}
}

func asItWas(t *testing.T, s *subject) {
	r := Everything()
	add(t, s, r)
	got := claimLane(t, s, r.Lane(), 0, 1)
	if len(got) != 1 {
		t.Fatal("it did not come back")
	}
	same(t, "kept", got[0].Record, r)
}

func counts(t *testing.T, s *subject) {
	add(t, s, Waiting("q", second, "a"), Waiting("q", 0, "b"), parked("q", "c"), parked("p", "d"),
		discarded("o", 0, "e"))
	check := func(when, wanted string) {
		t.Helper()
		var out []string
		for _, c := range countsOf(t, s) {
			line := fmt.Sprintf("%s %d %d %d", c.Queue, c.Waiting, c.Parked, c.Discarded)
			if c.Waiting > 0 {
				line += fmt.Sprintf(", next %s failed %s", c.NextDue.Sub(epoch), c.NextFailed.Sub(epoch))
			}
			out = append(out, line)
		}
		slices.Sort(out)
		want(t, when, strings.Join(out, "; "), wanted)
	}
	check("at first", "o 0 0 1; p 0 1 0; q 2 1 0, next 0s failed 0s")
	c := claim(t, s, "q", 0, 1)
	check("with a claim", "o 0 0 1; p 0 1 0; q 2 1 0, next 0s failed 0s")
	finishes(t, s, 1, park(c[0], "x"))
	check("after parking", "o 0 0 1; p 0 1 0; q 1 2 0, next 1s failed 0s")
}

// Replay makes all that is parked of a queue waiting, and returns how many those were.
func Replay(ctx context.Context, s store.Store, queue string, due time.Time) (n int, err error) {
	var keys []store.Key
	err = s.Scan(ctx, store.Range{State: store.Parked, Queues: []string{queue}}, func(l store.Listed) (bool, error) {
		keys = append(keys, l.Key)
		return true, nil
	})
	for taken := 0; len(keys) > 0 && err == nil; keys = keys[taken:] {
		taken, err = s.Change(ctx, keys, func(_ store.Key, r *store.Record) store.Edit {
			if r == nil || r.State != store.Parked {
				return store.Edit{}
			}
			n++
			r.Replay(due)
			return store.Edit{Keep: true}
		}, nil)
	}
	return n, err
}

func replay(t *testing.T, s *subject) {
	a, b, other := parked("q", "a"), parked("q", "b"), parked("other", "x")
	a.Failures, a.Replays, a.Forward = 9, 4, &store.Destination{Exchange: "x"}
	add(t, s, a, b, other, Waiting("q", hour, "waits"))
	n, err := Replay(ctx, s, "q", epoch)
	if n != 2 || err != nil {
		t.Fatalf("replayed %d, %v", n, err)
	}
	c := claim(t, s, "q", 0, 10)
	want(t, "replayed", bodies(c), "a b")
	if r := c[0].Record; r.Failures != 0 || r.Replays != 5 || c[1].Record.Replays != 1 || r.Forward != nil || r.ParkedFor != "" || r.State != store.Waiting {
		t.Errorf("replayed as %+v", r)
	}
	for i := range 1100 {
		add(t, s, parked("q", fmt.Sprint(i)))
	}
	if n, err = Replay(ctx, s, "q", epoch.Add(second)); n != 1100 || err != nil {
		t.Errorf("replayed %d, %v; want 1100", n, err)
	}
	same(t, "due", len(claim(t, s, "q", second, 2000)), 1100)
	if still := Listed(t, s, store.Range{State: store.Parked}); len(still) != 1 || still[0].Record.ID != other.ID {
		t.Errorf("still parked: %+v", still)
	}
}

func equalIDs(t *testing.T, s *subject) {
	a, b := Waiting("q", 0, "a"), Waiting("q", 0, "b")
	b.ID = a.ID
	add(t, s, a, b)
	add(t, s, a)
	c := claim(t, s, "q", 0, 10)
	want(t, "kept", bodies(c), "a b a")
	finishes(t, s, 1, done(c[0]))
	if found, err := s.Find(ctx, a.ID); err != nil || len(found) != 2 {
		t.Errorf("after one of three is gone, %d are found, %v", len(found), err)
	}
}

// A copy of a dead letter has the first failure of the first, to the microsecond.
func firstFailure(t *testing.T, s *subject) {
	added, remembered := Everything(), Everything()
	add(t, s, added)
	must(t, s.Remember(ctx, []store.Receipt{remembered.Receipt()}))
	s.reopen(t)
	got, err := s.Receipts(ctx)
	if err != nil || len(got) != 2 || !got[0].FirstFailed.Equal(added.FirstFailed) || got[1] != remembered.Receipt() {
		t.Errorf("receipts %+v, %v", got, err)
	}
}

func closed(t *testing.T, s *subject) {
	must(t, s.Close())
	expect.Equal(t, s.Add(ctx, []*store.Record{Waiting("q", 0, "")}), store.ErrClosed, "Add after Close")
	closes(t, s) // twice
}

// Any is some record that a store may have to keep: whatever a publisher may send,
// and more.
func Any(t *rapid.T) *store.Record {
	r := Everything()
	m := &r.Message
	m.Headers = table(3).Draw(t, "headers")
	m.Body = rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "body")
	m.RoutingKey, r.Queue, r.Error = text().Draw(t, "key"), text().Draw(t, "queue"), text().Draw(t, "error")
	m.Timestamp = time.Unix(rapid.Int64Range(1, 1<<40).Draw(t, "timestamp"), 0)
	r.Due = time.UnixMicro(rapid.Int64Range(-1<<50, 1<<55).Draw(t, "due"))
	r.Notes = rapid.SliceOfN(text(), 1, 3).Draw(t, "notes")
	r.State = rapid.SampledFrom([]store.State{store.Waiting, store.Parked, store.Discarded}).Draw(t, "state")
	if rapid.Bool().Draw(t, "bare") {
		r.Forward, m.Timestamp, m.Headers, r.Notes = nil, time.Time{}, nil, nil
		r.Envelope, r.Replays = nil, 0
	}
	return r
}

// text is mostly UTF-8, and not always.
func text() *rapid.Generator[string] {
	bytes := rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })
	return rapid.OneOf(rapid.String(), rapid.String(), bytes)
}

// value is any header value that amqp091-go decodes, nested as deep as depth.
func value(depth int) *rapid.Generator[any] {
	seconds := rapid.Custom(func(t *rapid.T) time.Time {
		return time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "s"), 0)
	})
	decimal := rapid.Custom(func(t *rapid.T) amqp.Decimal {
		return amqp.Decimal{Scale: rapid.Uint8().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
	})
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int8().AsAny(), rapid.Uint8().AsAny(), rapid.Int16().AsAny(),
		rapid.Uint16().AsAny(), rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(),
		rapid.Float32().AsAny(), rapid.Float64().AsAny(), text().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(),
		seconds.AsAny(), decimal.AsAny(),
	}
	if depth > 0 {
		kinds = append(kinds, table(depth-1).AsAny(), rapid.SliceOfN(value(depth-1), 0, 4).AsAny())
	}
	return rapid.OneOf(kinds...)
}

func table(depth int) *rapid.Generator[amqp.Table] {
	return rapid.Custom(func(t *rapid.T) amqp.Table {
		return rapid.MapOfN(text(), value(depth), 0, 5).Draw(t, "table")
	})
}

// Replica is one of several stores on the same data.
type Replica struct {
	store.Store
	// Stall makes it stand still, as a process that gets no time or no network:
	// nothing that it sends arrives, its own renewals neither, until resume is called.
	// What it had sent may arrive then. resume may be called twice.
	Stall func() (resume func())
	// Expire ends all leases on the data, as time does. Ends is when the first of them ends.
	Expire func()
	Ends   func() time.Time
}

// replicas are n stores on the same new data; they are closed with the test.
func replicas(t *testing.T, e Engine, n int, lease time.Duration) []Replica {
	t.Helper()
	all := e.Replicas(t, n, lease)
	t.Cleanup(func() {
		for _, r := range all {
			closes(t, r)
		}
	})
	return all
}

// notes say one thing of each of several: who has it, or how it ended, which is once.
type notes struct {
	t  *testing.T
	mu sync.Mutex
	of map[string]string
}

func (n *notes) note(of, what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if was, is := n.of[of]; is {
		n.t.Errorf("%s was %s, and then %s", of, was, what)
	}
	n.of[of] = what
}

func (n *notes) forget(of string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.of, of)
}

func (n *notes) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.of)
}

// workAtOnce adds by each of three stores while each claims, finishes and releases: no two claim one record.
func workAtOnce(t *testing.T, all ...store.Store) {
	const each = 200
	n := each * len(all)
	w := work{notes{t: t, of: map[string]string{}}, notes{t: t, of: map[string]string{}}}
	var wg sync.WaitGroup
	for who, s := range all {
		wg.Go(func() { w.add(s, who, each) })
		wg.Go(func() {
			deadline := time.Now().Add(3 * minute)
			for round := 0; w.ended.count() < n && !t.Failed(); round++ {
				if time.Now().After(deadline) {
					t.Errorf("after three minutes store %d still misses some", who)
				}
				w.round(s, who, round)
			}
		})
	}
	wg.Wait()
	parks := 0
	for _, how := range w.ended.of {
		if how == "parked" {
			parks++
		}
	}
	same(t, "finished", w.ended.count(), n)
	var in, retried int64
	for _, sums := range Balances(t, all[1]) {
		in += sums[store.In]
		retried += sums[store.Retried]
	}
	same(t, "that arrived, by the ledger", in, int64(n))
	same(t, "that were retried, by the ledger", retried, int64(n-parks))
	want(t, "kept", total(t, all[2]), fmt.Sprintf("0 waiting, %d parked, 0 discarded", parks))
}

// work is what stores do at once: who has which record now, by its body, and how each ended.
type work struct{ held, ended notes }

// add adds n records to two queues.
func (w *work) add(s store.Store, who, n int) {
	const batch = 20
	for i := 0; i < n; i += batch {
		var records []*store.Record
		for j := range batch {
			records = append(records, Waiting(fmt.Sprint("q", j%2), time.Duration(j), fmt.Sprintf("%d-%d", who, i+j)))
		}
		expect.Err(w.ended.t, s.Add(ctx, records), nil, "adding")
	}
}

// round claims some records. Of each four it finishes two, parks one and releases one.
func (w *work) round(s store.Store, who, round int) {
	lane := store.Lane{Queue: fmt.Sprint("q", round%2)}
	var claims []store.Claim
	var err error
	for range 2 { // what is claimed is not claimed again
		more, failed := s.Claim(ctx, lane, epoch.Add(hour), 1+round%9, math.MaxInt)
		for _, c := range more {
			w.held.note(string(c.Record.Message.Body), fmt.Sprint("with store ", who))
		}
		claims, err = append(claims, more...), errors.Join(err, failed)
	}
	var out []store.Outcome
	for i, c := range claims {
		switch {
		case i%4 == 3:
			w.held.forget(string(c.Record.Message.Body)) // before another may have it
			err = errors.Join(err, s.Release(ctx, claims[i:i+1]))
		case i%4 == 2:
			out = append(out, park(c, "why"))
			w.ended.note(string(c.Key), "parked")
		default:
			out = append(out, done(c))
			w.ended.note(string(c.Key), "finished")
		}
	}
	got, failed := s.Finish(ctx, out)
	if err = errors.Join(err, failed); err != nil || got != len(out) {
		w.ended.t.Errorf("finished %d of %d, %v", got, len(out), err)
	}
}

// changedElsewhere is why a service sees what others add, and what a dead one had:
// it asks for what is due when Changed has a value.
func changedElsewhere(t *testing.T, all []Replica) {
	waits, dies := all[1], all[0]
	// As the scheduler: it has asked, and asks again at a change.
	changed := func(what string) {
		t.Helper()
		for deadline := time.After(minute); ; {
			select {
			case <-waits.Changed():
			case <-deadline:
				t.Fatalf("for a minute Changed had no value for %s; next is %q", what, next(t, waits))
			}
			if next(t, waits) == "q 1s" {
				return
			}
		}
	}
	nothingNext := func() bool {
		for len(waits.Changed()) > 0 {
			<-waits.Changed()
		}
		return next(t, waits) == ""
	}
	expect.Eventually(t, "nothing is next", nothingNext)
	add(t, dies, Waiting("q", second, "a"))
	changed("what another added")
	want(t, "claimed", bodies(claim(t, dies, "q", hour, 1)), "a")
	expect.Eventually(t, "what another claimed is not next", nothingNext)
	resume := dies.Stall()
	defer resume()
	waits.Expire()
	changed("what came back")
	resume()
	expect.Eventually(t, "the stalled store works again", func() bool {
		_, err := dies.Counts(t.Context())
		return err == nil
	})
}

// longLease ends when a test says so.
const longLease = hour

// leases are for engines that several processes use at once, here so many.
var leases = []struct {
	name   string
	stores int
	lease  time.Duration
	test   func(*testing.T, []Replica)
}{
	{"stores that work at once account for every record", 3, longLease,
		func(t *testing.T, all []Replica) { workAtOnce(t, all[0], all[1], all[2]) }},
	{"what one store changes another does not claim", 2, longLease, changeElsewhere},
	{"a lease is renewed for as long as its owner lives", 2, second, leaseRenewed},
	{"what a store claimed that stands still comes back, and is its own no more", 2, longLease, leaseLost},
	{"what a store claimed that ended comes back", 2, longLease, ownerEnded},
	{"Changed has a value after others add, and after the claims of a process that died end", 2, longLease,
		changedElsewhere},
}

func leaseRenewed(t *testing.T, all []Replica) {
	add(t, all[0], Waiting("q", 0, "a"), Waiting("q", 1, "b"), Waiting("q", 2, "c"))
	claims := claim(t, all[0], "q", hour, 10)
	for range 2 {
		was := all[1].Ends()
		expect.Eventually(t, "its leases are renewed", func() bool { return all[1].Ends().After(was) })
	}
	finishes(t, all[0], 3, Ended(claims, epoch)...)
}

func leaseLost(t *testing.T, all []Replica) {
	stalled, other := all[0], all[1]
	add(t, other, Waiting("q", 0, "retried"), Waiting("q", 1, "parked"), Waiting("q", 2, "released"),
		Waiting("q", 3, "held"))
	old := claim(t, stalled, "q", hour, 10)
	want(t, "claimed", bodies(old), "retried parked released held")
	resume := stalled.Stall()
	defer resume() // before it is closed
	want(t, "next before the leases end", next(t, other), "")
	want(t, "claimed before the leases end", bodies(claim(t, other, "q", hour, 10)), "")
	other.Expire()
	want(t, "next when the leases have ended", next(t, other), "q 0s")
	now := map[string]store.Claim{}
	for i, c := range claim(t, other, "q", hour, 10) {
		now[string(c.Record.Message.Body)] = c
		if slices.ContainsFunc(old, func(o store.Claim) bool { return o.Token == c.Token }) {
			t.Errorf("claim %d has a token that another claim had", i)
		}
	}
	if len(now) != len(old) {
		t.Fatalf("claimed again are %v", now)
	}
	finishes(t, other, 2, done(now["retried"]), park(now["parked"], "by the other"))
	must(t, other.Release(ctx, []store.Claim{now["released"]}))

	resume()
	// Its connections may be gone; what it has received before is not.
	var late int
	expect.Eventually(t, "the stalled store works again", func() bool {
		n, err := stalled.Finish(ctx, append(Ended(old[:3], epoch), park(old[3], "too late")))
		late += n
		return err == nil
	})
	same(t, "finished claims whose lease had ended", late, 0)
	must(t, stalled.Release(ctx, old)) // which it holds no more
	want(t, "kept", total(t, other), "2 waiting, 1 parked, 0 discarded")
	kept := Listed(t, other, store.Range{State: store.Parked})
	if len(kept) != 1 || kept[0].Record.ParkedFor != "by the other" {
		t.Errorf("parked: %+v", kept)
	}
	// One is waiting and not claimed; the other is still who has it's.
	again := claim(t, stalled, "q", hour, 10)
	want(t, "claimable", bodies(again), "released")
	finishes(t, stalled, 1, park(old[2], "by an old claim"), done(again[0]))
	finishes(t, other, 1, done(now["held"]))
	if sums := Balances(t, other)["q"]; sums[store.In] != 4 || sums[store.Retried] != 3 || sums[store.Parked] != 1 {
		t.Errorf("the ledger has %v", sums)
	}
}

func ownerEnded(t *testing.T, all []Replica) {
	add(t, all[1], Waiting("q", 0, "a"), Waiting("q", 1, "b"))
	want(t, "claimed", bodies(claim(t, all[0], "q", hour, 10)), "a b")
	must(t, all[0].Close())
	want(t, "they come back", bodies(claim(t, all[1], "q", hour, 10)), "a b")
}

// finish claims up to three records that are due, finishes so many of them, and releases
// the others.
func (n *notes) finish(s store.Store, upTo time.Time, most int) {
	claims, err := s.Claim(ctx, store.Lane{Queue: "q"}, upTo, 3, math.MaxInt)
	expect.Err(n.t, err, nil, "claiming")
	var out []store.Outcome
	for i, c := range claims {
		if c.Record.Due.After(upTo) {
			n.t.Errorf("claimed %s early", c.Key)
		}
		if i == most {
			expect.Err(n.t, s.Release(ctx, claims[i:]), nil, "releasing")
			break
		}
		n.note(string(c.Key), "finished")
		out = append(out, done(c))
	}
	if finished, err := s.Finish(ctx, out); err != nil || finished != len(out) {
		n.t.Errorf("finished %d of %d, %v", finished, len(out), err)
	}
}

// claimOrChange claims by one store while the other puts off, hastens and deletes: no message is
// claimed by one and changed by the other, none before it is due, and none is lost.
func claimOrChange(t *testing.T, s, other store.Store) {
	const n = 300
	for i := range n {
		add(t, s, Waiting("q", time.Duration(i%7)*second, fmt.Sprint(i)))
	}
	keys := Keys(t, s, store.Range{})
	ended := notes{t: t, of: map[string]string{}}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 60 {
				ended.finish(s, epoch.Add(3*second), 2)
			}
		})
	}
	for w := range 2 {
		wg.Go(func() {
			for i := 0; i+10 <= len(keys); i += 5 {
				var deleted []store.Key
				_, err := other.Change(ctx, keys[i:i+10], func(k store.Key, r *store.Record) store.Edit {
					switch {
					case r == nil:
						return store.Edit{}
					case r.Due.Second()%3 == w:
						deleted = append(deleted, k)
						return store.Edit{Delete: true}
					}
					r.Due = r.Due.Add(time.Duration(1-2*w) * 2 * second)
					return store.Edit{Keep: true}
				}, nil)
				expect.Err(t, err, nil, "changing")
				for _, k := range deleted {
					ended.note(string(k), "deleted")
				}
			}
		})
	}
	wg.Wait()
	rest := claim(t, s, "q", hour, n)
	for _, c := range rest {
		ended.note(string(c.Key), "left")
	}
	if ended.count() != n || len(rest) == n {
		t.Errorf("%d of %d are accounted for, %d were left", ended.count(), n, len(rest))
	}
	Balances(t, other)
}

func changeElsewhere(t *testing.T, all []Replica) {
	add(t, all[0], Waiting("other", 0, "mine"))
	mine := claim(t, all[0], "other", hour, 1)
	change(t, all[1], func(k store.Key, r *store.Record) store.Edit {
		if r != nil {
			t.Errorf("%s, which another store claimed, is given to edit", k)
		}
		return store.Edit{Keep: true}
	}, mine[0].Key)
	finish(t, all[0], mine)
	claimOrChange(t, all[0], all[1])
}

// Keys are the keys of what is in a range.
func Keys(t expect.T, s store.Scanner, r store.Range) (keys []store.Key) {
	t.Helper()
	for _, l := range Listed(t, s, r) {
		keys = append(keys, l.Key)
	}
	return keys
}
