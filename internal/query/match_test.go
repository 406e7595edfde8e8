package query

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const anID = "0193e0a4-5f00-7000-8000-0123456789ab"

// parked is the message that most of the tests ask about.
func parked() *store.Listed {
	return &store.Listed{BodySize: 1500, Record: &store.Record{
		ID: uuid.MustParse(anID), Queue: "orders.eu", State: store.Parked, Due: noon.Add(-time.Hour), Failures: 8, Reason: "rejected",
		Error: "Connection Timeout after 30s", Policy: "default", FirstFailed: noon.Add(-5 * time.Hour), FailedAt: noon.Add(-3 * time.Hour),
		ParkedFor: "it failed 8 times", Notes: []string{"a note", "Another"},
		Message: wire.Message{Exchange: "shop", RoutingKey: "order.placed", Type: "OrderPlaced", ContentType: "application/json", CorrelationID: "c-1",
			Headers: amqp.Table{"tenant": "acme", "n": int32(7), "price": amqp.Decimal{Scale: 2, Value: 1250}, "at": noon, "raw": []byte("bytes"), "x y": nil,
				"a.b": "dotted", "deep": amqp.Table{"list": []any{int64(1), amqp.Table{"k": "v"}}}, "yes": true, "f": 0.5}},
	}}
}

func decoded() *decode.Result {
	var v any
	d := json.NewDecoder(strings.NewReader(`{"order":{"total":120.50,"id":9007199254740993,"big":1e999999999,"items":[{"sku":"A-1","n":1},{"sku":"B-2","n":20}],"note":null,
		"paid":true,"placed":"2026-11-20T08:00:00Z","a.b":{"c.d":"x"},"text":"7","list":["p","q",["r"]]}}`))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	return &decode.Result{Format: "json", Text: "{\n  \"customer\": \"ACME Ltd. Größe\"\n}", Inner: []byte(`{"customer":"ACME Ltd. Gr\u00f6\u00dfe"}`), Value: v}
}

var corpus = func() []*store.Listed {
	waiting := parked()
	waiting.Record.State, waiting.Record.Due, waiting.Record.Error = store.Waiting, noon.Add(5*time.Minute), ""
	returned := parked()
	returned.Record.State = Retried
	return []*store.Listed{parked(), waiting, returned, {Record: &store.Record{}}}
}()

func matches(q *Query, l *store.Listed) bool { return q.Match(noon, l, decoded) }

