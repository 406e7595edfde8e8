package facts_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

func TestXDeathCountAfterRepublish(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", nil)
		work, dead := v.Consume("work"), v.Consume("dead")
		work.Fail("m")
		d := dead.Take("m")
		expect.Equal(t, deaths(t, d)[0]["count"], any(int64(1)), "first death: count")
		if _, ok := d.Headers["x-last-death-queue"]; ok != since(v, 3, 13) {
			t.Errorf("x-last-death-queue is there: %t", ok)
		}

		v.Publish("", "work", amqp.Publishing{Headers: d.Headers, Body: []byte("with x-death")})
		work.Reject()
		want := int64(2)
		if since(v, 4, 0) {
			want = 1
		}
		expect.Equal(t, deaths(t, dead.Take("with x-death"))[0]["count"], any(want),
			"republished with its x-death: count")

		work.Fail("without")
		expect.Equal(t, deaths(t, dead.Take("without"))[0]["count"], any(int64(1)),
			"republished without x-death: count")
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
			t.Errorf("%d entries, first death in %v; want %d and %s", len(entries), d.Headers["x-first-death-queue"],
				wantEntries, wantFirst)
		}

		v.Publish("", "work", amqp.Publishing{Headers: forged("work"), Body: []byte("same")})
		work.Reject()
		wantCount := int64(42)
		if since(v, 4, 0) {
			wantCount = 1
		}
		expect.Equal(t, deaths(t, dead.Take("same"))[0]["count"], any(wantCount), "a forged count became")
	})
}

// leaves are the ways a message leaves the queue work.
var leaves = map[string]struct {
	args  amqp.Table // of the queue
	p     amqp.Publishing
	leave func(*testing.T, *vhost)
}{
	"expired": {nil, amqp.Publishing{Expiration: "1"}, func(*testing.T, *vhost) {}},
	"maxlen": {amqp.Table{"x-max-length": int32(1)}, amqp.Publishing{}, func(t *testing.T, v *vhost) {
		v.Publish("", "work", amqp.Publishing{Body: []byte("newer")})
		work := v.Consume("work")
		work.Take("newer")
		must(t, work.Channel.Close())
	}},
	"delivery_limit": {amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(0)}, amqp.Publishing{},
		func(t *testing.T, v *vhost) {
			work := v.Consume("work")
			must(t, work.Next().Reject(true))
			must(t, work.Channel.Close())
		}},
	"rejected": {nil, amqp.Publishing{}, func(t *testing.T, v *vhost) {
		work := v.Consume("work")
		work.Reject()
		must(t, work.Channel.Close())
	}},
}

// loop makes the message "looping" go from work to the queue delay, from where
// its TTL retries it to work.
func loop(t *testing.T, v *vhost, reason string, delay amqp.Table) {
	how := leaves[reason]
	work := amqp.Table{"x-dead-letter-exchange": "died"}
	maps.Copy(work, how.args)
	back := amqp.Table{"x-dead-letter-exchange": "back", "x-message-ttl": int32(100)}
	maps.Copy(back, delay)
	v.Queue("work", work)
	v.Queue("delay", back)
	v.Queue("seen", nil)
	v.Exchange("back", "fanout", "work")
	v.Exchange("died", "fanout", "delay", "seen")
	how.p.Body = []byte("looping")
	v.Publish("", "work", how.p)
	how.leave(t, v)
	if got := deaths(t, v.Consume("seen").Take("looping"))[0]["reason"]; got != reason {
		t.Fatalf("it left by %v, want %s", got, reason)
	}
}

// on is what has queues that messages leave for a reason: the model knows no lengths.
func on(reason string) func(*testing.T, func(*testing.T, *vhost)) {
	if reason == "maxlen" {
		return onEachBroker
	}
	return onEach
}

func TestLoopsOfTheBrokerAloneLoseWhatWasNotRejected(t *testing.T) {
	for reason := range leaves {
		t.Run(reason, func(t *testing.T) {
			on(reason)(t, func(t *testing.T, v *vhost) {
				loop(t, v, reason, nil)
				work := v.Consume("work")
				if reason == "rejected" {
					work.Take("looping")
					return
				}
				// Behind it, the same way: when this one is back, it was lost.
				v.Publish("", "delay", amqp.Publishing{Body: []byte("behind")})
				work.Take("behind")
				brokertest.Eventually(t, "nothing is left", func() bool {
					return v.Depth("delay")+v.Depth("work") == 0
				})
			})
		})
	}
}

// atLeastOnce are the arguments of a queue that loses no dead letter.
var atLeastOnce = amqp.Table{"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once",
	"x-overflow": "reject-publish"}

