package inspect_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

// failing is a message with an error that failed some time ago.
func failing(queue string, state store.State, text string, ago time.Duration) *store.Record {
	r := record(queue, state, "x")
	r.Error, r.FailedAt = text, time.Now().Add(-ago).Truncate(time.Microsecond)
	return r
}

func TestAnErrorIsOneLineInAllQueues(t *testing.T) {
	each(t, func(t *testing.T, d *desk) {
		for i, queue := range []string{"orders", "mail", "other"} {
			d.add(t, failing(queue, store.Parked, fmt.Sprintf("HTTP 503 from payments after %d ms", 40+i), time.Duration(i+1)*time.Hour))
		}
		d.add(t, failing("orders", store.Waiting, "no stock of 7", 30*time.Minute), failing("orders", store.Waiting, "no stock of 8", 10*time.Second))
		noError := failing("mail", store.Parked, "", 10*time.Hour)
		noError.Reason = "expired"
		d.add(t, noError)
		list := func(q string, order inspect.ErrorOrder) []inspect.ErrorLine {
			t.Helper()
			var all []inspect.ErrorLine
			for after := ""; ; {
				p, err := d.Errors(ctx, operator, q, order, after, 1)
				if err != nil {
					t.Fatalf("%s: %v", q, err)
				}
				all = append(all, p.Errors...)
				if p.Total != 3 && q == "" || len(p.Errors) > 1 {
					t.Fatalf("%d on a page, of %d", len(p.Errors), p.Total)
				}
				if after = p.After; after == "" {
					return all
				}
			}
		}
		all := list("", "")
		if len(all) != 3 {
			t.Fatalf("%+v", all)
		}
		payments := all[0]
		if payments.QueueN != 3 || len(payments.Queues) != 3 || payments.Parked != 3 || !strings.HasPrefix(payments.Example, "HTTP 503 from payments after 4") || strings.Contains(payments.Example, "#") {
			t.Errorf("%+v", payments)
		}
		if now := time.Now(); payments.Last.Sub(now.Add(-time.Hour)).Abs() > time.Minute || payments.First.Sub(now.Add(-3*time.Hour)).Abs() > time.Minute {
			t.Errorf("first %s, last %s", payments.First, payments.Last)
		}
		if stock := all[1]; stock.Example != "no stock of 7" && stock.Example != "no stock of 8" || stock.Waiting != 2 || time.Since(stock.Last) > 15*time.Second || time.Since(stock.Last) < 8*time.Second {
			t.Errorf("%+v", all[1])
		}
		if none := all[2]; none.Error != "" || none.Example != "" || none.Reason != "expired" {
			t.Errorf("%+v", none)
		}
		for order, want := range map[inspect.ErrorOrder]string{inspect.ByLast: "no stock of #", inspect.ByFirst: "no stock of #", inspect.ByCount: "HTTP 503 from payments after # ms"} {
			if got := list("", order)[0].Error; got != want {
				t.Errorf("%s: %q", order, got)
			}
		}
		if last := list("", inspect.ByFirst)[2]; last.Reason != "expired" {
			t.Errorf("the oldest is %+v", last)
		}
		// Its id finds its messages in all queues, and a note is of all of them.
		if p, err := d.Search(ctx, operator, "group:"+payments.ID, "", 0); err != nil || len(p.Messages) != 3 {
			t.Errorf("%d messages, %v", len(p.Messages), err)
		}
		if n, exact, err := d.Count(ctx, operator, "state:parked group:"+payments.ID, 0); n != 3 || !exact || err != nil {
			t.Errorf("%d %v %v", n, exact, err)
		}
		if named, err := d.GroupsNamed(ctx, operator, payments.ID); err != nil || len(named) != 3 {
			t.Errorf("%d groups, %v", len(named), err)
		}
		if one := list("queue:mail error:payments", ""); len(one) != 1 || one[0].QueueN != 1 {
			t.Errorf("%+v", one)
		}
		if p, err := d.Errors(ctx, caller(auth.Viewer, "mail"), "", "", "", 0); err != nil || p.Total != 2 || p.Errors[0].QueueN != 1 {
			t.Errorf("who sees one queue: %+v, %v", p, err)
		}
	})
}

func TestErrorsThatCannotBeAskedFor(t *testing.T) {
	d := newDesk(inspectMemory())
	var at *query.Error
	if _, err := d.Errors(ctx, operator, "queue:a body.x:1", "", "", 0); !errors.As(err, &at) || at.At != 8 || !strings.Contains(at.Msg, "groups have no body., only queue, state") {
		t.Errorf("%v", err)
	}
	for name, ask := range map[string]func() error{
		"order": func() error { _, err := d.Errors(ctx, operator, "", "size", "", 0); return err },
		"after": func() error { _, err := d.Errors(ctx, operator, "", "", "x", 0); return err },
		"another sort": func() error {
			_, err := d.Errors(ctx, operator, "", "last", "count.1.2.3.0123456789abcdef", 0)
			return err
		},
		"limit": func() error { _, err := d.Errors(ctx, operator, "", "", "", 5000); return err },
	} {
		if err := ask(); !errors.Is(err, inspect.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := d.Errors(ctx, auth.Caller{}, "", "", "", 0); !errors.Is(err, auth.ErrSignIn) {
		t.Error(err)
	}
}

// BenchmarkErrors is a page of as many errors as a store keeps apart, half of them in several queues.
func BenchmarkErrors(b *testing.B) {
	s := openDisk(b, b.TempDir())
	defer s.Close()
	d := newDesk(s)
	var some []*store.Record
	for i := range store.GroupsKept {
		word := fmt.Sprintf("error %c%c%c%c of payments: timeout after 5s", 'a'+i%26, 'a'+i/26%26, 'a'+i/676%26, 'a'+i/17576%26)
		state := store.Parked
		if i%5 == 0 {
			state = store.Waiting
		}
		some = append(some, failing(fmt.Sprintf("queue-%d", i%50), state, word, time.Duration(i)*time.Second))
		if len(some) == 500 {
			inspecttest.Add(b, s, some...)
			some = nil
		}
	}
	for _, order := range []inspect.ErrorOrder{inspect.ByCount, inspect.ByLast} {
		b.Run(string(order), func(b *testing.B) {
			for b.Loop() {
				if p, err := d.Errors(ctx, operator, "", order, "", 50); err != nil || len(p.Errors) != 50 {
					b.Fatal(len(p.Errors), err)
				}
			}
		})
	}
}
