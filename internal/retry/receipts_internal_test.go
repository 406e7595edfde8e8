package retry

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// Two dead letters that differ in anything but what RabbitMQ changes between two deliveries
// of one have different fingerprints.
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
	if same != of(func(*wire.Message) {}) {
		t.Error("what RabbitMQ counts changes the fingerprint")
	}
	if later := of(func(m *wire.Message) { death(m, 0)["time"] = now.Add(time.Second) }); contentOf(later) != contentOf(same) || !timeOf(later).Equal(now.Add(time.Second)) {
		t.Error("the time of the newest death is not beside the content")
	}
}

// What is known for telling copies stays in a bound, however long a connection lasts,
// however much other replicas store and however many queues there are.
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

// The receipts of a process that has vanished stay known while another writes many: RabbitMQ
// delivers again what it held up to 31 s later.
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

// What was issued stays known while thousands of the same queue come, and while a busy
// queue's come: RabbitMQ publishes again late what it has not had confirmed.
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

// The receipts of other replicas are read again when one may be missing: a message that was
// delivered before has no receipt, or others have used it.
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
		if got := r.areMissing(c.batch); got != c.want {
			t.Errorf("%s: missing: %v", name, got)
		}
	}
}

// Of the ids that were issued over a connection the newest are remembered, at least as many as a
// store keeps receipts of.
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

// Which dead letters RabbitMQ may publish again after an outage, and which may be such copies,
// to the nanosecond.
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

// The outage before the first connection began about when the newest message failed that has a
// receipt, unless that is longer ago than a copy is likely.
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
	if maxUnseenOutage != 10*time.Minute {
		t.Errorf("an outage may be unseen for %s", maxUnseenOutage)
	}
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

// An outage that was seen is not one that is guessed from receipts, neither at the first
// connection after it nor when another replica's are read later.
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
