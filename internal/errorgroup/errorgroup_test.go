package errorgroup

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Errors as clients report them, and their patterns.
var patterns = []struct{ text, want string }{
	{"", ""},
	{" \n\t", ""},
	{"no stock", "no stock"},
	{"order 4711 not found", "order # not found"},
	{"order 9f86d081884c7d65 not found", "order # not found"},
	{"Order\tORD-2026-000123\r is  closed", "Order ORD-#-# is closed"},
	{"user f47ac10b-58cc-4372-a567-0e02b2c3d479 is unknown", "user <uuid> is unknown"},
	{"balance -12.50 is below 1,000.00", "balance -# is below #"},
	{"ids [1, 2, 33] are gone", "ids [#] are gone"},
	{"mail to jane.doe+1@mail.example.com bounced", "mail to <email> bounced"},
	{"took 1m30.5s, limit 800ms", "took #, limit #"},
	{"took 12 ms, 450 ms, 1.5 s", "took # ms, # ms, # s"},
	{"12MB at 1.5e-7 or 93% by node3, worker-7", "# at # or #% by node#, worker-#"},

	// Times.
	{"at 2026-11-21T10:42:53.123Z it failed", "at <time> it failed"},
	{"at 2026-11-21 10:42:53,123 +0100 it failed", "at <time> it failed"},
	{"at 2026-11-21 10:42:53+01:00 it failed", "at <time> it failed"},
	{"at 21.11.2026, 10:42 it failed", "at <time> it failed"},
	{"at 11/21/2026 10:42:53 PM it failed", "at <time> it failed"},
	{"at Sat Nov 21 10:42:53 UTC 2026 it failed", "at <time> it failed"},
	{"at Sat, 21 Nov 2026 10:42:53 GMT it failed", "at <time> it failed"},
	{"at [21/Nov/2026:10:42:53 +0000] it failed", "at [<time>] it failed"},

	// Go.
	{"dial tcp 10.0.0.1:5432: connect: connection refused", "dial tcp <ip>: connect: connection refused"},
	{"dial tcp [2001:db8::1]:5432: i/o timeout", "dial tcp [<ip>]:#: i/o timeout"},
	{"read tcp 127.0.0.1:51234->127.0.0.1:5672: read: connection reset by peer", "read tcp <ip>-><ip>: read: connection reset by peer"},
	{`Post "https://pay.example.com/v1/charges/ch_3MmlLrLkdIwHu7ix": context deadline exceeded`, `Post "https://pay.example.com/v#/charges/ch_#": context deadline exceeded`},
	{`strconv.Atoi: parsing "12x": invalid syntax`, `strconv.Atoi: parsing "#x": invalid syntax`},
	{"panic: runtime error: index out of range [5] with length 3\n\ngoroutine 18 [running]:\nmain.handle(0xc000012345)\n\t/app/main.go:42 +0x1d", "panic: runtime error: index out of range [#] with length # | main.handle(#)"},
	{"exit status 137", "exit status 137"},

	// Python.
	{"Traceback (most recent call last):\n  File \"/app/worker.py\", line 31, in handle\n    stock[sku]\nKeyError: 'sku-4711'\n", "KeyError: 'sku-#'"},
	{"UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 12: invalid start byte", "UnicodeDecodeError: 'utf-8' codec can't decode byte # in position #: invalid start byte"},
	{"<Order object at 0x7f8b1c2d3e4f> has no attribute 'total'", "<Order object at #> has no attribute 'total'"},
	{"[Errno 111] Connection refused", "[Errno 111] Connection refused"},
	{"psycopg2.errors.UniqueViolation: duplicate key value violates unique constraint \"orders_2_pkey\"\nDETAIL:  Key (id)=(5) already exists.", "psycopg#.errors.UniqueViolation: duplicate key value violates unique constraint \"orders_#_pkey\""},

	// Java.
	{"java.lang.NullPointerException\n\tat com.shop.Orders.ship(Orders.java:118)\n\tat com.shop.Main.main(Main.java:9)", "java.lang.NullPointerException | at com.shop.Orders.ship(Orders.java:#)"},
	{"org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: Listener threw exception\n\tat a.B.c(B.java:1)\nCaused by: java.net.SocketTimeoutException: Read timed out after 5000 ms\n\tat d.E.f(E.java:2)", "org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: Listener threw exception | Caused by: java.net.SocketTimeoutException: Read timed out after # ms"},
	{"a.B: no\nCaused by: c.D: why\nCaused by: e.F: root 7", "a.B: no | Caused by: e.F: root #"},
	{"ORA-00942: table or view does not exist", "ORA-00942: table or view does not exist"},
	{"HTTP/1.1 503 Service Unavailable", "HTTP/1.1 503 Service Unavailable"},

	// Node.
	{"TypeError: Cannot read properties of undefined (reading 'total')\n    at ship (/app/orders.js:10:15)\n    at run (/app/run.js:3:1)", "TypeError: Cannot read properties of undefined (reading 'total') | at ship (/app/orders.js:#:#)"},
	{"Request failed with status code 503", "Request failed with status code 503"},
	{"connect ECONNREFUSED 172.17.0.2:6379", "connect ECONNREFUSED <ip>"},
	{`Unexpected token < in JSON at position 0`, `Unexpected token < in JSON at position #`},

	// Ruby.
	{"app/worker.rb:12:in `perform': undefined method `total' for nil:NilClass (NoMethodError)", "app/worker.rb:#:in `perform': undefined method `total' for nil:NilClass (NoMethodError)"},
	{"ActiveRecord::RecordNotFound: Couldn't find Order with 'id'=4711", "ActiveRecord::RecordNotFound: Couldn't find Order with 'id'=#"},

	// What no one should send.
	{"\x00\xff\xfe\u202e١٢٣", "\ufffd\u202e#"},
	{"2 errors occurred:\n\t* no stock of 5\n", "# errors occurred: | * no stock of #"},
}