func TestMatch(t *testing.T) {
	all := map[string]bool{
		"": true, "queue:orders.eu": true, "queue:orders.*": true, "queue:orders": false, "queue:Orders.eu": false, `queue:"orders.*"`: false, "queue:orders.?u": true,
		"state:parked": true, "state:waiting": false, "state:*": true, "reason:rejected": true, "reason:e*": false,
		"error:timeout": true, `error:"timeout after"`: true, "error:x": false, "error:*": true,
		"attempt:8": true, "attempt:8.0": true, "attempt:>7": true, "attempt:>8": false, "attempt:>=8": true, "attempt:<9": true, "attempt:<=7": false, "attempt:<=8": true, "attempt:<8": false, "attempt:8..9": true, "attempt:1..7": false,
		"age:>2h": true, "age:>3h": false, "age:>=3h": true, "age:<=3h": true, "age:<3h": false, "age:2h..4h": true, "age:3h..4h": true, "age:4h..5h": false, "age:>1d": false, "age:<1w": true,
		"due:>0s": false, "due:*": false, "parked:2026-11-21": true, "parked:<2026-11-21": false, "parked:2026-11-21T11:00": true, "parked:>2026-11-21T11:00": false,
		"parked:>=2026-11-21T12:00+01:00": true, "parked:2026-11-01..2026-11-20": false, "parked:2026-11-01..2026-11-21": true, "parked:>2026-11-20": true,
		"before:2026-11-21T09:00:01Z": true, "before:2026-11-21T09:00:00Z": false, "after:2026-11-21T09:00:00Z": true, "after:2026-11-22": false, "first:<2026-11-21T08:00Z": true,
		"why:FAILED": true, "note:another": true, "note:third": false, "policy:def*": true, "id:" + anID: true, "id:" + strings.ToUpper(anID): true, "id:0193*": true, "id:0194*": false,
		"size:1500": true, "size:>1kb": true, "size:>1.5kb": false, "size:<2KiB": true, "size:1kb..2kb": true,
		"exchange:shop": true, "key:order.*": true, "type:OrderPlaced": true, "content_type:application/*": true, "correlation_id:c-1": true, "message_id:*": false,
		"header.tenant:acme": true, "header.tenant:ACME": false, "header.tenant:a*": true, "header.none:*": false, "-header.none:*": true, "header.n:7": true, "header.n:07": true, "header.n:>6": true,
		"header.price:12.5": true, "header.price:>12.49": true, "header.at:2026-11-21T12:00:00Z": true, "header.at:>2026-11-20": true, "header.raw:bytes": true, `header."x y":*`: true,
		`header."x y":null`: true, "header.a.b:dotted": true, "header.deep.list:1": true, "header.deep.list.k:v": true, "header.deep.list.1.k:v": true, "header.deep.list.0.k:v": false,
		"header.deep:*": true, "header.deep:x": false, "header.yes:true": true, "header.f:.5": true, "header.tenant:>1": false,
		"body.order.total:>100": true, "body.order.total:120.5": true, "body.order.total:<100": false, "body.order.total:120..121": true,
		"body.order.id:9007199254740993": true, "body.order.id:9007199254740992": false, "body.order.id:>9007199254740992": true, "body.order.big:>1e999999998": true, "body.order.big:>1e999999999": false,
		"body.order.items.sku:B-2": true, "body.order.items.0.sku:B-2": false, "body.order.items.1.sku:B-2": true, "body.order.items.n:>19": true, "body.order.items.9.n:*": false,
		"body.order.note:null": true, "body.order.note:*": true, "body.order.paid:true": true, "body.order.placed:<2026-11-21": true, "body.order.placed:2026-11-20": true, "body.order.placed:2026-11-19..2026-11-20": true,
		"body.order.a.b.c.d:x": true, `body.order.text:"7"`: true, "body.order.text:7": true, "body.order.text:7.0": true, `body.order.text:"7.0"`: false, "body.order.list:r": true, "body.order.list:s": false,
		"text:acme": true, "acme": true, `"ltd. GRÖSSE"`: false, `"ltd. größe"`: true, `gr\u00f6`: true, "timeout": true, "nowhere": false, "*": true,
		"state:parked acme": true, "state:waiting acme": false, "state:waiting OR acme": true, "-acme": false, "-(state:waiting OR nowhere)": true, "NOT state:waiting": true,
	}
	l := parked()
	g := errorgroup.Of(l.Record.Queue, l.Record.Reason, l.Record.Error, l.Record.Message.Type)
	all["group:"+g.ID.String()] = true
	all["group:0000000000000000"] = false
	for text, want := range all {
		q, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := matches(q, parked()); got != want {
			t.Errorf("%s matches: %v", text, got)
		}
	}
	for text, want := range map[string]bool{"due:<10m": true, "due:<5m": false, "due:<=5m": true, "due:>1m": true, "due:1m..10m": true, "due:<0s": false, "due:<-5m": false, "due:2026-11-21": true, "parked:*": false, "why:*": false} {
		q, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := matches(q, corpus[1]); got != want {
			t.Errorf("waiting: %s matches: %v", text, got)
		}
	}
}

// A body is decoded only when the answer depends on it.
func TestBodiesAreLeftAlone(t *testing.T) {
	for text, asks := range map[string]bool{
		"state:waiting acme": false, "acme state:waiting": false, "state:parked OR acme": false, "timeout": true, "body.x:1 queue:orders.eu": true, "-(queue:orders.eu OR acme)": false,
	} {
		q, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		q.Match(noon, parked(), func() *decode.Result { n++; return nil })
		if !q.NeedsBody() || n > 1 || n == 1 != asks && text != "timeout" {
			t.Errorf("%s: needs the body %v, asked %d times", text, q.NeedsBody(), n)
		}
	}
}

// A query and a body that are made for each other cost no more than others.
func TestHostileQueriesAndBodies(t *testing.T) {
	l := parked()
	l.Record.Message.Body = bytes.Repeat([]byte("aaaaaaA"), 1<<20)
	body := &decode.Result{Text: string(l.Record.Message.Body), Inner: l.Record.Message.Body}
	for text, want := range map[string]bool{
		strings.Repeat("a", 3999): true, strings.Repeat("a", 3998) + "b": false,
	} {
		q, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := q.Match(noon, l, func() *decode.Result { return body }); got != want {
			t.Errorf("%.10s…: %v", text, got)
		}
	}
	for text, want := range map[string]string{
		strings.Repeat("a ", 31):                                  "more than 30 conditions are about bodies",
		"body.x:" + strings.Repeat("*a", 101):                     "more than 200 characters together",
		"body." + strings.Repeat("a.", 50) + "a:1":                "more than 50 parts",
		strings.Repeat("body.x:*"+strings.Repeat("a", 99)+" ", 3): "more than 200 characters together",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s…: %v", text, err)
		}
	}
}

func TestAPartOfATextIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.StringMatching(`[abA]{0,30}`).Draw(t, "text")
		part := rapid.StringMatching(`[abB]{1,6}`).Draw(t, "part")
		lower := strings.ToLower(part)
		if got := containsFold(in, &literal{lower: lower, borders: bordersOf(lower)}); got != strings.Contains(strings.ToLower(in), lower) {
			t.Fatalf("%v", got)
		}
	})
}
