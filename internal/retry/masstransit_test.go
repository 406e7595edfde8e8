package retry

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// MassTransit reads the count of its redeliveries from the body: src/MassTransit/Serialization/
// JsonMessageEnvelope.cs, and RetryContextExtensions.cs in src/MassTransit.Abstractions/Middleware. Nothing else in
// the body changes, not a space.
func TestAReplayResetsTheCountInABodyOfMassTransit(t *testing.T) {
	const json = "application/vnd.masstransit+json"
	for name, c := range map[string]struct{ contentType, came, sent string }{
		"indented": {json, "{\n  \"messageId\": \"1\",\n  \"message\": {\"MT-Redelivery-Count\": 5, \"n\": 1.0},\n" +
			"  \"headers\": { \"tenant\": \"ä\", \"MT-Redelivery-Count\": 3 },\n  \"host\": {}\n}",
			"{\n  \"messageId\": \"1\",\n  \"message\": {\"MT-Redelivery-Count\": 5, \"n\": 1.0},\n" +
				"  \"headers\": { \"tenant\": \"ä\", \"MT-Redelivery-Count\": 0 },\n  \"host\": {}\n}"},
		"a text": {json, `{"Headers":{"MT-Redelivery-Count":"12"}}`, `{"Headers":{"MT-Redelivery-Count":0}}`},
		"with a charset": {json + "; charset=utf-8", `{"headers":{"MT-Redelivery-Count":1}}`,
			`{"headers":{"MT-Redelivery-Count":0}}`},
		"none":                 {json, `{"headers":{"a":"MT-Redelivery-Count"}}`, ""},
		"0":                    {json, `{"headers":{"MT-Redelivery-Count":0}}`, ""},
		"no headers":           {json, `{"message":{"MT-Redelivery-Count":3}}`, ""},
		"headers that are odd": {json, `{"headers":"MT-Redelivery-Count"}`, ""},
		"another format":       {"application/json", `{"headers":{"MT-Redelivery-Count":3}}`, ""},
		"cut off":              {json, `{"headers":{"MT-Redelivery-Count":3}`, ""},
		"no JSON":              {json, `{"headers":{"MT-Redelivery-Count":3]}`, ""},
		"nested too deep":      {json, `{"headers":{"MT-Redelivery-Count":` + strings.Repeat("[", 20000) + `}}`, ""},
	} {
		fault := amqp.Table{"MT-Reason": "fault"}
		r := adopt(t, wire.Message{ContentType: c.contentType, Headers: fault, Body: []byte(c.came)})
		expect.Equal(t, string(r.Message.Body), c.came, "%s: is kept", name)
		expect.Equal(t, r.Envelope != nil, c.sent != "", "%s: it is changed", name)
		if c.sent == "" {
			c.sent = c.came
		}
		sent := published(r)
		expect.Equal(t, string(sent.Body), c.sent, "%s: is published", name)
		expect.Equal(t, sent.Headers["MT-Reason"], nil, "%s: is its reason", name)
	}
	rapid.Check(t, func(t *rapid.T) {
		some := `[{}",:\[\] a03]*`
		text := rapid.StringMatching(some + `("headers":)?[{ ]*"MT-Redelivery-Count":` + some)
		body := text.Draw(t, "body")
		came := wire.Message{ContentType: json, Body: []byte(body)}
		if u, err := unwrapMassTransit(&came); err != nil || u != nil && len(u.message.Body) > len(body) {
			t.Fatalf("%q becomes %+v, %v", body, u, err)
		}
	})
}