func TestLoopsOfTheBrokerAloneJamUnderAtLeastOnce(t *testing.T) {
	for reason := range leaves {
		if reason == "rejected" {
			continue
		}
		t.Run(reason, func(t *testing.T) {
			on(reason)(t, func(t *testing.T, v *vhost) {
				loop(t, v, reason, atLeastOnce)
				v.Publish("", "delay", amqp.Publishing{Body: []byte("behind")})
				v.Consume("work").Take("behind")
				brokertest.Eventually(t, "one message is kept and none is ready", func() bool {
					return held(t, v, "delay") == 1 && v.Depth("delay") == 0
				})
			})
		})
	}
}

// A consumer that publishes again with the x-death it was delivered with: what a delay queue
// dead-letters to is in it already, where that is a queue with a TTL, too.
// What unadopt puts back is as it came: RabbitMQ changes x-death only when it dead-letters the message again.
func TestAPublishedXDeathStaysAsItIs(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", nil)
		work, dead := v.Consume("work"), v.Consume("dead")
		v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"n": int32(1)}, Body: []byte("m")})
		work.Reject()
		came := dead.Take("m")
		v.Publish("", "dead", amqp.Publishing{Headers: came.Headers, Body: []byte("back")})
		if back := dead.Take("back").Headers; !reflect.DeepEqual(back, came.Headers) {
			t.Errorf("put back with %v, and it came with %v", back, came.Headers)
		}
	})
}

func TestARepublishedXDeathLooksLikeALoopOn3(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		delay := amqp.Table{"x-dead-letter-exchange": "expired", "x-message-ttl": int32(100)}
		maps.Copy(delay, atLeastOnce)
		v.Queue("delay", delay)
		v.Queue("lane", amqp.Table{"x-dead-letter-exchange": "due", "x-message-ttl": int32(0)})
		v.Queue("work", nil)
		v.Exchange("again", "fanout", "delay")
		v.Exchange("expired", "fanout", "lane")
		v.Exchange("due", "fanout", "work")
		work := v.Consume("work")
		v.Publish("again", "", amqp.Publishing{Body: []byte("first")})
		died := work.Take("first").Headers
		v.Publish("again", "", amqp.Publishing{Headers: died, Body: []byte("second")})
		if since(v, 4, 0) {
			work.Take("second")
			return
		}
		v.Publish("again", "", amqp.Publishing{Body: []byte("without x-death")})
		work.Take("without x-death")
		brokertest.Eventually(t, "one message is kept and none is ready", func() bool {
			return held(t, v, "delay") == 1 && v.Depth("delay") == 0
		})
	})
}

func TestAtLeastOnceKeepsMessagesWithoutATarget(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		const inFlight = 32 // of a queue's one dead-letter worker
		for name, unroutable := range map[string]int{"goes on": inFlight - 1, "stands": inFlight} {
			args := amqp.Table{"x-dead-letter-exchange": "died", "x-message-ttl": int32(1)}
			maps.Copy(args, atLeastOnce)
			v.Queue(name, args)
			v.Queue("target of "+name, nil)
			v.Exchange("in "+name, "fanout", name)
			v.Exchange("died", "direct", "target of "+name)
			for range unroutable {
				v.Publish("in "+name, "nowhere", amqp.Publishing{})
			}
			v.Publish("in "+name, "target of "+name, amqp.Publishing{Body: []byte("behind")})
		}
		target := v.Consume("target of stands")
		v.Consume("target of goes on").Take("behind")
		brokertest.Eventually(t, "one queue kept its 31, the other all 33", func() bool {
			return held(t, v, "goes on") == inFlight-1 && held(t, v, "stands") == inFlight+1 && v.Depth("stands") == 0
		})
		select {
		case <-target.In:
			t.Error("32 messages without a target did not stop the others")
		case <-time.After(500 * time.Millisecond):
		}
	})
}

func TestAtMostOnceLosesMessagesWithoutATarget(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for name, args := range map[string]amqp.Table{
			"classic":                     {},
			"quorum":                      {"x-queue-type": "quorum"},
			"at-least-once but drop-head": {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"},
		} {
			all := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "nowhere",
				"x-message-ttl": int32(1)}
			maps.Copy(all, args)
			v.Queue(name, all)
			v.Publish("", name, amqp.Publishing{})
			brokertest.Eventually(t, name+" has lost it", func() bool {
				return v.Depth(name) == 0 && held(t, v, name) == 0
			})
		}
	})
}

