package query

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const anID = "0193e0a4-5f00-7000-8000-0123456789ab"

// parked is the message that most tests match.
func parked() *store.Listed {
	return &store.Listed{BodySize: 1500, Record: &store.Record{
		ID: uuid.MustParse(anID), Queue: "orders.eu", State: store.Parked, Due: noon.Add(-time.Hour), Failures: 8, Replays: 2, Reason: "rejected",
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
		"error:/timeout after [0-9]+s/": false, "error:/Timeout after [0-9]+s/": true, `error:/(?i)TIMEOUT|none/ attempt:8`: true,
		"queue:/^orders[.]/": true, "queue:/^rders/": false, "type:/Placed$/": true, "header.tenant:/^ac/": true, "header.none:/./": false,
		"body.order.items.sku:/^B-/": true, "text:/ACME [A-Z]td/": true, "id:/^0193e0a4-/": true, "error:/x\\/y/": false,
		"error:/(zzz){0,2}/": true, "error:/(zzz){1,2}/": false, "error:/zzz|[0-9]+s/": true, "error:/zzz|yyy/": false, "error:/zzz|[0-9]+/": true, "error:/(?i)CONNECTION t/": true,
		"error:/(Conn|zzz)ection (x*)Time/": true, "error:/zzz?/": false, "error:/(After|after)+ 30/": true,
		"exception:*": false, "rule:*": false, "acme or nowhere": true, "nowhere or acme": true, "acme and nowhere": false,
		"replays:>0": true, "replays:2": true, "replays:>2": false, "attempt:8": true, "attempt:8.0": true, "attempt:>7": true, "attempt:>8": false, "attempt:>=8": true, "attempt:<9": true, "attempt:<=7": false, "attempt:<=8": true, "attempt:<8": false, "attempt:8..9": true, "attempt:1..7": false,
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
	all["group:"+g.Everywhere().String()] = true
	all["group:"+errorgroup.Of("q", "", "another", "").Everywhere().String()] = false
	all["group:0000000000000000"] = false
	for text, want := range all {
		q, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		expect.Equal(t, matches(q, parked()), want, "%s matches", text)
	}
	// One that its queue counts among its other errors is in their group, in all queues too, and not in that of its error.
	counted := errorgroup.Other(l.Record.Queue, 1)
	for id, want := range map[errorgroup.ID]bool{counted.ID: true, counted.Everywhere(): true, g.ID: false, g.Everywhere(): false} {
		n := parse(t, "group:"+id.String()).Narrow(noon, nil, nil)
		n.GroupOf = func(*store.Record) errorgroup.ID { return counted.ID }
		expect.Equal(t, n.Match(l, func() *decode.Result { return nil }), want, "it is in %s", id)
	}
	for text, want := range map[string]bool{"due:<10m": true, "due:<5m": false, "due:<=5m": true, "due:>1m": true, "due:1m..10m": true, "due:<0s": false, "due:<-5m": false, "due:2026-11-21": true, "parked:*": false, "why:*": false} {
		q := parse(t, text)
		expect.Equal(t, matches(q, corpus[1]), want, "waiting: %s matches", text)
	}
}

// A body is decoded only when the answer depends on it.
func TestBodiesAreLeftAlone(t *testing.T) {
	for text, asks := range map[string]bool{
		"state:waiting acme": false, "acme state:waiting": false, "state:parked OR acme": false, "timeout": true, "body.x:1 queue:orders.eu": true, "-(queue:orders.eu OR acme)": false,
	} {
		q := parse(t, text)
		n := 0
		q.Match(noon, parked(), func() *decode.Result { n++; return nil })
		if !q.NeedsBody() || n > 1 || n == 1 != asks && text != "timeout" {
			t.Errorf("%s: needs the body %v, asked %d times", text, q.NeedsBody(), n)
		}
	}
}

// A query and a body that are made for each other to be slow cost no more than others.
func TestHostileQueriesAndBodies(t *testing.T) {
	l := parked()
	l.Record.Message.Body = bytes.Repeat([]byte("aaaaaaA"), 1<<20)
	body := &decode.Result{Text: string(l.Record.Message.Body), Inner: l.Record.Message.Body}
	for text, want := range map[string]bool{
		strings.Repeat("a", 3999): true, strings.Repeat("a", 3998) + "b": false,
	} {
		q := parse(t, text)
		expect.Equal(t, q.Match(noon, l, func() *decode.Result { return body }), want, "%.10s…", text)
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

func parse(t *testing.T, text string) *Query {
	t.Helper()
	q, err := Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return q
}

// Numbers are compared by value, however they are written.
func TestNumbersAreCompared(t *testing.T) {
	ascending := []string{"-1e30", "-1000", "-12.5", "-5", "-4", "-.5", "0", "1e-3", ".5", "4", "5", "12.5", "1000", "1001", "1e30"}
	for i, a := range ascending {
		for j, b := range ascending {
			x, okX := parseDecimal(a)
			y, okY := parseDecimal(b)
			if want := min(max(i-j, -1), 1); !okX || !okY || x.compare(y) != want {
				t.Errorf("%s and %s compare as %d, want %d", a, b, x.compare(y), want)
			}
		}
	}
	for _, same := range [][]string{{"5", "+5", "05", "5.0", "50e-1", "0.5e1", "5E0"}, {"0", "-0", "+0.00", "0e9"}, {"-5", "-05.0"}} {
		for _, s := range same {
			a, _ := parseDecimal(same[0])
			if b, ok := parseDecimal(s); !ok || a.compare(b) != 0 {
				t.Errorf("%s is not %s", s, same[0])
			}
		}
	}
	for _, none := range []string{"", "-", "+", "e5", "5.", ".", "1e", "--1", "+-1", "1x", "1.2.3", "1e2e3"} {
		if d, ok := parseDecimal(none); ok {
			t.Errorf("%q is the number %+v", none, d)
		}
	}
}

func TestSpansAndSizes(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1d12h": 36 * time.Hour, "1w1d1h1m1s1ms1us1ns": 8*24*time.Hour + time.Hour + time.Minute + time.Second + time.Millisecond + time.Microsecond + 1,
		"-5m": -5 * time.Minute, "1.5h": 90 * time.Minute, "0s": 0, "3000w": 3000 * 7 * 24 * time.Hour,
	} {
		if d, ok := ParseDuration(text); !ok || d != want {
			t.Errorf("%s is %s, %v; want %s", text, d, ok, want)
		}
	}
	for _, none := range []string{"", "-", "5", "h", "5x", "1h2", "1.2.3h", "5000w", "-5000w"} {
		if d, ok := ParseDuration(none); ok {
			t.Errorf("%q is %s", none, d)
		}
	}
	for text, want := range map[string]int64{"7": 7, "7b": 7, "1kb": 1000, "1KiB": 1 << 10, "1mb": 1e6, "1MiB": 1 << 20, "1gb": 1e9, "1GiB": 1 << 30, "1.5kb": 1500, ".5b": 1,
		"9007199254740992": 1 << 53} {
		if n, ok := parseSize(text); !ok || n.compare(fromInt(want)) != 0 {
			t.Errorf("%s is %+v, %v; want %d", text, n, ok, want)
		}
	}
	for _, none := range []string{"", "kb", "-1kb", "1e3", "1e3kb", "1.2.3kb", "9007199254740994", "10000000gb", "inf", "nan"} {
		if n, ok := parseSize(none); ok {
			t.Errorf("%q is %+v", none, n)
		}
	}
	longest := "2026-11-21T10:00:00." + strings.Repeat("0", 19) + "Z" // 40 characters
	if _, _, ok := parseTime(longest); !ok {
		t.Errorf("%s is no time", longest)
	}
	if _, _, ok := parseTime(longest[:39] + "0Z"); ok {
		t.Error("a text of 41 characters is a time")
	}
}

// All texts of two letters, in lower and upper case, and all their parts.
func TestEachPartOfEachTextIsFound(t *testing.T) {
	of := func(length int) (all []string) {
		for n := range 1 << length {
			b := make([]byte, length)
			for i := range b {
				b[i] = "az"[n>>i&1]
			}
			all = append(all, string(b))
		}
		return all
	}
	for length := range 9 {
		for _, text := range of(length) {
			for part := range 6 {
				for _, part := range of(part) {
					l := &literal{lower: part, borders: bordersOf(part)}
					if want := strings.Contains(text, part); containsFold(text, l) != want || containsFold(strings.ToUpper(text), l) != want {
						t.Fatalf("%q is in %q: %v", part, text, !want)
					}
				}
			}
		}
	}
	// Beyond ASCII too, also where capitals have other bytes.
	l := &literal{lower: "größe", borders: bordersOf("größe")}
	if !containsFold("DIE GRÖẞE", l) || containsFold("die grosse", l) {
		t.Error("größe is not found in capitals, or where it is not")
	}
}

func TestMoreMatches(t *testing.T) {
	l := parked()
	l.Record.Message.Headers["single"] = float32(0.25)
	l.Record.Message.Headers["none"] = []any{}
	l.Record.Message.Headers["minus"] = int64(-7)
	l.Record.Message.Headers["none in list"] = amqp.Table{"k": []any{}}
	for text, want := range map[string]bool{
		"attempt:1..8": true, "attempt:8..8": true, "attempt:9..10": false, `attempt:"1".."8"`: true, `attempt:"9".."10"`: false, "attempt:+8": true, "attempt:-8": false, "attempt:>-9": true,
		"header.single:0.25": true, "header.single:0.3": false, "header.none:*": true, "header.none:x": false, "header.minus:-7": true, "header.minus:7": false, "header.minus:<-6": true,
		"header.deep.list.2:*": false, "header.deep.list.0:1": true, "age:>2h59m": true, "age:>2h59m61s": false, "size:1500..1kib": false, "size:1kib..1mib": true,
	} {
		expect.Equal(t, matches(parse(t, text), l), want, "%s matches", text)
	}
	l.BodySize = 0
	if matches(parse(t, "text:*"), l) || !matches(parse(t, "size:0"), l) {
		t.Error("a message without a body has a text, or a size")
	}
}

func TestLimitsAndOddQueries(t *testing.T) {
	for _, text := range []string{
		strings.Repeat("a", 4000), strings.Repeat("a ", 30), strings.Repeat("queue:a ", 31), "body.x:*" + strings.Repeat("a", 199), "queue:*" + strings.Repeat("a", 300),
		`body.x:"*` + strings.Repeat("a", 300) + `"`, "body.x:" + strings.Repeat("a", 300), "body." + strings.Repeat("a.", 49) + "a:1", strings.Repeat("NOT ", 50) + "a",
		strings.Repeat("(", 50) + "a" + strings.Repeat(")", 50), "body.a:2026-11-01..2026-11-02",
	} {
		if q, err := Parse(text); err != nil || q == nil {
			t.Errorf("%.30s…: %v, %v", text, q, err)
		}
	}
	for text, want := range map[string]string{
		"a O": "text:a text:O", "O": "text:O", "a AN": "text:a text:AN", "a NO": "text:a text:NO", `a \`: `text:a text:\`,
	} {
		expect.Equal(t, parse(t, text).String(), want, "%s", text)
	}
	for text, want := range map[string]string{
		strings.Repeat("NOT ", 60) + "a": "nested more than 50 deep", "attempt:>=<5": `"<5": expected a number`, `queue:"a".."b"`: "expected a space", `attempt:>"1".."2"`: "expected a space",
		"body.a:2026-11-01..x": "a range of numbers or of times", "body.a:x..2026-11-01": "a range of numbers or of times", "body.a:1..2026-11-01": "a range of numbers or of times",
		"body.x:*" + strings.Repeat("a", 200): "more than 200 characters",
		`attempt:"1".."`:                      "no second quote", `before:"2026-11-01".."2026-11-02"`: "expected a range such as",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30s…: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]bool{"queue:a": false, "attempt:1 state:parked": false, "a": true, "-body.x:1": true} {
		if parse(t, text).NeedsBody() != want {
			t.Errorf("%s needs the body: %v", text, !want)
		}
	}
	for _, f := range Fields() {
		if short := f.Name == "before" || f.Name == "after"; short != (f.Takes == "a date or a time") {
			t.Errorf("%s takes %s", f.Name, f.Takes)
		}
	}
}

func groupID(n int) errorgroup.ID { return errorgroup.ID{byte(n >> 8), byte(n)} }

func TestGroups(t *testing.T) {
	for text, field := range map[string]string{
		"queue:a state:parked reason:rejected error:x type:T note:n acme": "", "group:5a1f0c2b9e3d4a76": "", "": "",
		"queue:a attempt:1 size:1": "attempt", "header.x:1": "header.", "-id:x": "id",
	} {
		err := parse(t, text).OnlyGroups()
		if (err == nil) != (field == "") || err != nil && !strings.Contains(err.Error(), "groups have no "+field+",") {
			t.Errorf("%s: %v", text, err)
		}
	}
	g := store.GroupCount{Note: "ask ACME"}
	g.ID, g.Queue, g.Reason, g.Pattern, g.Type = groupID(1), "orders", "rejected", "timeout after * s", "T"
	for state, count := range map[string]*int64{"waiting": &g.Waiting, "parked": &g.Parked, "discarded": &g.Discarded} {
		for _, n := range []int64{1, 5} {
			g.Waiting, g.Parked, g.Discarded = 0, 0, 0
			*count = n
			for _, asked := range []string{"waiting", "parked", "discarded", "retried"} {
				expect.Equal(t, parse(t, "state:"+asked).MatchGroup(&g), (asked == state),
					"%d %s are state:%s", n, state, asked)
			}
		}
	}
	g.Waiting, g.Parked, g.Discarded = 1, 2, 3
	all := map[string]bool{"state:waiting": true, "state:parked": true, "state:discarded": true, "state:retried": false, "-state:parked": true, "": true,
		"queue:orders": true, "queue:mail": false, "error:timeout": true, "note:acme": true, "acme": true, "timeout": true, "nowhere": false, "type:T": true, "reason:rejected": true,
		"group:" + g.ID.String(): true, "group:" + groupID(2).String(): false, "group:" + groupID(3).String(): true}
	g.Error = groupID(3)
	for text, want := range all {
		expect.Equal(t, parse(t, text).MatchGroup(&g), want, "%s", text)
	}
	// One without messages has its note still.
	g.Waiting, g.Parked, g.Discarded = 0, 0, 0
	for text, want := range map[string]bool{"": true, "acme": true, "state:parked": false, "-state:parked": true} {
		expect.Equal(t, parse(t, text).MatchGroup(&g), want, "without messages %s", text)
	}
	g.Waiting, g.Parked = 1, 1
	if parse(t, "-state:waiting -state:parked").MatchGroup(&g) {
		t.Error("its messages are in neither of these states")
	}
	g.Waiting, g.Discarded = 0, 1
	if parse(t, "-state:parked -state:discarded").MatchGroup(&g) {
		t.Error("its messages are in neither of these states")
	}
}

func TestWhatIsNarrowed(t *testing.T) {
	day := func(n int) time.Time { return time.Date(2026, 11, n, 0, 0, 0, 0, time.UTC) }
	queues := []string{"orders", "mail"}
	for _, c := range []struct {
		text     string
		queues   []string
		none     bool
		state    store.State
		in       []string
		from, to time.Time
	}{
		{"", queues, false, 0, queues, time.Time{}, time.Time{}},
		{"", nil, true, 0, nil, time.Time{}, time.Time{}},
		{"queue:orders", queues, false, 0, []string{"orders"}, time.Time{}, time.Time{}},
		{"queue:none", queues, true, 0, nil, time.Time{}, time.Time{}},
		{"state:retried", queues, true, 0, queues, time.Time{}, time.Time{}},
		{"state:parked state:waiting", queues, true, 0, queues, time.Time{}, time.Time{}},
		{"state:discarded", queues, false, store.Discarded, queues, time.Time{}, time.Time{}},
		{"parked:>=2026-11-01 parked:<2026-11-08 parked:<2026-11-05 parked:>=2026-11-03", queues, false, store.Parked, queues, day(3), day(5)},
		{"parked:>=2026-11-05 parked:<2026-11-05", queues, true, store.Parked, queues, day(5), day(5)},
		{"parked:>=2026-11-05 parked:<2026-11-06", queues, false, store.Parked, queues, day(5), day(6)},
		{"parked:>=2026-11-05", queues, false, store.Parked, queues, day(5), time.Time{}},
		{"parked:<2026-11-05", queues, false, store.Parked, queues, time.Time{}, day(5)},
	} {
		n := parse(t, c.text).Narrow(noon, c.queues, nil)
		if r := n.Range; n.None != c.none || r.State != c.state || !slices.Equal(r.Queues, c.in) || !r.From.Equal(c.from) || !r.To.Equal(c.to) {
			t.Errorf("%q of %q: %+v, none: %v", c.text, c.queues, n.Range, n.None)
		}
	}
	for text, want := range map[string]bool{"state:retried": true, "state:retried queue:a": true, "": false, "state:parked": false, "-state:parked": false, "queue:a": false} {
		if parse(t, text).OnlyRetried() != want {
			t.Errorf("%s means only retried ones: %v", text, !want)
		}
	}
}

// The sizes of groups decide whether to scan groups, and in which state.
func TestNarrowingByGroups(t *testing.T) {
	group := func(n int, queue, reason string, waiting, parked, discarded int64) (g store.GroupCount) {
		g.ID, g.Queue, g.Reason, g.Waiting, g.Parked, g.Discarded = groupID(n), queue, reason, waiting, parked, discarded
		return g
	}
	queues := []string{"a", "b"}
	for name, c := range map[string]struct {
		text    string
		groups  []store.GroupCount
		want    []errorgroup.ID
		state   store.State
		none    bool
		notSure bool
	}{
		"a tenth":              {"reason:expired", []store.GroupCount{group(1, "a", "expired", 3, 3, 4), group(2, "a", "rejected", 30, 30, 30)}, []errorgroup.ID{groupID(1)}, 0, false, false},
		"more than a tenth":    {"reason:expired", []store.GroupCount{group(1, "a", "expired", 3, 4, 4), group(2, "a", "rejected", 30, 30, 30)}, nil, 0, false, false},
		"of waiting ones":      {"reason:expired", []store.GroupCount{group(1, "a", "expired", 11, 0, 0), group(2, "a", "rejected", 89, 0, 0)}, nil, 0, false, false},
		"of parked ones":       {"reason:expired", []store.GroupCount{group(1, "a", "expired", 0, 11, 0), group(2, "a", "rejected", 0, 89, 0)}, nil, 0, false, false},
		"of discarded ones":    {"reason:expired", []store.GroupCount{group(1, "a", "expired", 0, 0, 11), group(2, "a", "rejected", 0, 0, 89)}, nil, 0, false, false},
		"of two groups":        {"reason:expired", []store.GroupCount{group(1, "a", "expired", 0, 6, 0), group(3, "b", "expired", 0, 6, 0), group(2, "a", "rejected", 88, 0, 0)}, nil, 0, false, false},
		"one group by its id":  {"group:" + groupID(1).String(), []store.GroupCount{group(1, "a", "expired", 1, 1, 90), group(2, "a", "rejected", 3, 3, 3)}, []errorgroup.ID{groupID(1)}, 0, false, false},
		"parked ones only":     {"group:" + groupID(1).String(), []store.GroupCount{group(1, "a", "expired", 0, 1, 0), group(2, "a", "rejected", 3, 3, 3)}, []errorgroup.ID{groupID(1)}, store.Parked, false, false},
		"discarded ones only":  {"group:" + groupID(1).String(), []store.GroupCount{group(1, "a", "expired", 0, 0, 1), group(2, "a", "rejected", 3, 3, 3)}, []errorgroup.ID{groupID(1)}, store.Discarded, false, false},
		"waiting ones only":    {"group:" + groupID(1).String(), []store.GroupCount{group(1, "a", "expired", 1, 0, 0), group(2, "a", "rejected", 3, 3, 3)}, []errorgroup.ID{groupID(1)}, 0, false, false},
		"waiting and parked":   {"group:" + groupID(1).String(), []store.GroupCount{group(1, "a", "expired", 1, 1, 0), group(2, "a", "rejected", 3, 3, 3)}, []errorgroup.ID{groupID(1)}, 0, false, false},
		"waiting, discarded":   {"group:" + groupID(1).String(), []store.GroupCount{group(1, "a", "expired", 1, 0, 1), group(2, "a", "rejected", 3, 3, 3)}, []errorgroup.ID{groupID(1)}, 0, false, false},
		"a state of its own":   {"state:waiting group:" + groupID(1).String(), []store.GroupCount{group(1, "a", "expired", 0, 0, 1), group(2, "a", "rejected", 3, 3, 3)}, []errorgroup.ID{groupID(1)}, store.Waiting, false, false},
		"no group":             {"group:" + groupID(9).String(), []store.GroupCount{group(1, "a", "expired", 0, 0, 1)}, nil, 0, true, true},
		"all groups":           {"reason:expired", []store.GroupCount{group(1, "a", "expired", 0, 0, 1), group(2, "b", "expired", 0, 0, 1)}, nil, 0, false, false},
		"nothing about groups": {"attempt:>1", []store.GroupCount{group(1, "a", "expired", 0, 0, 1), group(2, "b", "expired", 0, 0, 1)}, nil, 0, false, true},
	} {
		n := parse(t, c.text).Narrow(noon, queues, c.groups)
		if !slices.Equal(n.Range.Groups, c.want) || n.Range.State != c.state || n.None != c.none || n.Sure == c.notSure {
			t.Errorf("%s: %+v, none: %v, sure: %v", name, n.Range, n.None, n.Sure)
		}
	}
	for size, want := range map[int]int{maxGroups: maxGroups, maxGroups + 1: 0} {
		groups := []store.GroupCount{group(1, "b", "expired", 0, 1_000_000, 0)}
		for i := range size {
			groups = append(groups, group(i+2, "a", "rejected", 0, 1, 0))
		}
		if n := parse(t, "reason:rejected").Narrow(noon, queues, groups); len(n.Range.Groups) != want {
			t.Errorf("of %d rare groups %d are gone through, want %d", size, len(n.Range.Groups), want)
		}
	}
	// A group of two reasons: it depends on which.
	g := group(1, "a", "rejected", 1, 1, 1)
	g.Pattern, g.Reasons = "timeout", store.ReasonsOf("rejected")|store.ReasonsOf("expired")
	for text, want := range map[string]int{"reason:rejected": 0, "reason:maxlen": -1, "-reason:maxlen": 1, "reason:rejected OR reason:expired": 1, "queue:b": -1, "": 1} {
		expect.Equal(t, parse(t, text).Says(0, "a", &g), want, "%s says … of it", text)
	}
}

// When only some ids can match, a store looks for these alone.
func TestIDs(t *testing.T) {
	a, b := anID, strings.Replace(anID, "0193", "0194", 1)
	for text, want := range map[string][]string{
		"id:" + a: {a}, "id:" + a + " state:parked": {a}, "state:parked id:" + a: {a}, "id:" + a + " OR id:" + b: {a, b}, "(id:" + a + " OR id:" + b + ") queue:q": {a, b},
		"": nil, "id:*": nil, "id:0193*": nil, "queue:" + a: nil, "-id:" + a: nil, "id:" + a + " OR queue:q": nil, "message_id:" + a: nil,
	} {
		ids, ok := parse(t, text).IDs()
		var got []string
		for _, id := range ids {
			got = append(got, id.String())
		}
		slices.Sort(got)
		if ok != (want != nil) || !slices.Equal(got, want) {
			t.Errorf("%s can match %q, %v; want %q", text, got, ok, want)
		}
	}
	if id, ok := ParseID(strings.ToUpper(anID)); !ok || id != uuid.MustParse(anID) {
		t.Error("an id in capitals is none")
	}
}

// A missing value is an error, except for a text in a header or a body, which may be empty.
func TestAValueIsMissing(t *testing.T) {
	for text, missing := range map[string]bool{`queue:`: true, `queue:""`: true, `error:""`: true, `header.x:`: true, `body.x:`: true, `header.x:""`: false, `body.x:""`: false} {
		_, err := Parse(text)
		if (err != nil) != missing || missing && !strings.Contains(err.Error(), "expected a value") {
			t.Errorf("%s: %v; missing: %v", text, err, missing)
		}
	}
}

func TestAnErrorCountsCharactersFromOne(t *testing.T) {
	for text, want := range map[string]string{`qeue:orders`: "query, character 1: ", `größe queue:`: "query, character 13: "} {
		if _, err := Parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// Two letters are enough to propose a field, one is not.
func TestTheNearestFieldIsProposed(t *testing.T) {
	for word, want := range map[string]string{"quux": ", perhaps queue", "QU": ", perhaps queue", "qx": "", "q": "", "zz": ""} {
		expect.Equal(t, nearest(word), want, "%s", word)
	}
}

// Each field is a column, but for what is none of its own; a column shows what its field is compared with.
func TestColumns(t *testing.T) {
	of := func(id *store.Record) errorgroup.ID { return groupID(0x102) }
	for _, c := range []struct{ text, want string }{
		{"queue, error,queue", "orders.eu|Connection Timeout after 30s"},
		{"state,group,attempt,size", "parked|0102000000000000|8|1500"},
		{"parked,due,failed,age", "2026-11-21T11:00:00Z||2026-11-21T09:00:00Z|2026-11-21T09:00:00Z"},
		{"header.tenant,header.at,header.a.b,header.deep.list,header.deep", "acme|2026-11-21T12:00:00Z|dotted|1, …|…"},
		{"body.order.id,body.order.items.sku,body.nothing", "9007199254740993|A-1, B-2|"},
		{"", ""},
	} {
		columns, err := Columns(c.text)
		expect.NoError(t, err)
		var got []string
		for _, column := range columns {
			got = append(got, column.Of(parked(), of, func() *decode.Result {
				if !column.NeedsBody() {
					t.Errorf("%s: the body is decoded", column.Name)
				}
				return decoded()
			}))
		}
		expect.Equal(t, strings.Join(got, "|"), c.want, "%s", c.text)
	}
	for text, want := range map[string]string{
		"qeue": `there is no column "qeue" (did you mean "queue"?)`, "queue,text": `there is no column "text"`, "zzz": `there is no column "zzz"; expected one of: queue, state, reason, error, exception, group, attempt, replays, age, due, parked, ` +
			"failed, first, why, note, policy, rule, adopted, id, size, exchange, key, type, content_type, message_id, correlation_id, app_id, header.NAME, body.PATH",
		"before": `there is no column "before"`, "header.": `the column "header." has no name`,
		"body": `the column "body" has no name or path, as in header.tenant or body.order.id`, "id,queue,state,reason,error,group,age,why,note,size,key": "these are more than 10 columns",
		strings.Repeat("x", 1025): "the names of the columns are longer than 1024 bytes",
	} {
		if _, err := Columns(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
	long := map[string]any{"x": []any{strings.Repeat("é", 999), "2", "3", "4", "5", "6", "7"}}
	if got := valuesAt(long, "x"); got != strings.Repeat("é", 250)+"…, 2, 3, 4, 5, …" {
		t.Errorf("%q", got)
	}
}

// A text that is not ASCII is also found ignoring case.
func TestLettersBeyondASCIIAreFoundInCapitals(t *testing.T) {
	for _, text := range []string{"öü", "ÖÜ", "Öü", "größe", "GRÖSSE ÖÜ"} {
		l := parked()
		l.Record.Error = "GRÖßE grösse ÖÜ"
		if !matches(parse(t, Quote(text)), l) {
			t.Errorf("%s is not found in %s", text, l.Record.Error)
		}
	}
}

// A duration is less than a quarter of Go's maximum, so that it can be subtracted from a time.
func TestTheLongestDuration(t *testing.T) {
	for s, want := range map[string]bool{"2305843009213693000ns": true, "2305843009213693952ns": false, "-2305843009213693952ns": false, "80w": true, "9999999w": false} {
		if _, ok := ParseDuration(s); ok != want {
			t.Errorf("%s is a duration: %v, want %v", s, ok, want)
		}
	}
}

// Conditions on a state and on a queue are evaluated together.
func TestAStateAndAQueueAreBothKnown(t *testing.T) {
	for text, want := range map[string]int{"state:parked queue:q": 1, "state:waiting queue:q": -1, "state:parked queue:other": -1, "state:parked OR queue:other": 1, "state:parked attempt:3": 0} {
		q := parse(t, text)
		expect.Equal(t, q.Says(store.Parked, "q", nil), want, "%s says … of what is parked for q", text)
	}
}

// A float is compared in the shortest form that represents it.
func TestNumbersAreWrittenWithAllDigits(t *testing.T) {
	for v, want := range map[any]string{1.25: "1.25", float32(0.1): "0.1", 1234.5678: "1234.5678", 1e21: "1e+21", int64(-7): "-7", amqp.Decimal{Scale: 2, Value: 1250}: "1250e-2"} {
		if got, ok := Text(v); !ok || got != want {
			t.Errorf("%T %v is %q, want %q", v, v, got, want)
		}
	}
}

// Match reports whether the query matches a message, at a moment.
func (q *Query) Match(now time.Time, l *store.Listed, decoded func() *decode.Result) bool {
	return q.match(&env{now: now, l: l, groupOf: ofItself}, decoded)
}

// String returns the query in its canonical form, which parses to the same query.
func (q *Query) String() string {
	if q.root == nil {
		return ""
	}
	return formOf(q.root, true)
}

// formOf returns the canonical form of a part; alone: it needs no parentheses.
func formOf(n node, alone bool) string {
	switch n := n.(type) {
	case and:
		return joined(n, " ", alone)
	case or:
		return joined(n, " OR ", alone)
	case not:
		return "-" + formOf(n.of, false)
	}
	return n.(*term).form()
}

func joined(all []node, with string, alone bool) string {
	parts := make([]string, len(all))
	for i, n := range all {
		parts[i] = formOf(n, false)
	}
	s := strings.Join(parts, with)
	if !alone {
		s = "(" + s + ")"
	}
	return s
}

func (t *term) form() string {
	name := t.field.name
	if path := t.path; path != "" {
		if strings.ContainsFunc(path, ends) || strings.Contains(path, ":") {
			path = Quote(path)
		}
		name += path
	}
	switch t.op {
	case exists:
		return name + ":*"
	case between:
		return name + ":" + t.a.form() + ".." + t.b.form()
	}
	return name + ":" + string(t.op) + t.a.form()
}

func (l literal) form() string {
	if l.expression != nil {
		return "/" + l.text + "/"
	}
	if l.quoted {
		return Quote(l.text)
	}
	return l.text
}
