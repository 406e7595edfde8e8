package retry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/headers"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// errorOf is a message in EasyNetQ's error queue, with its type as DefaultTypeNameSerializer.cs writes it.
func errorOf(body string) wire.Message {
	return wire.Message{Exchange: "ErrorExchange_order.created", RoutingKey: "order.created", DeliveryMode: 2,
		Type: "EasyNetQ.SystemMessages.Error, EasyNetQ", Body: []byte(body)}
}

// adopt parks one message and returns it as it is kept.
func adopt(t *testing.T, m wire.Message) *store.Record {
	t.Helper()
	return adoptedOf(t, Adoption{}, wire.Delivery{Message: m})[0]
}

// What EasyNetQ writes, as its sources have it: Source/EasyNetQ/Consumer/DefaultConsumeErrorStrategy.cs and
// DefaultErrorMessageSerializer.cs, SystemMessages/Error.cs. The message comes out of its envelope, is shown
// and published so, and stays with the envelope as it came.
func TestAMessageOfEasyNetQComesOutOfItsEnvelope(t *testing.T) {
	const facts = `"RoutingKey":"order.created","Exchange":"shop","Queue":"orders_billing",
		"Exception":"System.InvalidOperationException: no stock\n   at Shop.Ship()",
		"DateTime":"2026-11-20T10:00:00.1234567Z",`
	for name, c := range map[string]struct {
		envelope, typ string
		want          wire.Message
	}{
		// Version 8: Serialization/MessagePropertiesConverter.cs, JsonHeaderExtensions.cs, JsonHeaderType.cs. .NET's
		// client has texts of headers as bytes.
		"version 8": {envelope: `{` + facts + `"Message":"{\u0022Id\u0022:7,\u0022Name\u0022:\u0022\u00E4\u0022}",
			"BasicProperties":{"ContentType":"application/json","ContentEncoding":"utf-8","DeliveryMode":2,"Priority":3,
			"CorrelationId":"c1","ReplyTo":"answers","Expiration":"00:01:00","MessageId":"m1","Timestamp":1700000000,
			"Type":"Shop.Order, Shop","UserId":"root","AppId":"a","ClusterId":"x","Headers":{
			"null":{"Type":1,"Value":null},"bool":{"Type":2,"Value":true},"byte":{"Type":3,"Value":255},
			"sbyte":{"Type":4,"Value":-1},"short":{"Type":5,"Value":-300},"int":{"Type":6,"Value":-70000},
			"uint":{"Type":7,"Value":4294967295},"long":{"Type":8,"Value":-9007199254740993},
			"float":{"Type":9,"Value":1.5},"double":{"Type":10,"Value":2.25},"decimal":{"Type":11,"Value":-12.34},
			"time":{"Type":12,"Value":1700000000},"string":{"Type":13,"Value":"s"},"text":{"Type":14,"Value":"aMOk"},
			"list":{"Type":15,"Value":[{"Type":6,"Value":1},{"Type":14,"Value":"YQ=="}]},
			"table":{"Type":16,"Value":{"n":{"Type":6,"Value":1}}},"bytes":{"Type":17,"Value":"AP8="},
			"CC":{"Type":15,"Value":[{"Type":14,"Value":"cGF5cm9sbA=="}]},"BCC":{"Type":13,"Value":"payroll"},
			"x-redrive-user-id":{"Type":13,"Value":"root"}}}}`,
			want: wire.Message{ContentType: "application/json", ContentEncoding: "utf-8", DeliveryMode: 2, Priority: 3,
				CorrelationID: "c1", ReplyTo: "answers", MessageID: "m1", Timestamp: time.Unix(1700000000, 0),
				Type: "Shop.Order, Shop", AppID: "a", Body: []byte(`{"Id":7,"Name":"ä"}`), Headers: amqp.Table{
					"null": nil, "bool": true, "byte": uint8(255), "sbyte": int8(-1), "short": int16(-300),
					"int": int32(-70000), "uint": uint32(4294967295), "long": int64(-9007199254740993),
					"float": float32(1.5), "double": 2.25, "decimal": amqp.Decimal{Scale: 2, Value: -1234},
					"time": time.Unix(1700000000, 0), "string": "s", "text": "hä",
					"list": []any{int32(1), "a"}, "table": amqp.Table{"n": int32(1)}, "bytes": []byte{0, 255}}}},
		// With names that begin with a small letter, and a body of Base64ErrorMessageSerializer.cs.
		"camel case, base64": {envelope: `{"routingKey":"order.created","exchange":"shop","queue":"orders_billing",
			"exception":"System.InvalidOperationException: no stock\n   at Shop.Ship()",
			"dateTime":"2026-11-20T10:00:00Z","message":"eyJJZCI6N30=","basicProperties":{"type":"Shop.Order",
			"headers":{"n":{"type":6,"value":1}}}}`,
			want: wire.Message{Type: "Shop.Order", Body: []byte(`{"Id":7}`), Headers: amqp.Table{"n": int32(1)}}},
		// Before version 7: Newtonsoft.Json, which names the types of objects; LegacyTypeNameSerializer.cs.
		"Newtonsoft": {typ: "EasyNetQ.SystemMessages.Error:EasyNetQ", envelope: `{` + facts + `"Message":"{\"Id\":7}",
			"BasicProperties":{"ContentType":null,"Headers":{"text":{"$type":"System.Byte[], mscorlib","$value":"YQ=="},
			"n":1,"f":1.5,"plain":"p","list":{"$type":"System.Collections.Generic.List, mscorlib",
			"$values":[1,{"$type":"System.Byte[], mscorlib","$value":"YQ=="}]},
			"table":{"$type":"System.Collections.Generic.Dictionary, mscorlib","x":true}},
			"DeliveryMode":2,"Priority":0,"Type":"Shop.Order:Shop","HeadersPresent":true,"TypePresent":true}}`,
			want: wire.Message{DeliveryMode: 2, Type: "Shop.Order:Shop", Body: []byte(`{"Id":7}`), Headers: amqp.Table{
				"text": "a", "n": int64(1), "f": 1.5, "plain": "p", "list": []any{int64(1), "a"},
				"table": amqp.Table{"x": true}}}},
	} {
		came := errorOf(c.envelope)
		if c.typ != "" {
			came.Type = c.typ
		}
		r := adopt(t, came)
		got := fmt.Sprint(r.Queue, " ", r.Message.Exchange, " ", r.Message.RoutingKey, " ",
			r.FailedAt.UTC().Format(time.DateTime), " ", r.Error, r.Notes)
		expect.Equal(t, got, "orders_billing shop order.created 2026-11-20 10:00:00 "+
			"System.InvalidOperationException: no stock\n   at Shop.Ship()[]", "%s: it says", name)
		expect.Equal(t, string(Unwrapped(r).Body), string(c.want.Body), "%s: is shown", name)
		original := *r.Envelope
		original.Body, original.Exchange, original.RoutingKey = r.Message.Body, came.Exchange, came.RoutingKey
		if d := cmp.Diff(came, original, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s: it is not kept as it came (-came +kept):\n%s", name, d)
		}

		sent := published(r)
		h, own, _ := headers.Read(sent, r.Queue, false, time.Now())
		if !own || h.ID != r.ID.String() || h.UserID != "" {
			t.Errorf("%s: when it fails again it is read as %+v, its own: %t", name, h, own)
		}
		c.want.Exchange, c.want.RoutingKey = "shop", "order.created"
		sent.Headers = headers.Clean(sent.Headers)
		if d := cmp.Diff(c.want, *sent); d != "" {
			t.Errorf("%s: it is published with (-want +got):\n%s", name, d)
		}
	}
}

