package api_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/api"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
)

// Page after page, a listing shows each message of its choice once, and no other.
func TestPages(t *testing.T) {
	k := keeper{Store: memstore.New()}
	parked, waiting := k.add(t, store.Parked, "orders", 53), k.add(t, store.Waiting, "orders", 40)
	mail := k.add(t, store.Waiting, "mail é/&?#", 7)
	c := serve(t, k)
	for _, want := range []struct {
		state, queue string
		ids          []string
	}{
		{"", "", slices.Concat(parked, waiting, mail)},
		{"parked", "", parked},
		{"waiting", "", slices.Concat(waiting, mail)},
		{"", "orders", slices.Concat(parked, waiting)},
		{"waiting", "mail é/&?#", mail},
		{"parked", "mail é/&?#", nil},
		{"", "no such queue", nil},
	} {
		for _, limit := range []int{1, 10, 53, 1000} {
			var got []string
			for after := ""; ; {
				page, err := c.Messages(t.Context(), want.state, want.queue, "", after, limit)
				if err != nil {
					t.Fatal(err)
				}
				if page.Messages == nil || len(page.Messages) > limit {
					t.Fatalf("a page of %d has %v", limit, page.Messages)
				}
				for _, m := range page.Messages {
					got = append(got, m.ID)
				}
				if after = page.After; after == "" || len(got) > 1000 {
					break
				}
			}
			ids := slices.Clone(want.ids)
			slices.Sort(ids)
			slices.Sort(got)
			if !slices.Equal(got, ids) {
				t.Errorf("state %q of queue %q in pages of %d: %d messages, want %d, each once", want.state, want.queue, limit, len(got), len(ids))
			}
		}
	}
	page, err := c.Messages(t.Context(), "", "", parked[5], "", 0)
	if err != nil || len(page.Messages) != 1 {
		t.Fatalf("by ID: %+v, %v", page, err)
	}
	if m := page.Messages[0]; m.ID != parked[5] || m.State != "parked" || m.Due != nil || m.ParkedAt == nil || m.ParkedFor != "out of attempts" || m.Size != 5 {
		t.Errorf("the parked message is shown as %+v", m)
	}
	if page, err = c.Messages(t.Context(), "", "", waiting[5], "", 0); err != nil || len(page.Messages) != 1 {
		t.Fatalf("by ID: %+v, %v", page, err)
	}
	if m := page.Messages[0]; m.State != "waiting" || m.Due == nil || m.ParkedAt != nil || m.ParkedFor != "" {
		t.Errorf("the waiting message is shown as %+v", m)
	}
}

// Listing shows no body, however small: a page of a million of them would be
// the service's memory.
func TestAListingHasNoBodies(t *testing.T) {
	k := keeper{Store: memstore.New()}
	r := &store.Record{ID: uuid.New(), Queue: "orders", State: store.Parked}
	r.Message.Body = []byte("card 4111 1111")
	if err := k.Add(t.Context(), []*store.Record{r}); err != nil {
		t.Fatal(err)
	}
	w := ask(handler(k, true), "GET", "/api/v1/messages", "")
	var page api.Page
	if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || len(page.Messages) != 1 || page.Messages[0].Size != len(r.Message.Body) {
		t.Errorf("%s: %v", w.Body, err)
	}
	if strings.Contains(w.Body.String(), "4111") {
		t.Errorf("the body is shown: %s", w.Body)
	}
}

func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	k := keeper{Store: memstore.New()}
	ids := k.add(t, store.Parked, "orders", 2)
	h := handler(k, true)
	for _, query := range []string{"limit=0", "limit=-1", "limit=1001", "limit=many", "state=lost", "id=7"} {
		if w := ask(h, "GET", "/api/v1/messages?"+query, ""); w.Code != 422 {
			t.Errorf("%s gives %d: %s", query, w.Code, w.Body)
		}
	}
	tooMany := `{"ids":["` + strings.Repeat(ids[0]+`","`, 10_000) + ids[0] + `"]}`
	for _, body := range []string{`{}`, `{"ids":[]}`, fmt.Sprintf(`{"ids":[%q],"queue":"orders"}`, ids[0]), `{"ids":["7"]}`, `{"qeue":"orders"}`, `[]`, tooMany} {
		if w := ask(h, "POST", "/api/v1/replay", body); w.Code != 422 {
			t.Errorf("%.60s gives %d: %s", body, w.Code, w.Body)
		}
	}
	if w := ask(h, "POST", "/api/v1/replay", ""); w.Code != 400 {
		t.Errorf("no body gives %d", w.Code)
	}
	if w := ask(h, "GET", "/api/v1/replay", ""); w.Code != 405 {
		t.Errorf("a GET gives %d: a link would replay", w.Code)
	}
	if got := k.parked(t, "orders"); got != 2 {
		t.Errorf("%d messages are parked, want 2", got)
	}
}

func TestReplay(t *testing.T) {
	k := keeper{Store: memstore.New()}
	orders, mail := k.add(t, store.Parked, "orders", 5), k.add(t, store.Parked, "mail", 2)
	c := serve(t, k)
	unknown := uuid.New()
	r, err := c.Replay(t.Context(), []uuid.UUID{uuid.MustParse(orders[0]), uuid.MustParse(mail[0]), unknown}, "")
	if err != nil || r.Replayed != 2 {
		t.Errorf("by IDs: %+v, %v", r, err)
	}
	if r, err = c.Replay(t.Context(), nil, "orders"); err != nil || r.Replayed != 4 {
		t.Errorf("by queue: %+v, %v", r, err)
	}
	if r, err = c.Replay(t.Context(), nil, "orders"); err != nil || r.Replayed != 0 {
		t.Errorf("again: %+v, %v", r, err)
	}
	if k.parked(t, "orders") != 0 || k.parked(t, "mail") != 1 {
		t.Error("other messages were moved")
	}
}
