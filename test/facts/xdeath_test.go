package facts_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestXDeathCountAfterRepublish(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", nil)
		work, dead := v.Consume("work"), v.Consume("dead")
		v.Publish("", "work", amqp.Publishing{Body: []byte("m")})
		work.Reject()
		d := dead.Take("m")
		if n := deaths(t, d)[0]["count"]; n != int64(1) {
			t.Errorf("first death: count %v, want 1", n)
		}
		if _, ok := d.Headers["x-last-death-queue"]; ok != since(v, 3, 13) {
			t.Errorf("x-last-death-queue is there: %t", ok)
		}

		v.Publish("", "work", amqp.Publishing{Headers: d.Headers, Body: []byte("with x-death")})
		work.Reject()
		want := int64(2)
		if since(v, 4, 0) {
			want = 1
		}
		if n := deaths(t, dead.Take("with x-death"))[0]["count"]; n != want {
			t.Errorf("republished with its x-death: count %v, want %d", n, want)
		}

		v.Publish("", "work", amqp.Publishing{Body: []byte("without")})
		work.Reject()
		if n := deaths(t, dead.Take("without"))[0]["count"]; n != int64(1) {
			t.Errorf("republished without x-death: count %v, want 1", n)
		}
	})
}

func TestForgedXDeathDoesNotReachTheHeadEntryButForTheCountOn3(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", nil)
		work, dead := v.Consume("work"), v.Consume("dead")
		forged := func(queue string) amqp.Table {
			return amqp.Table{
				"x-death": []any{amqp.Table{"queue": queue, "reason": "rejected", "exchange": "", "count": int64(41),
					"routing-keys": []any{queue}, "time": time.Unix(1_700_000_000, 0)}},
				"x-first-death-queue": queue, "x-first-death-reason": "rejected", "x-first-death-exchange": "",
			}
		}
		v.Publish("", "work", amqp.Publishing{Headers: forged("secret"), Body: []byte("other")})
		work.Reject()
		d := dead.Take("other")
		entries := deaths(t, d)
		if entries[0]["queue"] != "work" || entries[0]["count"] != int64(1) {
			t.Errorf("the head entry is %v, want the broker's own", entries[0])
		}
		wantEntries, wantFirst := 2, "secret"
		if since(v, 4, 0) {
			wantEntries, wantFirst = 1, "work"
		}
		if len(entries) != wantEntries || d.Headers["x-first-death-queue"] != wantFirst {
			t.Errorf("%d entries, first death in %v; want %d and %s", len(entries), d.Headers["x-first-death-queue"], wantEntries, wantFirst)
		}

		v.Publish("", "work", amqp.Publishing{Headers: forged("work"), Body: []byte("same")})
		work.Reject()
		wantCount := int64(42)
		if since(v, 4, 0) {
			wantCount = 1
		}
		if head := deaths(t, dead.Take("same"))[0]; head["count"] != wantCount {
			t.Errorf("a forged count became %v, want %d", head["count"], wantCount)
		}
	})
}