func TestWhatIsLeftOfAnError(t *testing.T) {
	for _, c := range patterns {
		if got := Of("q", "rejected", c.text, "t").Pattern; got != c.want {
			t.Errorf("%q\n got %q\nwant %q", c.text, got, c.want)
		}
	}
}

// Different errors with similar texts stay different.
func TestDifferentTroublesStayApart(t *testing.T) {
	seen := map[ID]string{}
	for _, text := range []string{
		"status code 503", "status code 404", "HTTP/1.1 500", "HTTP/1.1 502", "exit status 1", "exit status 2", "SQLSTATE[23000]", "SQLSTATE[42S02]",
		"Errno 111", "Errno 104", `relation "orders_1" does not exist`, `relation "users_1" does not exist`,
		`Get "http://stock.example.com/v1": EOF`, `Get "http://price.example.com/v1": EOF`,
		"java.lang.NullPointerException\n\tat a.B.c(B.java:1)", "java.lang.NullPointerException\n\tat a.D.e(D.java:1)",
		"KeyError: 'total'", "KeyError: 'price'", "no stock", "No stock",
		"server answered 404", "server answered 500", `Get "http://stock.example.com/v1": 404`, `Get "http://stock.example.com/v1": 500`,
		"deadlock detected (SQLSTATE 40P01)", "deadlock detected (SQLSTATE 57P03)", "40P01: deadlock", "57P03: deadlock",
		"550 5.1.1 refused", "421 4.7.0 refused", `{"message":"a"}`, `{"message":"b"}`, `{"status":404}`, `{"status":500}`,
	} {
		id := Of("q", "rejected", text, "").ID
		if other, ok := seen[id]; ok {
			t.Errorf("%q and %q are one group", text, other)
		}
		seen[id] = text
	}
	for _, g := range []Group{
		Of("q", "rejected", "", ""), Of("q", "expired", "", ""), Of("q", "rejected", "", "t"), Of("p", "rejected", "", ""),
		Of("qr", "ejected", "", ""), Of("p", "rejected", "no stock", ""), Other("q", 10), Of("q", "", Other("q", 10).Pattern, ""),
	} {
		if other, ok := seen[g.ID]; ok {
			t.Errorf("%+v and %q are one group", g, other)
		}
		seen[g.ID] = g.Queue + g.Reason
	}
	if Of("q", "rejected", "no stock", "t").ID != Of("q", "reported", "no stock", "u").ID {
		t.Error("the same error is two groups")
	}
}