// What stands still in a queue is deleted when the queue becomes at-most-once: it does not
// come when its target is there.
func TestAtMostOnceDeletesMessagesOfAnUnavailableTarget(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		ids := []string{"a", "b", "c"}
		strategy := func(name string) {
			v.Policy("kept", "^kept$", 1, map[string]any{"dead-letter-exchange": "died", "dead-letter-strategy": name,
				"overflow": "reject-publish", "message-ttl": 1})
		}
		strategy("at-least-once")
		v.Queue("kept", amqp.Table{"x-queue-type": "quorum"})
		for _, id := range ids {
			v.Publish("", "kept", amqp.Publishing{MessageId: id})
		}
		brokertest.Eventually(t, "all stand still", func() bool {
			return held(t, v, "kept") == len(ids) && v.Depth("kept") == 0
		})
		strategy("at-most-once")
		brokertest.Eventually(t, "none is kept", func() bool { return held(t, v, "kept") == 0 })
		v.Queue("target", nil)
		v.Exchange("died", "fanout", "target")
		strategy("at-least-once")
		brokertest.Eventually(t, "what comes from now on arrives", func() bool {
			v.Publish("", "kept", amqp.Publishing{MessageId: "later"})
			return v.Depth("target") > 0
		})
		expect.Equal(t, v.Consume("target").Next().MessageId, "later", "which was to be deleted, came")
	})
}

func TestMessageTTLExpiresAtTheHeadOnly(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for _, kind := range bothTypes {
			deadLetters(v, kind, "dead of "+kind, amqp.Table{"x-queue-type": kind})
			deadLetters(v, "free "+kind, "dead of free "+kind, amqp.Table{"x-queue-type": kind})
			v.Publish("", kind, amqp.Publishing{Body: []byte("long"), Expiration: "3600000"})
			v.Publish("", kind, amqp.Publishing{Body: []byte("short"), Expiration: "1"})
			v.Publish("", "free "+kind, amqp.Publishing{Body: []byte("control"), Expiration: "100"})
			v.Consume("dead of free " + kind).Take("control")
			expect.Equal(t, v.Depth(kind), 2, "%s: messages are in the queue", kind)
			if d, ok, err := v.Channel().Get(kind, true); err != nil || !ok || string(d.Body) != "long" {
				t.Fatalf("%s: got %q, %t, %v", kind, d.Body, ok, err)
			}
			v.Consume("dead of " + kind).Take("short")
		}
	})
}

func TestXExpiresDeletesTheMessagesInside(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for _, kind := range bothTypes {
			deadLetters(v, kind, "dead", amqp.Table{"x-queue-type": kind, "x-expires": int32(1000)})
			v.Publish("", kind, amqp.Publishing{})
			brokertest.Eventually(t, kind+" has expired", func() bool { return gone(t, v, kind) })
			expect.Equal(t, v.Depth("dead"), 0, "%s: messages were dead-lettered", kind)
		}
	})
}

func TestDeclaringAgainRenewsXExpiresOfAClassicQueueOnly(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for _, kind := range bothTypes {
			expect.Equal(t, staysWhileDeclared(t, v, kind, 2*time.Second), (kind == "classic"),
				"%s: declaring again renews", kind)
		}
	})
}

// staysWhileDeclared declares a queue with a message in it again and again, for
// longer than its x-expires, and reports whether the message stays.
func staysWhileDeclared(t *testing.T, v *vhost, kind string, expires time.Duration) bool {
	ch := v.Channel()
	declare := func() (amqp.Queue, error) {
		return ch.QueueDeclare(kind, true, false, false, false, amqp.Table{"x-queue-type": kind,
			"x-expires": expires.Milliseconds()})
	}
	must(t, errOf(declare()))
	v.Publish("", kind, amqp.Publishing{})
	most := expires * 5 / 2
	if kind == "quorum" {
		most = time.Minute // it looks at its x-expires every few seconds only
	}
	start, last := time.Now(), time.Now()
	for time.Since(start) < most {
		q, err := declare()
		must(t, err)
		gap := time.Since(last)
		last = time.Now()
		if q.Messages == 1 {
			<-time.After(expires / 10)
			continue
		}
		must(t, errOf(ch.QueueDelete(kind, false, false, false)))
		if gap > expires/2 { // the machine stood still: this proves nothing
			return staysWhileDeclared(t, v, kind, 2*expires)
		}
		return false
	}
	return true
}

func TestTTLIsLimitedToTenYears(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		const longest = int64(315_360_000_000)
		v.Queue("longest", amqp.Table{"x-message-ttl": longest})
		_, err := v.Channel().QueueDeclare("longer", true, false, false, false, amqp.Table{"x-message-ttl": longest +
			1})
		refused(t, "a longer TTL", err, amqp.PreconditionFailed)
	})
}