// An envelope that is not EasyNetQ's, or is hostile, is adopted as it is, with a note, and published so.
func TestAnEnvelopeThatCannotBeReadStaysAsItIs(t *testing.T) {
	withProperties := func(p string) string { return `{"Message":"m","Queue":"orders","BasicProperties":` + p + `}` }
	withHeader := func(h string) string { return withProperties(`{"Headers":{"h":` + h + `}}`) }
	long := strings.Repeat("x", 256)
	for name, envelope := range map[string]string{
		"empty": "", "no JSON": "{", "more behind it": `{"Message":"m"}{}`, "no object": `[]`, "null": `null`,
		"not text": "{\"Message\":\"\xff\"}", "no message": `{"Queue":"orders"}`,
		"a message that is null":    `{"Message":null}`,
		"a message that is no text": `{"Message":{}}`, "a queue that is no text": `{"Message":"m","Queue":7}`,
		"properties that are none": withProperties(`[]`), "a long property": withProperties(`{"Type":"` + long + `"}`),
		"a number too large":         withProperties(`{"Priority":256}`),
		"a time that is none":        withProperties(`{"Timestamp":"now"}`),
		"headers that are none":      withProperties(`{"Headers":[]}`),
		"a long header name":         withProperties(`{"Headers":{"` + long + `":1}}`),
		"an unknown type":            withHeader(`{"Type":99,"Value":1}`),
		"another type":               withHeader(`{"Type":6,"Value":"x"}`),
		"no base64":                  withHeader(`{"Type":14,"Value":"*"}`),
		"an int that is too large":   withHeader(`{"Type":6,"Value":2147483648}`),
		"a decimal that is too long": withHeader(`{"Type":11,"Value":0.` + strings.Repeat("0", 300) + `}`),
		"a float that is too large":  withHeader(`1e999`),
		"nested deep":                withHeader(strings.Repeat(`[`, 40) + strings.Repeat(`]`, 40)),
		"nested too deep for JSON":   strings.Repeat(`{"Message":`, 20000),
		"many values":                withHeader(`[1` + strings.Repeat(`,1`, maxHeaderValues) + `]`),
		"huge headers":               withHeader(`"` + strings.Repeat("x", maxEnvelopeHeaders) + `"`),
		"huge":                       `{"Message":"` + strings.Repeat("x", maxEnvelope) + `"}`,
	} {
		m := errorOf(envelope)
		m.Headers = amqp.Table{"x-death": []any{death("errors", "expired", 1, time.Now().Add(-time.Hour))}}
		r := adopt(t, m)
		note := strings.Join(r.Notes, "; ")
		if r.Envelope != nil || r.Format != "" || !strings.HasPrefix(note, "its envelope (easynetq) cannot be read") {
			t.Errorf("%s: it is kept as %q with %q", name, r.Format, r.Notes)
		}
		sent := published(r)
		if r.Queue != "errors" || sent.Type != m.Type || !bytes.Equal(sent.Body, m.Body) {
			t.Errorf("%s: it failed in %q, and is published as %.100q", name, r.Queue, sent.Body)
		}
	}
}