// Stores index by these, and people keep links to them.
func TestIDsNeverChange(t *testing.T) {
	for _, c := range []struct {
		g                Group
		want, everywhere string
	}{
		{Of("orders", "rejected", "", "order.created"), "0a420a964e863bfa", "e5b838d277f99dd6"},
		{Of("orders", "rejected", "order 4711 not found", ""), "58b3e95ca59d4796", "928680e2d5bcecfd"},
		{Of("orders", "reported", "HTTP/1.1 503 at 10.0.0.1:80, 2026-11-21T10:42:53Z", ""), "9fdeebbf37d58cdb", "42899cab17cdb57f"},
		{Other("orders", 10_000), "f2e54856d37f2f41", "9d9f290527a6be62"},
	} {
		if c.g.ID.String() != c.want {
			t.Errorf("%+v has the ID %s, want %s", c.g, c.g.ID, c.want)
		}
		if id := c.g.Everywhere(); id.String() != c.everywhere || id == c.g.ID {
			t.Errorf("%+v has everywhere the ID %s, want %s", c.g, id, c.everywhere)
		}
		if id, err := Parse(c.g.ID.String()); err != nil || id != c.g.ID {
			t.Errorf("read back as %s, %v", id, err)
		}
	}
	if Of("mail", "reported", "order 7 not found", "t").Everywhere() != Of("orders", "rejected", "order 4711 not found", "").Everywhere() ||
		Other("mail", 1).Everywhere() != Other("orders", 2).Everywhere() {
		t.Error("one error has two IDs in two queues")
	}
	for _, bad := range []string{"", "x", "00112233445566", "001122334455667788", "001122334455667g"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q was read as an ID", bad)
		}
	}
}

// The pattern of any text is short and valid, and normalising it again does not split a
// group.
func FuzzOf(f *testing.F) {
	for _, c := range patterns {
		f.Add(c.text)
	}
	f.Add(strings.Repeat("1:", 400))
	f.Add(strings.Repeat("a@", 400) + "b.c")
	f.Add(strings.Repeat("\"1", 400))
	f.Add(strings.Repeat("é", 200))
	f.Fuzz(func(t *testing.T, text string) {
		g := Of("q", "rejected", text, "")
		if len(g.Pattern) > maxPattern || !utf8.ValidString(g.Pattern) || strings.ContainsAny(g.Pattern, "\n\r\t\x00") {
			t.Errorf("%q became %q", text, g.Pattern)
		}
		if digits := strings.Repeat("7", 6); Of("q", "", "x "+digits+" "+text, "").ID != Of("q", "", "x 123456 "+text, "").ID {
			t.Errorf("a number tears %q apart", text)
		}
	})
}

func BenchmarkOf(b *testing.B) {
	for _, c := range []struct{ name, text string }{
		{"no error", ""},
		{"short", "order 4711 not found"},
		{"go", "Post \"https://pay.example.com/v1/charges/ch_3MmlLrLkdIwHu7ix\": dial tcp 10.0.0.1:443: connect: connection refused"},
		{"java", patterns[len(patterns)-1].text + strings.Repeat("java.lang.NullPointerException\n\tat com.shop.Orders.ship(Orders.java:118)", 100)},
		{"hostile", strings.Repeat("a@1:\"", 2000)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Of("orders", "rejected", c.text, "order.created")
			}
		})
	}
}