func TestCCStaysAndIsReadAgainOnARepublishSince313(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", nil)
		v.Queue("copy", nil)
		v.Queue("blind", nil)
		v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"CC": []any{"copy"}, "BCC": []any{"blind"}},
			Body: []byte("m")})
		copied := v.Consume("copy")
		copied.Take("m")
		v.Consume("blind").Take("m")
		d := v.Consume("work").Reject()
		if d.Headers["BCC"] != nil || d.Headers["CC"] == nil {
			t.Errorf("delivered with BCC %v and CC %v, want CC alone", d.Headers["BCC"], d.Headers["CC"])
		}
		d = v.Consume("dead").Take("m")
		expect.Equal(t, d.Headers["CC"] != nil, since(v, 3, 13), "dead-lettered with CC")
		// mandatory is content with the copy.
		ch := v.Channel()
		must(t, ch.Confirm(false))
		returns := ch.NotifyReturn(make(chan amqp.Return, 1))
		c, err := ch.PublishWithDeferredConfirm("", "nowhere", true, false,
			amqp.Publishing{Headers: amqp.Table{"CC": []any{"copy"}}, Body: []byte("again")})
		must(t, err)
		if !c.Wait() || len(returns) > 0 {
			t.Error("a message with a routable CC came back as unroutable")
		}
		copied.Take("again")
	})
}

func TestUserIDOfAnotherIsRefused(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("work", nil)
		ch := v.Channel()
		end := closes(ch)
		must(t, ch.Publish("", "work", false, false, amqp.Publishing{UserId: "somebody"}))
		refused(t, "publishing as another", <-end, amqp.PreconditionFailed)
	})
}

func TestInternalExchangeRefusesPublishersAndTakesDeadLetters(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		ch := v.Channel()
		must(t, ch.ExchangeDeclare("internal", "fanout", true, false, true, false, nil))
		v.Queue("dead", nil)
		must(t, ch.QueueBind("dead", "", "internal", false, nil))
		v.Queue("work", amqp.Table{"x-dead-letter-exchange": "internal"})
		v.Publish("", "work", amqp.Publishing{Body: []byte("died")})
		v.Consume("work").Reject()
		v.Consume("dead").Take("died")
		end := closes(ch)
		must(t, ch.Publish("internal", "", false, false, amqp.Publishing{}))
		refused(t, "publishing to it", <-end, amqp.AccessRefused)
	})
}

func TestUnroutableIsReturnedThenAckedOrJustAcked(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		for _, mandatory := range []bool{true, false} {
			ch := v.Channel()
			must(t, ch.Confirm(false))
			returns := ch.NotifyReturn(make(chan amqp.Return, 1))
			c, err := ch.PublishWithDeferredConfirm("", "nowhere", mandatory, false, amqp.Publishing{})
			must(t, err)
			if !c.Wait() {
				t.Errorf("mandatory %t: a nack came, want an ack", mandatory)
			}
			// The client hands on in order: a return before the ack is here now.
			expect.Equal(t, len(returns) == 1, mandatory, "mandatory %t: a return came before the ack", mandatory)
		}
	})
}

func TestPropertiesOverAFrameEndTheWholeConnection(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		const frame = 131_072
		v.Queue("work", nil)
		conn := v.Dial()
		expect.Equal(t, conn.Config.FrameSize, frame, "a frame is … bytes")
		end := conn.NotifyClose(make(chan *amqp.Error, 1))
		ch, err := conn.Channel()
		must(t, err)
		_ = ch.Publish("", "work", false, false,
			amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("x", frame)}})
		refused(t, "properties over a frame", <-end, amqp.FrameError)
	})
}

func TestLargestBodyIs16MiBSince4(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		const largest = 16 << 20
		v.Queue("work", nil)
		body := bytes.Repeat([]byte{'x'}, largest+1)
		v.Publish("", "work", amqp.Publishing{Body: body[:largest]})
		work := v.Consume("work")
		work.Take(string(body[:largest]))
		if !since(v, 4, 0) {
			v.Publish("", "work", amqp.Publishing{Body: body})
			work.Take(string(body))
			return
		}
		ch := v.Channel()
		end := closes(ch)
		must(t, ch.Publish("", "work", false, false, amqp.Publishing{Body: body}))
		refused(t, "one byte more", <-end, amqp.PreconditionFailed)
	})
}

