package inspect_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

func inspectMemory() store.Store { return memstore.New() }

func TestColumnsAndPreview(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		for _, body := range []string{`{"customer":{"name":"Ada"}, "n": 1}`, base64.StdEncoding.EncodeToString([]byte(`{"customer":{"name":"Bob"}}`)), "\x00\xff\xfe\x01\x02", "<script>\u202ealert(1)</script>\n\n  " + strings.Repeat("é", 100_000)} {
			r := record("orders", store.Parked, body)
			r.Message.Headers = amqp.Table{"tenant": strings.Repeat("acme ", 100)}
			d.add(t, r)
		}
		d.add(t, record("mail", store.Parked, `{"customer":{"name":"Eve"}}`))
		page, err := d.Search(ctx, operator, "queue:orders", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.AddColumns(ctx, operator, &page, []string{"body.customer.name", "header.tenant", "key"}, true); err != nil || page.Unread != 0 {
			t.Fatal(page.Unread, err)
		}
		names, previews := "", ""
		for _, m := range page.Messages {
			names += m.Columns["body.customer.name"] + " "
			if tenant := m.Columns["header.tenant"]; m.Columns["key"] != "k" || !strings.HasPrefix(tenant, "acme acme") || utf8.RuneCountInString(tenant) > 201 {
				t.Errorf("%+v", m.Columns)
			}
			if strings.Contains(m.Preview, "\n") || utf8.RuneCountInString(m.Preview) > 201 || !utf8.ValidString(m.Preview) {
				t.Errorf("%.300q", m.Preview)
			}
			previews += m.Preview + "|"
		}
		if !strings.Contains(names, "Ada") || !strings.Contains(names, "Bob") || strings.Contains(names, "Eve") {
			t.Errorf("names %q", names)
		}
		for _, part := range []string{`{ "customer": { "name": "Bob" } }`, "00 ff fe 01 02", "alert(1)</script> éé"} {
			if !strings.Contains(previews, part) {
				t.Errorf("the previews lack %q: %.900s", part, previews)
			}
		}
		// Keys of messages in queues that they do not see give them nothing.
		page.Messages[0].Preview, page.Messages[0].Columns = "", nil
		if err := d.AddColumns(ctx, caller(auth.Viewer, "mail"), &page, []string{"key"}, true); err != nil || page.Messages[0].Preview != "" || page.Messages[0].Columns != nil {
			t.Errorf("%+v, %v", page.Messages[0], err)
		}
	})
}

func TestColumnsThatCannotBe(t *testing.T) {
	d := newDesk(inspectMemory())
	page := inspect.Page{}
	many := strings.Split(strings.Repeat("key ", 13), " ")[:13]
	for _, names := range [][]string{{"nowhere"}, {"text"}, many} {
		if err := d.AddColumns(ctx, operator, &page, names, false); !errors.Is(err, inspect.ErrInvalid) {
			t.Errorf("%v: %v", names, err)
		}
	}
	if err := d.AddColumns(ctx, auth.Caller{}, &page, nil, true); !errors.Is(err, auth.ErrSignIn) {
		t.Error(err)
	}
}

func TestCountsAreBounded(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		for i := range 40 {
			d.add(t, record("orders", store.Parked, fmt.Sprint(i)))
		}
		for text, c := range map[string]struct {
			n     int64
			exact bool
		}{"text:*": {10, false}, "state:parked": {40, true}, "text:nowhere": {0, true}, "id:*": {10, false}} {
			if n, exact, err := d.Count(ctx, operator, text, 10); n != c.n || exact != c.exact || err != nil {
				t.Errorf("%s: %d %v %v", text, n, exact, err)
			}
		}
		if n, exact, err := d.Count(ctx, operator, "text:*", 40); n != 40 || !exact || err != nil {
			t.Errorf("as many as there are: %d %v %v", n, exact, err)
		}
	})
}

func TestCompleteKnowsWhatTheCallerSees(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		d.add(t, record("orders", store.Parked, "x"), record("other queue", store.Parked, "x"), record("mail", store.Waiting, "x"))
		for _, c := range []struct {
			by         auth.Caller
			text, want string
		}{
			{operator, "state:parked queue:o", `queue:orders queue:"other queue"`}, {caller(auth.Viewer, "mail", "orders"), "queue:", "queue:mail queue:orders"},
			{operator, "policy:", "policy:p"}, {operator, "stat", "state:"},
		} {
			all, err := d.Complete(ctx, c.by, c.text, false)
			if got := texts(all); got != c.want || err != nil {
				t.Errorf("%s: %q, %v", c.text, got, err)
			}
		}
		if _, err := d.Complete(ctx, auth.Caller{}, "", false); !errors.Is(err, auth.ErrSignIn) {
			t.Error(err)
		}
	})
}

func texts(all []query.Suggestion) string {
	var b []string
	for _, s := range all {
		b = append(b, s.Text)
	}
	return strings.Join(b, " ")
}