// What an envelope says is a claim, and no more.
func TestWhatAnEnvelopeSaysIsAClaim(t *testing.T) {
	r := adopt(t, errorOf(`{"Message":"m","Queue":"redrive.intake","Exchange":"`+strings.Repeat("e", 256)+`",
		"RoutingKey":"k","DateTime":"2999-01-01T00:00:00Z","Exception":"\u0000","BasicProperties":{}}`))
	exchange := r.Message.Exchange
	if r.Queue != "" || exchange != "ErrorExchange_order.created" || r.FailedAt.After(time.Now()) || r.Error != "\x00" {
		t.Errorf("it is kept as %+v", r)
	}
	// The body is a text that may be base64, or is no JSON: a note says what was done.
	for text, want := range map[string]string{
		"7": "7 []", "": " []", "no JSON": "no JSON []",
		`\ufffd`: "\ufffd [its body was not all text, which EasyNetQ's envelope loses unless it is written as base64]",
		"AP8=": "\x00\xff [EasyNetQ's envelope has its body as base64, or else as a text that looks like base64: " +
			"it was decoded]",
	} {
		r := adopt(t, errorOf(`{"Message":"`+text+`"}`))
		expect.Equal(t, fmt.Sprint(string(Unwrapped(r).Body), " ", r.Notes), want, "is %q", text)
	}
}

