package retry

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
	"github.com/redrive-mq/redrive/wire"
)

// adoptedOf parks messages from orders.dlq, and returns them as they are stored.
func adoptedOf(t *testing.T, a Adoption, all ...wire.Delivery) (records []*store.Record) {
	t.Helper()
	ctx, s := context.Background(), memstore.New()
	a.From, a.By = "orders.dlq", "alice"
	var events []Event
	in := NewAdoptedIntake(s, nil, a, func(e Event) { events = append(events, e) })
	if err := in.Connected(ctx); err != nil {
		t.Fatal(err)
	}
	if err := in.Handle(ctx, all); err != nil {
		t.Fatal(err)
	}
	byBody := map[string]*store.Record{}
	if err := s.Scan(ctx, store.Range{Body: true}, func(l store.Listed) (bool, error) {
		byBody[string(l.Record.Message.Body)] = l.Record
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	for i, d := range all {
		r := byBody[string(d.Message.Body)]
		if r == nil || r.State != store.Parked || r.Proven || !strings.HasPrefix(r.ParkedFor, `alice adopted it from queue "orders.dlq"`) {
			t.Fatalf("message %d is kept as %+v", i, r)
		}
		if events[i].Kind != Imported || events[i].Queue != r.Queue {
			t.Errorf("its event is %+v", events[i])
		}
		records = append(records, r)
	}
	return records
}

func death(queue, reason string, count int64, at time.Time) amqp.Table {
	return amqp.Table{"queue": queue, "reason": reason, "count": count, "time": at, "exchange": "shop", "routing-keys": []any{"order.created"}}
}

// A message only claims how it failed: the claim is shown, and decides nothing.
func TestWhatAdoptedMessagesSay(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	first, last := now.Add(-72*time.Hour), now.Add(-time.Hour)
	for name, c := range map[string]struct {
		adoption Adoption
		headers  amqp.Table
		want     string // queue, reason, error, failures, exchange, routing key
	}{
		"x-death":                 {headers: amqp.Table{"x-death": []any{death("orders", "rejected", 1, last)}}, want: "orders rejected  1 shop order.created"},
		"through a queue to wait": {headers: amqp.Table{"x-death": []any{death("orders", "rejected", 4, last), death("orders.wait", "expired", 3, last)}}, want: "orders rejected  4 shop order.created"},
		"nothing":                 {headers: nil, want: "   1 dlx key"},
		"nothing, one leads":      {adoption: Adoption{Leads: "orders"}, want: "orders   1 dlx key"},
		"nothing, one is named":   {adoption: Adoption{Named: []string{"orders"}, Leads: "mail"}, want: "orders   1 dlx key"},
		"one of two named":        {adoption: Adoption{Named: []string{"mail", "orders"}}, headers: amqp.Table{"x-death": []any{death("orders", "rejected", 1, last)}}, want: "orders rejected  1 shop order.created"},
		"none of two named":       {adoption: Adoption{Named: []string{"mail", "news"}}, headers: amqp.Table{"x-death": []any{death("orders", "rejected", 1, last)}}, want: " rejected  1 shop order.created"},
		"not the one named":       {adoption: Adoption{Named: []string{"mail"}}, headers: amqp.Table{"x-death": []any{death("orders", "rejected", 1, last)}}, want: "mail rejected  1 shop order.created"},
		"an error":                {headers: amqp.Table{"x-exception-message": "no stock", "x-exception-stacktrace": "at a.B.c(B.java:1)"}, want: "  no stock\nat a.B.c(B.java:1) 1 dlx key"},
		"an error, and x-death is asked for": {adoption: Adoption{Format: XDeath}, headers: amqp.Table{"error": "no stock"},
			want: "   1 dlx key"},
		"a framework, and x-death is asked for": {adoption: Adoption{Format: XDeath},
			headers: amqp.Table{"NServiceBus.FailedQ": "mail"}, want: "   1 dlx key"},
		"a format that no mark shows": {adoption: Adoption{Format: "nservicebus"},
			headers: amqp.Table{"NServiceBus.ExceptionInfo.Message": "no stock"}, want: "  no stock 1 dlx key"},
		"our own queue": {headers: amqp.Table{"x-death": []any{death("redrive.intake", "rejected", 1, last)}}, want: " rejected  1 shop order.created"},
		"no text":       {headers: amqp.Table{"x-death": []any{death("\xff", "\xff", 1, last)}}, want: "   1 shop order.created"},
		"a queue that is too long": {headers: amqp.Table{"x-death": []any{death(strings.Repeat("q", 256), "rejected", 1, last)}},
			want: " rejected  1 shop order.created"},
		"other types":     {headers: amqp.Table{"x-death": []any{amqp.Table{"queue": int32(1), "count": "x", "time": "y"}, "z"}, "error": int32(5)}, want: "  5 1 dlx key"},
		"no list":         {headers: amqp.Table{"x-death": "orders"}, want: "   1 dlx key"},
		"forged counts":   {headers: amqp.Table{"x-death": []any{death("orders", "rejected", 1<<62, last), death("orders", "expired", 1<<62, last)}}, want: "orders rejected  1000000 shop order.created"},
		"a negative one":  {headers: amqp.Table{"x-death": []any{death("orders", "rejected", -5, last)}}, want: "orders rejected  1 shop order.created"},
		"Redrive retried": {headers: amqp.Table{"x-death": []any{death("orders", "rejected", 1, last)}, wire.HeaderQueue: "orders", wire.HeaderAttempt: int64(3)}, want: "orders rejected  4 shop order.created"},
	} {
		m := wire.Message{Exchange: "dlx", RoutingKey: "key", Headers: c.headers, Body: []byte(name)}
		if c.headers[wire.HeaderAttempt] != nil {
			c.headers[wire.HeaderID] = headers.NewID(&m).String()
		}
		r := adoptedOf(t, c.adoption, wire.Delivery{Message: m})[0]
		got := fmt.Sprint(r.Queue, " ", r.Reason, " ", r.Error, " ", r.Failures, " ", r.Message.Exchange, " ", r.Message.RoutingKey)
		if got != c.want {
			t.Errorf("%s: it is %q, want %q", name, got, c.want)
		}
	}
	r := adoptedOf(t, Adoption{}, wire.Delivery{Message: wire.Message{Headers: amqp.Table{
		"x-death": []any{death("orders", "rejected", 2, last), death("wait", "expired", 2, first)}}}})[0]
	if !r.FirstFailed.Equal(first) || !r.FailedAt.Equal(last) {
		t.Errorf("it failed from %s to %s, want %s to %s", r.FirstFailed, r.FailedAt, first, last)
	}
	r = adoptedOf(t, Adoption{From: "orders.dlq"}, wire.Delivery{Message: wire.Message{Body: []byte("b")}})[0]
	expect.Equal(t, r.AdoptedFrom, "orders.dlq", "is where it was adopted from")
	for _, at := range []any{now.Add(time.Hour), time.Unix(-1, 0), time.Time{}, "x"} {
		r := adoptedOf(t, Adoption{}, wire.Delivery{Message: wire.Message{Headers: amqp.Table{"x-death": []any{amqp.Table{"queue": "orders", "reason": "rejected", "time": at}}}}})[0]
		if r.FailedAt.After(time.Now()) || r.FailedAt.Before(now) || r.FirstFailed.Before(now) {
			t.Errorf("with the time %v it failed from %s to %s", at, r.FirstFailed, r.FailedAt)
		}
	}
}

// What frameworks write, as their sources have it.
func TestFormatsOfFrameworks(t *testing.T) {
	for name, c := range map[string]struct {
		headers amqp.Table
		want    string // queue, failures, exchange, routing key, time, error
	}{
		// MassTransit: src/MassTransit.Abstractions/MessageHeaders.cs. Its error queue is the queue's name
		// with _error, which no header has.
		"masstransit": {amqp.Table{"MT-Reason": "fault", "MT-Fault-ExceptionType": "Shop.NoStock", "MT-Fault-Message": "no stock", "MT-Fault-RetryCount": int32(4),
			"MT-Fault-Timestamp": "2026-11-20T10:00:00.1234567Z", "MT-Fault-StackTrace": "   at Shop.Ship()"}, " 5 dlx key 10:00:00 Shop.NoStock: no stock\n   at Shop.Ship()"},
		"masstransit, skipped": {amqp.Table{"MT-Reason": "dead-letter"}, " 1 dlx key now dead-letter"},
		// NServiceBus: src/NServiceBus.Core/Faults/FaultsHeaderKeys.cs, Recoverability/Faults/ExceptionHeaderHelper.cs.
		"nservicebus": {amqp.Table{"NServiceBus.FailedQ": "sales", "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
			"NServiceBus.ExceptionInfo.Message": "no answer", "NServiceBus.TimeOfFailure": "2026-11-20 11:00:00:000462 Z"}, "sales 1 dlx key 11:00:00 System.TimeoutException: no answer"},
		// Spring AMQP, and Cloud Stream with republishToDlq: RepublishMessageRecoverer.java.
		"spring": {amqp.Table{"x-exception-message": "no stock", "x-exception-stacktrace": "a.B: no stock\n\tat a.B.c(B.java:1)", "x-original-exchange": "shop",
			"x-original-routingKey": "order.created"}, " 1 shop order.created now no stock\na.B: no stock\n\tat a.B.c(B.java:1)"},
		// Rascal: lib/amqp/SubscriberError.js and Subscription.js.
		"rascal": {amqp.Table{"rascal": amqp.Table{"originalQueue": "q1", "originalExchange": "e1", "originalRoutingKey": "r1",
			"error": amqp.Table{"message": "no stock", "code": "E1"}}}, "q1 1 e1 r1 now E1: no stock"},
		"usual names": {amqp.Table{"x-error": "no stock", "x-stacktrace": "at x"}, " 1 dlx key now no stock\nat x"},
		"hostile": {amqp.Table{"NServiceBus.FailedQ": "redrive.intake", "NServiceBus.TimeOfFailure": "2999-01-01 00:00:00:000000 Z",
			"NServiceBus.ExceptionInfo.Message": amqp.Table{}, "rascal": "x"}, " 1 dlx key now "},
		"hostile counts": {amqp.Table{"MT-Reason": "fault", "MT-Fault-RetryCount": "99999999999"}, " 1 dlx key now fault"},
	} {
		now := time.Now()
		r := adoptedOf(t, Adoption{}, wire.Delivery{Message: wire.Message{Exchange: "dlx", RoutingKey: "key", Headers: c.headers, Body: []byte(name)}})[0]
		at := r.FailedAt.UTC().Format(time.TimeOnly)
		if !r.FailedAt.Before(now.Truncate(time.Microsecond)) {
			at = "now"
		}
		got := fmt.Sprint(r.Queue, " ", r.Failures, " ", r.Message.Exchange, " ", r.Message.RoutingKey, " ", at, " ", r.Error)
		if got != c.want || r.FailedAt.After(time.Now()) {
			t.Errorf("%s: it is %q, failed %s, want %q", name, got, r.FailedAt, c.want)
		}
	}
}

// A replay of an adopted message removes what its framework added, and nothing else; the store keeps it as it came. The
// headers are those of the sources.
func TestAReplayTakesOffWhatTheFrameworkAdded(t *testing.T) {
	rascal := func(more amqp.Table) amqp.Table {
		table := amqp.Table{"originalQueue": "q1", "originalExchange": "e1", "originalRoutingKey": "r1",
			"originalVhost": "v", "restoreRoutingHeaders": true, "redeliveries": int32(1),
			"error":    amqp.Table{"message": "no stock", "code": "E1"},
			"recovery": amqp.Table{"q1": amqp.Table{"republished": int32(3), "immediateNack": true}}}
		maps.Copy(table, more)
		return amqp.Table{"rascal": table}
	}
	encryption := amqp.Table{"encryption": amqp.Table{"name": "p", "iv": "1", "originalContentType": "text/plain"}}
	for name, c := range map[string]struct {
		off  string // names of headers
		also amqp.Table
		left amqp.Table
	}{
		// MassTransit: src/MassTransit.Abstractions/MessageHeaders.cs. MT-Fault-Address is the sender's:
		// faults are sent there.
		"masstransit": {off: `MT-Reason MT-Fault-ExceptionType MT-Fault-InputAddress MT-Fault-Message
			MT-Fault-MessageType MT-Fault-ConsumerType MT-Fault-Timestamp MT-Fault-StackTrace MT-Fault-RetryCount
			MT-Fault-RedeliveryCount MT-Redelivery-Count`,
			left: amqp.Table{"MT-Fault-Address": "rabbitmq://h/faults", "MT-MessageType": "urn:m"}},
		// NServiceBus: src/NServiceBus.Core/Recoverability/Faults/FaultsHeaderKeys.cs, FaultMetadataExtractor.cs and
		// Headers.cs. ServiceControl's src/ServiceControl/Recoverability/Retrying/HeaderFilter.cs takes off the same.
		"nservicebus": {off: `NServiceBus.FailedQ NServiceBus.TimeOfFailure NServiceBus.ExceptionInfo.ExceptionType
			NServiceBus.ExceptionInfo.InnerExceptionType NServiceBus.ExceptionInfo.HelpLink
			NServiceBus.ExceptionInfo.Message NServiceBus.ExceptionInfo.Source NServiceBus.ExceptionInfo.StackTrace
			NServiceBus.ExceptionInfo.Data.Handler NServiceBus.Retries NServiceBus.Retries.Timestamp
			NServiceBus.FLRetries`,
			left: amqp.Table{"NServiceBus.EnclosedMessageTypes": "Order", "NServiceBus.ConversationId": "c"}},
		// Spring AMQP: RepublishMessageRecoverer.java, and MessageProperties.java for retry-count. Spring Cloud
		// Stream's RabbitMessageChannelBinder.java has the same names.
		"spring": {off: `x-exception-message x-exception-stacktrace x-original-exchange x-original-routingKey
			retry-count`, left: amqp.Table{"__TypeId__": "shop.Order", "x-original-sender": "me"}},
		// Rascal: lib/amqp/SubscriberError.js, Subscription.js and Publication.js.
		"rascal":                {also: rascal(nil), left: amqp.Table{"n": int32(1)}},
		"rascal, encrypted":     {also: rascal(encryption), left: amqp.Table{"rascal": encryption}},
		"rascal, not its table": {also: amqp.Table{"rascal.originalQueue": "q1"}, left: amqp.Table{"rascal": "x"}},
		// Any program may have set these.
		"usual names": {left: amqp.Table{"x-exception": "no stock", "x-stacktrace": "at", "error": "e"}},
		"no headers":  {},
	} {
		came := amqp.Table{}
		maps.Copy(came, c.left)
		for _, header := range strings.Fields(c.off) {
			came[header] = "1"
		}
		maps.Copy(came, c.also)
		m := wire.Message{Headers: came, Body: []byte(name)}
		r := adoptedOf(t, Adoption{Named: []string{"orders"}}, wire.Delivery{Message: m})[0]
		if d := cmp.Diff(came, r.Message.Headers, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: it is not kept as it came (-came +kept):\n%s", name, d)
		}
		sent := published(r)
		if d := cmp.Diff(c.left, headers.Clean(sent.Headers), cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: it is published with (-want +got):\n%s", name, d)
		}
		expect.Equal(t, string(sent.Body), name, "is published")
		expect.Equal(t, sent.Headers[wire.HeaderID].(string), r.ID.String(), "is its id")
	}
}

// published returns a record's message as a replay publishes it.
func published(r *store.Record) *wire.Message {
	replayed := *r
	replayed.Replay(time.Now())
	_, m := withHistory(&replayed)
	return m
}

// A message that is taken twice, because the service ended before it acknowledged it, has one id; two equal messages
// have two.
func TestAMessageThatIsAdoptedTwiceHasOneID(t *testing.T) {
	ctx, s := context.Background(), memstore.New()
	m := wire.Message{Body: []byte("equal")}
	epoch := "0"
	take := func(redelivered ...bool) {
		in := NewAdoptedIntake(s, nil, Adoption{From: "dlq", By: "alice"}, func(Event) {})
		in.SetEpoch(epoch)
		if err := in.Connected(ctx); err != nil {
			t.Fatal(err)
		}
		batch := make([]wire.Delivery, len(redelivered))
		for i := range batch {
			batch[i] = wire.Delivery{Message: m, Redelivered: redelivered[i]}
		}
		if err := in.Handle(ctx, batch); err != nil {
			t.Fatal(err)
		}
	}
	ids := func() int {
		found := map[string]bool{}
		if err := s.Scan(ctx, store.Range{}, func(l store.Listed) (bool, error) {
			found[l.Record.ID.String()] = true
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	take(false, false)
	if n := ids(); n != 2 {
		t.Errorf("two equal messages have %d ids", n)
	}
	take(true, true, false)
	if n := ids(); n != 3 {
		t.Errorf("two that come again and a new one have %d ids", n)
	}
	epoch = "3" // all three are acknowledged; this one was delivered, and not parked before
	take(true)
	if n := ids(); n != 4 {
		t.Errorf("with another that was not parked before there are %d ids", n)
	}
}