func TestOnePolicyAtATimeAndTheHigherPriorityShadows(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("work", nil)
		v.Queue("dead", nil)
		applies := func(name string) {
			t.Helper()
			brokertest.Eventually(t, name+" applies", func() bool {
				q, _ := v.queue(t, "work")
				return q.policy == name
			})
		}
		v.Policy("ours", "^work$", 1, map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
		applies("ours")
		v.Publish("", "work", amqp.Publishing{Body: []byte("before")})
		work, dead := v.Consume("work"), v.Consume("dead")
		work.Reject()
		dead.Take("before")

		v.Policy("theirs", "^work$", 2, map[string]any{"max-length": 1000})
		applies("theirs")
		work.Fail("lost")
		must(t, work.Channel.Qos(1, 0, false)) // when this is answered, so was the rejection heard

		v.deletePolicy(t, "theirs")
		applies("ours")
		work.Fail("after")
		dead.Take("after")
	})
}

func TestArgumentsBeatAPolicyKeyByKey(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", nil)
		v.Policy("theirs", "^work$", 9, map[string]any{"dead-letter-routing-key": "nowhere", "message-ttl": 1})
		brokertest.Eventually(t, "the policy applies", func() bool {
			q, _ := v.queue(t, "work")
			return q.policy == "theirs"
		})
		v.Publish("", "work", amqp.Publishing{Body: []byte("m")}) // expires by the policy
		v.Consume("dead").Take("m")                               // goes where the argument says
	})
}

// So our exchanges name themselves: no policy of others then gives them an alternate exchange.
func TestAnExchangeThatIsItsOwnAlternateReturnsWhateverAPolicySays(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("unrouted", nil)
		v.Exchange("theirs", "fanout", "unrouted")
		api := v.broker.(rabbit).API()
		must(t, api.PutPolicy(t.Context(), management.Policy{Name: "theirs", Pattern: "^ours", ApplyTo: "exchanges",
			Definition: map[string]any{"alternate-exchange": "theirs"}}))
		for _, kind := range []string{"fanout", "topic", "direct"} {
			for _, alternate := range []string{"", "ours " + kind, "does not exist"} {
				var args amqp.Table
				if alternate != "" {
					args = amqp.Table{"alternate-exchange": alternate}
				}
				ch := v.Channel()
				must(t, ch.ExchangeDeclare("ours "+kind, kind, true, false, false, false, args))
				brokertest.Eventually(t, "the policy applies", func() bool {
					x, err := api.Exchange(t.Context(), "ours "+kind)
					return err == nil && x.Policy == "theirs"
				})
				must(t, ch.Confirm(false))
				returns := ch.NotifyReturn(make(chan amqp.Return, 1))
				c, err := ch.PublishWithDeferredConfirm("ours "+kind, "key", true, false, amqp.Publishing{})
				must(t, err)
				if acked := c.Wait(); !acked || (len(returns) == 1) != (alternate != "") {
					t.Errorf("%s with alternate exchange %q: acked %t, returned %d", kind, alternate, acked,
						len(returns))
				}
				// An exchange that is there keeps what it was declared with.
				refused(t, "declaring it otherwise", v.Channel().ExchangeDeclare("ours "+kind, kind, true, false, false,
					false, amqp.Table{"alternate-exchange": "another"}), amqp.PreconditionFailed)
				must(t, ch.ExchangeDelete("ours "+kind, false, false))
			}
		}
		expect.Equal(t, v.Depth("unrouted"), 3, "the alternate exchange of the policy got … messages")
	})
}

// death is an x-death that names the queue the message is in: RabbitMQ 3 counts
// on in it.
func death(queue string, count any) []any {
	return []any{amqp.Table{"queue": queue, "reason": "rejected", "exchange": "", "count": count,
		"routing-keys": []any{queue}, "time": time.Unix(1_700_000_000, 0)}}
}

func TestMalformedXDeathThatHarmsNothing(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		for _, kind := range bothTypes {
			deadLetters(v, kind, "dead of "+kind, amqp.Table{"x-queue-type": kind})
			work, dead := v.Consume(kind), v.Consume("dead of "+kind)
			for name, value := range map[string]any{
				"text": "forged", "number": int64(7), "empty list": []any{}, "empty table": []any{amqp.Table{}},
				"other count": death("other", "many"), "queue is a number": []any{amqp.Table{"queue": int64(1),
					"reason": "rejected"}},
			} {
				v.Publish("", kind, amqp.Publishing{Headers: amqp.Table{"x-death": value}, Body: []byte(name)})
				work.Reject()
				if head := deaths(t, dead.Take(name))[0]; head["queue"] != kind || head["count"] != int64(1) {
					t.Errorf("%s, %s: the head entry is %v, want the broker's own", kind, name, head)
				}
			}
		}
	})
}

