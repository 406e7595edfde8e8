package decode

import "testing"

// A search over bodies decodes up to 100,000 of them.
func BenchmarkDecode(b *testing.B) {
	d := decoder(b, shop)
	order := orderBytes(b, d, order)
	for _, c := range []struct {
		name string
		body Body
	}{
		{"json", Body{Bytes: []byte(`{"id": 9007199254740993, "customer": {"name": "Ada", "mail": "ada@example.com"}, "items": [{"name": "tea", "price": 12.50}, {"name": "milk", "price": 1.20}], "note": "leave it at the door"}`), ContentType: "application/json"}},
		{"protobuf in gzip in base64", Body{Bytes: []byte(based(gzipped(b, string(order)))), Queue: "orders.eu"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d.Decode(b.Context(), c.body)
			}
		})
	}
}
