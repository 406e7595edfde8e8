package retry

import (
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

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
	withID.Message.Headers = amqp.Table{wire.HeaderID: uuid.NewString()}
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