// crashing are values of x-death that RabbitMQ 3.10 cannot count on in.
func crashing(queue string) map[string]any {
	return map[string]any{"list of text": []any{"forged"}, "count of text": death(queue, "many"),
		"count is a table": death(queue, amqp.Table{})}
}

// again takes a message from a queue that has just crashed: until it is there
// again, RabbitMQ answers with 404, 541 or nothing.
func again(t *testing.T, v *vhost, queue string) (d amqp.Delivery) {
	t.Helper()
	brokertest.Eventually(t, queue+" gives its message again", func() bool {
		ch, err := v.Dial().Channel()
		must(t, err)
		in, err := ch.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return false
		}
		var ok bool
		select {
		case d, ok = <-in:
		case <-time.After(5 * time.Second):
			_ = ch.Close()
		}
		return ok
	})
	return d
}

// On 3.10 the classic queue of a publisher who sends such a message crashes, its
// consumers are cancelled as a rule, and the message comes again.
func TestMalformedXDeathCrashesAClassicQueueOn3(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		for name := range crashing("") {
			deadLetters(v, name, "dead of "+name, amqp.Table{"x-queue-type": "classic"})
			v.Publish("", name, amqp.Publishing{Headers: amqp.Table{"x-death": crashing(name)[name]},
				DeliveryMode: amqp.Persistent, Body: []byte("m")})
			work := v.Consume(name)
			cancelled := work.Channel.NotifyCancel(make(chan string, 1))
			work.Reject()
			if since(v, 4, 0) {
				v.Consume("dead of " + name).Take("m")
				continue
			}
			var d amqp.Delivery
			select {
			case d = <-work.In: // the queue was back before RabbitMQ noticed
			case <-cancelled:
				d = again(t, v, name)
			case <-time.After(time.Minute):
				t.Fatalf("%s: the queue has not crashed", name)
			}
			if !d.Redelivered || string(d.Body) != "m" {
				t.Errorf("%s: %q came again, redelivered %t", name, d.Body, d.Redelivered)
			}
			must(t, d.Ack(false))
		}
	})
}

// The queue then has all that was not acknowledged, also what its consumer acknowledges since,
// but for what is not persistent.
func TestAClassicQueueThatCrashedHasLostWhatIsNotPersistentOn3(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", nil)
		v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"x-death": []any{"forged"}},
			DeliveryMode: amqp.Persistent, Body: []byte("m")})
		for _, body := range []string{"a", "b", "c", "d"} {
			mode := map[bool]uint8{false: amqp.Persistent, true: amqp.Transient}[body == "b" || body == "d"]
			v.Publish("", "work", amqp.Publishing{DeliveryMode: mode, Body: []byte(body)})
		}
		ch := v.Channel()
		must(t, ch.Qos(3, 0, false))
		in, err := ch.Consume("work", "", false, false, false, false, nil)
		must(t, err)
		work := v.Consumer("work", ch, in)
		m, a, _ := work.Next(), work.Next(), work.Next()
		cancelled := ch.NotifyCancel(make(chan string, 1))
		must(t, m.Reject(false))
		if since(v, 4, 0) {
			v.Consume("dead").Take("m")
			return
		}
		select {
		case <-cancelled:
			must(t, a.Ack(false))
		case <-in: // the queue was back before RabbitMQ noticed
		}
		_ = ch.Close() // in the middle of the crash even this may be a 541
		must(t, again(t, v, "work").Acknowledger.(*amqp.Channel).Close())
		got, rest := "", v.Consume("work")
		for range 3 {
			d := rest.Next()
			must(t, d.Ack(false))
			if got += string(d.Body); !d.Redelivered {
				t.Errorf("%q is not redelivered", d.Body)
			}
		}
		brokertest.Eventually(t, "the queue is empty", func() bool { return held(t, v, "work") == 0 })
		expect.Equal(t, got, "mac", "after the crash")
	})
}

// On 3.10 a quorum queue loses it, and its consumer gets nothing more until it
// consumes again.
func TestMalformedXDeathIsLostByAQuorumQueueOn3(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		for name := range crashing("") {
			deadLetters(v, name, "dead of "+name, amqp.Table{"x-queue-type": "quorum"})
			v.Publish("", name, amqp.Publishing{Headers: amqp.Table{"x-death": crashing(name)[name]},
				Body: []byte("m")})
			v.Publish("", name, amqp.Publishing{Body: []byte("next")})
			work, dead := v.Consume(name), v.Consume("dead of "+name)
			work.Reject()
			if since(v, 4, 0) {
				dead.Take("m")
				work.Reject()
			} else {
				_ = work.Channel.Close() // in the middle of the crash even this may be a 541
				must(t, again(t, v, name).Reject(false))
			}
			dead.Take("next")
			brokertest.Eventually(t, "the queue is empty", func() bool { return held(t, v, name) == 0 })
		}
	})
}

