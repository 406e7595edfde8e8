package retry

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

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
			if err := s.Add(t.Context(), []*store.Record{r}); err != nil {
				t.Fatal(err)
			}
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
