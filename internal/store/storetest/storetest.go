package storetest

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
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
	if err := s.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// Waiting makes a record that is due after the epoch.
func Waiting(queue string, after time.Duration, body string) *store.Record {
	return &store.Record{ID: uuid.Must(uuid.NewV7()), Queue: queue, State: store.Waiting, Due: epoch.Add(after),
		Failures: 1, Reason: "rejected", FailedAt: epoch, FirstFailed: epoch, Message: wire.Message{Body: []byte(body)}}
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
		ID: uuid.Must(uuid.NewV7()), Queue: "orders", State: store.Waiting, Due: epoch, Failures: 3, Reason: "rejected",
		Error: "no stock", Policy: "p", FirstFailed: epoch.Add(-hour), FailedAt: epoch.Add(-second),
		Notes: []string{"odd", ""}, Proven: true, Forward: &store.Destination{Exchange: "x", RoutingKey: "k"},
		MadeFrom: uuid.Must(uuid.NewV7()), MadeInto: uuid.Must(uuid.NewV7()), Fingerprint: [16]byte{1, 2},
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
	a.Failures, a.Forward = 9, &store.Destination{Exchange: "x"}
	add(t, s, a, b, other, Waiting("q", hour, "waits"))
	n, err := Replay(ctx, s, "q", epoch)
	if n != 2 || err != nil {
		t.Fatalf("replayed %d, %v", n, err)
	}
	c := claim(t, s, "q", 0, 10)
	want(t, "replayed", bodies(c), "a b")
	if r := c[0].Record; r.Failures != 0 || r.Forward != nil || r.ParkedFor != "" || r.State != store.Waiting {
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
