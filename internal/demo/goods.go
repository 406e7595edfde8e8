package demo

import (
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
	"google.golang.org/protobuf/encoding/protowire"
)

//go:embed invoice.proto
var invoiceProto []byte

// The queues of the shop. Their names have a prefix, so that no one takes them for their own.
const (
	orders   = "redrive-demo.orders"   // JSON; what fails is reported with its error
	mail     = "redrive-demo.mail"     // JSON; what fails is rejected: the consumer knows nothing of Redrive
	invoices = "redrive-demo.invoices" // Protobuf in base64; its consumer needs no payment service
)

var queues = []string{orders, mail, invoices}

var customers = []string{"Ada Lovelace", "Grace Hopper", "Katherine Johnson", "Annie Easley", "Hedy Lamarr", "José Álvarez"}

// goods returns the n-th message of the shop, for a queue.
func goods(queue string, n int) amqp.Publishing {
	customer := customers[n%len(customers)]
	number := int64(9007199254740993) + int64(n) // more than a JavaScript number can hold exactly
	switch {
	case n == 5: // no consumer can process this one
		return amqp.Publishing{ContentType: "application/json", Body: []byte("{ this is not JSON")}
	case queue == invoices:
		price := uint64(1990)
		if n%60 == 8 { // an invoice without a price, which its consumer cannot process
			price = 0
		}
		return amqp.Publishing{Type: "shop.Invoice", ContentType: "text/plain", Body: []byte(base64.StdEncoding.EncodeToString(invoice(number, customer, price)))}
	case queue == mail:
		return amqp.Publishing{Type: "mail.confirmation", ContentType: "application/json",
			Body: fmt.Appendf(nil, `{"to": "customer-%d@shop.example", "template": "confirmation", "order": %d}`, n, number)}
	}
	return amqp.Publishing{Type: "order.created", ContentType: "application/json", Headers: amqp.Table{"tenant": []string{"acme", "globex"}[n%2]},
		Body: fmt.Appendf(nil, `{"order": {"number": %d, "customer": %q, "total": %d.%02d}, "items": [{"name": "lamp", "count": %d}]}`, number, customer, 20+n%80, n%100, 1+n%3)}
}

func invoice(number int64, customer string, price uint64) []byte {
	var item []byte
	item = protowire.AppendString(protowire.AppendTag(item, 1, protowire.BytesType), "lamp")
	item = protowire.AppendVarint(protowire.AppendTag(item, 2, protowire.VarintType), 2)
	if price > 0 {
		item = protowire.AppendVarint(protowire.AppendTag(item, 3, protowire.VarintType), price)
	}
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(number))
	b = protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), customer)
	return protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), item)
}

// work processes a message as a consumer of the shop. paying tells whether the payment service
// answers. The errors differ in their numbers, as real ones do.
func work(queue string, d *amqp.Delivery, paying bool, n int) error {
	body := string(d.Body)
	switch {
	case strings.HasPrefix(body, "{ "):
		return errors.New("json: invalid character 't' looking for beginning of object key string at offset 2")
	case queue == invoices:
		raw, err := base64.StdEncoding.DecodeString(body)
		if err == nil && !priced(raw) {
			err = fmt.Errorf("item 1 of invoice %d has no price", 100000+n)
		}
		return err
	case !paying:
		return fmt.Errorf("dial tcp 10.0.%d.7:443: payment service does not answer after %d ms", n%4, 3000+n%17)
	}
	return nil
}

// priced tells whether the item of an invoice has a price.
func priced(invoice []byte) bool {
	item, _ := field(invoice, 3)
	_, ok := field(item, 3)
	return ok
}

// field returns the first field of a Protobuf message with that number: the content of bytes, and
// the encoding of other types.
func field(message []byte, want protowire.Number) (value []byte, ok bool) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, false
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return nil, false
		}
		value, message = message[n:n+size], message[n+size:]
		if number == want {
			if kind == protowire.BytesType {
				value, _ = protowire.ConsumeBytes(value)
			}
			return value, true
		}
	}
	return nil, false
}