// What RabbitMQ then wanted to deliver does not arrive. The next delivery to that consumer ends
// its connection, and with that both are in the queue again.
func TestAfterAMalformedXDeathTheNextDeliveryEndsTheConsumersConnectionOn3(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		deadLetters(v, "work", "dead", amqp.Table{"x-queue-type": "quorum"})
		v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"x-death": []any{"forged"}}, Body: []byte("m")})
		v.Publish("", "work", amqp.Publishing{Body: []byte("a")})
		v.Publish("", "work", amqp.Publishing{Body: []byte("b")})
		ch := v.Channel()
		must(t, ch.Qos(2, 0, false))
		in, err := ch.Consume("work", "", false, false, false, false, nil)
		must(t, err)
		closed, work := closes(ch), v.Consumer("work", ch, in)
		m, a := work.Next(), work.Next()
		must(t, m.Reject(false))
		if since(v, 4, 0) {
			v.Consume("dead").Take("m")
			work.Take("b")
			return
		}
		select {
		case d := <-in:
			t.Fatalf("%q is delivered after the crash", d.Body)
		case <-time.After(3 * time.Second):
		}
		must(t, a.Ack(false))
		v.Publish("", "work", amqp.Publishing{Body: []byte("c")})
		refused(t, "the consumer's connection", <-closed, amqp.InternalError)
		again := v.Consume("work")
		again.Take("b")
		again.Take("c")
	})
}

// On 3.10 a count that is a float is counted on in, and then RabbitMQ itself ends
// each connection that the message is delivered to. Only the delivery limit of a
// quorum queue moves it, and what is delivered with it, out of the way: see
// DeliveryLimit in internal/broker.
func TestFloatCountInXDeathEndsEachConsumersConnectionOn3(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		const limit = 3
		quorum := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000_000)}
		v.Queue("aside", quorum)
		v.Queue("intake", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(limit),
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "aside"})
		v.Queue("work", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "intake"})
		v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"x-death": death("work", 1.5)}, Body: []byte("m")})
		work := v.Consume("work")
		work.Reject()
		if since(v, 4, 0) {
			v.Consume("intake").Take("m")
			return
		}
		work.Fail("next")
		ended := 0
		brokertest.Eventually(t, "what is behind it arrives", func() bool {
			conn := v.Dial()
			defer conn.Close()
			ends := conn.NotifyClose(make(chan *amqp.Error, 1))
			ch, err := conn.Channel()
			must(t, err)
			must(t, ch.Qos(1, 0, false))
			in, err := ch.Consume("intake", "", false, false, false, false, nil)
			if err == nil {
				if d, ok := <-in; ok {
					return string(d.Body) == "next"
				}
			}
			refused(t, "consuming", <-ends, amqp.InternalError)
			ended++
			return false
		})
		expect.Equal(t, ended, limit+1, "connections ended")
		brokertest.Eventually(t, "it is aside", func() bool { return v.Depth("aside") == 1 })
		// There a get ends the connection too; the management API shows it.
		_, _, err := v.Channel().Get("aside", false)
		refused(t, "getting", err, amqp.InternalError)
		brokertest.Eventually(t, "the management API shows it", func() bool {
			body, is := v.payload(t, "aside")
			return is && body == "m"
		})
		brokertest.Eventually(t, "it can be purged", func() bool {
			v.purge(t, "aside")
			return held(t, v, "aside") == 0
		})
	})
}

// On 3.10 at-least-once dead-lettering is one process, and what it cannot count
// ends it for all queues of the node: a new one that wants it is refused.
func malformedXDeathEndsAtLeastOnceOn3(t *testing.T, v *vhost) {
	atLeastOnce := amqp.Table{"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once",
		"x-overflow": "reject-publish"}
	deadLetters(v, "work", "dead", atLeastOnce)
	v.Publish("", "work", amqp.Publishing{Headers: amqp.Table{"x-death": death("work", "many")}, Body: []byte("m")})
	v.Consume("work").Reject()
	if since(v, 4, 0) {
		v.Consume("dead").Take("m")
		return
	}
	atLeastOnce["x-dead-letter-exchange"] = ""
	n := 0
	brokertest.Eventually(t, "a new queue is refused", func() bool {
		n++
		_, err := v.Channel().QueueDeclare(fmt.Sprint("other ", n), true, false, false, false, atLeastOnce)
		if err != nil {
			refused(t, "declaring", err, amqp.InternalError)
		}
		return err != nil
	})
}

