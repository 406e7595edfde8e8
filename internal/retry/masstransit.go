package retry

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/redrive-mq/redrive/wire"
)

// unwrapMassTransit resets MassTransit's count of redeliveries in the body, a JSON document with the message and
// headers of its own, from which MassTransit reads it. See Serialization/JsonMessageEnvelope.cs and
// EnvelopeMessageContext.cs. It returns nil for all other messages.
func unwrapMassTransit(came *wire.Message) (*unwrapped, error) {
	const count = "MT-Redelivery-Count"
	body := came.Body
	if len(body) > maxEnvelope || !strings.HasPrefix(came.ContentType, "application/vnd.masstransit+json") ||
		!bytes.Contains(body, []byte(count)) {
		return nil, nil
	}
	headers, from := member(body, "headers")
	value, at := member(headers, count)
	if value == nil || string(value) == "0" {
		return nil, nil
	}
	u := &unwrapped{message: *came, says: came.Headers}
	from += at
	u.message.Body = append(append(append([]byte(nil), body[:from]...), '0'), body[from+len(value):]...)
	return u, nil
}

// member returns the value of a member of a JSON object and its offset; nil: there is none, or it is no JSON object.
func member(object []byte, name string) (value []byte, at int) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, 0
	}
	for d.More() {
		key, err := d.Token()
		var v json.RawMessage
		if err != nil || d.Decode(&v) != nil {
			return nil, 0
		}
		if is, _ := key.(string); strings.EqualFold(is, name) {
			value, at = v, int(d.InputOffset())-len(v)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, 0
	}
	return value, at
}