// A message that Redrive retried comes back in the envelope with its headers: its attempts count on.
func TestAMessageInAnEnvelopeIsKnownAgain(t *testing.T) {
	first := adopt(t, errorOf(`{"Message":"{}","Queue":"orders","BasicProperties":{}}`))
	sent := published(first)
	all := map[string]any{}
	for name, v := range sent.Headers {
		switch v := v.(type) {
		case string: // as .NET's client has it
			all[name] = map[string]any{"Type": 14, "Value": []byte(v)}
		case int64:
			all[name] = map[string]any{"Type": 8, "Value": v}
		case time.Time:
			all[name] = map[string]any{"Type": 12, "Value": v.Unix()}
		}
	}
	again, err := json.Marshal(map[string]any{"Message": "{}", "Queue": "orders",
		"BasicProperties": map[string]any{"Headers": all}})
	expect.NoError(t, err)
	r := adopt(t, errorOf(string(again)))
	expect.Equal(t, fmt.Sprint(r.ID, r.Failures, r.Notes), fmt.Sprint(first.ID, 1, " []"), "is the same message")
}

// Whatever is in an envelope, it is adopted and can be published.
func TestAnyEnvelopeIsAdopted(t *testing.T) {
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		kinds := []*rapid.Generator[any]{rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int().AsAny(),
			rapid.Float64Range(-1e300, 1e300).AsAny(), rapid.String().AsAny(),
			rapid.SampledFrom([]any{"YQ==", "2026-11-20T10:00:00Z", 0, 255}).AsAny()}
		if depth > 0 {
			typed := rapid.Custom(func(t *rapid.T) any {
				kind := rapid.IntRange(0, 18).Draw(t, "type")
				return map[string]any{"Type": kind, "Value": value(depth-1).Draw(t, "value")}
			})
			names := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"$type", "$value", "$values", "CC"}))
			table := rapid.MapOfN(names, value(depth-1), 0, 3)
			kinds = append(kinds, typed, table.AsAny(), rapid.SliceOfN(value(depth-1), 0, 3).AsAny())
		}
		return rapid.OneOf(kinds...)
	}
	names := []string{"RoutingKey", "Exchange", "Queue", "Exception", "Message", "DateTime", "Headers", "Type",
		"Timestamp", "UserId", "message"}
	rapid.Check(t, func(rt *rapid.T) {
		table := rapid.MapOfN(rapid.SampledFrom(names), value(3), 0, 6)
		e := table.Draw(rt, "envelope")
		if rapid.Bool().Draw(rt, "valid") {
			e = map[string]any{"Message": rapid.String().Draw(rt, "message")}
		}
		e["BasicProperties"] = map[string]any{"Headers": table.Draw(rt, "headers"), "Type": "t"}
		body, err := json.Marshal(e)
		expect.NoError(rt, err)
		came := errorOf(string(body[:rapid.IntRange(0, len(body)).Draw(rt, "cut")]))
		if rapid.Bool().Draw(rt, "whole") {
			came.Body = body
		}
		r := adopt(t, came)
		if _, err := store.AppendRecord(nil, r); err != nil {
			rt.Fatal(err)
		}
		sent := published(r)
		hole := sent.UserID != "" || sent.Expiration != "" || sent.Headers["CC"] != nil
		if !bytes.Equal(r.Message.Body, came.Body) || hole {
			rt.Fatalf("it is published as %+v", sent)
		}
		if sent.Headers[wire.HeaderQueue] != r.Queue || wire.OwnQueue(r.Queue) {
			rt.Fatalf("it is of queue %q", r.Queue)
		}
	})
}