// wire is a connection that replaces bytes on their way out, and notes what comes
// in.
type wire struct {
	net.Conn
	old, new string // of the same length

	mu sync.Mutex
	in bytes.Buffer
}

func (w *wire) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(bytes.ReplaceAll(b, []byte(w.old), []byte(w.new)))
	return min(n, len(b)), err
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in.Write(b[:n])
	return n, err
}

// headerFrame is the first content header that came in, and its size by its own
// account: a client may not read one to its end.
func (w *wire) headerFrame() (frame []byte, size int) {
	const head, header = 7, 2
	w.mu.Lock()
	defer w.mu.Unlock()
	for in := w.in.Bytes(); len(in) > head; {
		size := head + int(binary.BigEndian.Uint32(in[3:])) + 1
		if in[0] == header {
			return in[:min(size, len(in))], size
		}
		in = in[min(size, len(in)):]
	}
	return nil, 0
}

// dialWire connects over a wire.
func dialWire(v *vhost, old, new string) (*wire, *amqp.Connection) {
	v.t.Helper()
	w := &wire{old: old, new: new}
	return w, v.DialOver(func(c net.Conn) net.Conn {
		w.Conn = c
		return w
	})
}

// delivered consumes a queue until a message has come or the connection has ended
// over it.
func delivered(t *testing.T, v *vhost, queue string) (*wire, *amqp.Error) {
	t.Helper()
	w, conn := dialWire(v, "", "")
	end := conn.NotifyClose(make(chan *amqp.Error, 1))
	ch, err := conn.Channel()
	must(t, err)
	in, err := ch.Consume(queue, "", false, false, false, false, nil)
	must(t, err)
	var ended *amqp.Error
	select {
	case _, ok := <-in:
		if !ok {
			ended = <-end
		}
	case <-time.After(time.Minute):
		t.Fatalf("nothing came from %s", queue)
	}
	return w, ended
}

func TestHeaderOfTypeLIsDeliveredAsItIsBefore4AndSignedSince(t *testing.T) {
	onEachBroker(t, func(t *testing.T, v *vhost) {
		v.Queue("work", nil)
		_, conn := dialWire(v, "\x08unsignedl", "\x08unsignedL")
		ch, err := conn.Channel()
		must(t, err)
		must(t, ch.Confirm(false))
		c, err := ch.PublishWithDeferredConfirm("", "work", true, false,
			amqp.Publishing{Headers: amqp.Table{"unsigned": int64(-2)}})
		must(t, err)
		if !c.Wait() {
			t.Fatal("not confirmed")
		}
		w, ended := delivered(t, v, "work")
		frame, _ := w.headerFrame()
		_, value, ok := bytes.Cut(frame, []byte("\x08unsigned"))
		if !ok {
			t.Fatalf("the header is not in %q", frame)
		}
		want := byte('L')
		if since(v, 4, 0) {
			want = 'l'
		}
		if value[0] != want || !bytes.Equal(value[1:9], []byte("\xff\xff\xff\xff\xff\xff\xff\xfe")) {
			t.Errorf("delivered as type %c, bytes %x; want type %c and the same bytes", value[0], value[1:9], want)
		}
		expect.Equal(t, ended != nil, want == 'L', "the client's connection ended with %v", ended)
	})
}

// RabbitMQ adds its death headers without looking at the frame size it agreed to,
// and sends what comes of it.
func TestDeadLetteringGrowsAHeaderFramePastItsLimit(t *testing.T) {
	onEach(t, func(t *testing.T, v *vhost) {
		const frame = 131_072
		const largest = 131_043 // such a header makes a frame of just this size
		for queue, header := range map[string]int{"fits": largest - 1000, "largest": largest} {
			deadLetters(v, queue, "dead of "+queue, nil)
			v.Publish("", queue, amqp.Publishing{Headers: amqp.Table{"big": strings.Repeat("x", header)},
				Expiration: "0"})
			w, ended := delivered(t, v, "dead of "+queue)
			_, size := w.headerFrame()
			t.Logf("a header of %d bytes came in a frame of %d", header, size)
			expect.Equal(t, size > frame, queue == "largest", "%s: a frame of %d bytes is larger", queue, size)
			if (ended != nil) != (size > frame) {
				t.Errorf("%s: a frame of %d bytes, and the client's connection ended: %v", queue, size, ended)
			}
		}
	})
}
