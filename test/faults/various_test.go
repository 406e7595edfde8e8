package faults_test

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// largestBody is what RabbitMQ 4 takes by default.
const largestBody = 16 << 20

// various is a message by its id: of any size, with headers of every AMQP type that the
// client can write, and all properties. It is the same each time.
func various(id string, withBody bool) amqp.Publishing {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(id))
	random := rand.New(rand.NewPCG(sum.Sum64(), 0))
	var nested [4]byte
	for i := range nested {
		nested[i] = byte(random.Uint32())
	}
	at := time.Unix(random.Int64N(1<<32), 0)
	p := amqp.Publishing{
		MessageId: id, DeliveryMode: 2, ContentType: "application/octet-stream", ContentEncoding: "identity", Priority: uint8(random.IntN(5)),
		CorrelationId: fmt.Sprint(random.Uint64()), ReplyTo: "answers", Timestamp: at, Type: "soak", AppId: "test/faults",
		Headers: amqp.Table{
			"bool": random.IntN(2) == 0, "uint8": uint8(random.Uint32()), "int8": int8(random.Uint32()), "int16": int16(random.Uint32()),
			"uint16": uint16(random.Uint32()), "uint32": random.Uint32(), "int32": int32(random.Uint32()), "int64": int64(random.Uint64()), "float32": random.Float32(), "float64": math.MaxFloat64 * random.Float64(),
			"decimal": amqp.Decimal{Scale: 2, Value: int32(random.Uint32() >> 1)}, "string": fmt.Sprintf("ä\x00\xff%d", random.Uint64()), "empty": "",
			"bytes": nested[:], "time": at.Add(time.Hour), "nothing": nil,
			"list":  []any{nested[:1], "text", int64(random.Uint64()), []any(nil), amqp.Table{"in": "a list", "false": false}},
			"table": amqp.Table{"int16": int16(random.Uint32()), "table": amqp.Table{"deep": []any{nil, 1.5}}, "": "no name"},
		},
	}
	if withBody {
		p.Body = make([]byte, sizeOf(id, random))
		seed := [32]byte{}
		copy(seed[:], id)
		_, _ = rand.NewChaCha8(seed).Read(p.Body)
	}
	return p
}

// sizeOf is how large the body of a message is: mostly small, with each size around a frame
// (131,072 bytes and its 8 of its own), 1 MiB and 16 MiB now and then.
func sizeOf(id string, random *rand.Rand) int {
	n := 0
	_, _ = fmt.Sscan(id[strings.LastIndex(id, "-")+1:], &n)
	switch {
	case n%1499 == 100:
		return largestBody
	case n%499 == 50:
		return 1 << 20
	case n%97 == 20:
		return 131072 - 10 + random.IntN(12)
	case n%19 == 10:
		return random.IntN(64 << 10)
	case n%11 == 5:
		return 0
	}
	return random.IntN(400)
}

// changes is in what a delivery's headers and properties are not those that were published.
// Bodies are compared by their tally.
func changes(d amqp.Delivery) (all []string) {
	want := various(d.MessageId, false)
	for name, value := range want.Headers {
		if is, there := d.Headers[name]; !there || !reflect.DeepEqual(is, value) {
			all = append(all, fmt.Sprintf("%s came with header %s = %T(%v), and was published with %T(%v)", d.MessageId, name, is, is, value, value))
		}
	}
	for name := range d.Headers {
		if _, ours := want.Headers[name]; !ours && name != "n" && name != "of" && !strings.HasPrefix(name, "x-") {
			all = append(all, fmt.Sprintf("%s came with header %s, which it had not", d.MessageId, name))
		}
	}
	is := amqp.Publishing{MessageId: d.MessageId, DeliveryMode: d.DeliveryMode, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Expiration: d.Expiration, UserId: d.UserId}
	want.Headers = nil
	if !reflect.DeepEqual(is, want) {
		all = append(all, fmt.Sprintf("%s came with properties %+v, and was published with %+v", d.MessageId, is, want))
	}
	return all
}

// The comparison can fail, for each header and property.
func TestAChangedHeaderIsSeen(t *testing.T) {
	as := func(p amqp.Publishing) amqp.Delivery {
		return amqp.Delivery{MessageId: p.MessageId, DeliveryMode: p.DeliveryMode, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, Priority: p.Priority,
			CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, Timestamp: p.Timestamp, Type: p.Type, AppId: p.AppId, Headers: p.Headers}
	}
	if c := changes(as(various("orders-1", false))); len(c) != 0 {
		t.Errorf("nothing changed, and %q", c)
	}
	for name := range various("orders-1", false).Headers {
		p := various("orders-1", false)
		delete(p.Headers, name)
		if len(changes(as(p))) != 1 {
			t.Errorf("without header %s: %q", name, changes(as(p)))
		}
		p.Headers[name] = int64(-1)
		if len(changes(as(p))) != 1 {
			t.Errorf("with another header %s: %q", name, changes(as(p)))
		}
	}
	other := various("orders-1", false)
	other.ReplyTo = ""
	other.Headers["more"] = true
	if len(changes(as(other))) != 2 {
		t.Errorf("with a header more and a property less: %q", changes(as(other)))
	}
}
