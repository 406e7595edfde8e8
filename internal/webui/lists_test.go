package webui_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/query"
)

// has fails where a page lacks a part.
func has(t *testing.T, w *httptest.ResponseRecorder, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(w.Body.String(), part) {
			t.Errorf("the page lacks %s", part)
		}
	}
}

func TestTheListHasPreviewsAndColumnsOfChoice(t *testing.T) {
	s := scenes()[0]
	s.shop.Messages[0].Body.Text = `{"total": "<script>alert(1)</script>` + "\u202e" + `"}`
	h := s.handler()
	w := get(h, "/messages?"+url.Values{"q": {""}, "cols": {"body.total, header.tenant key,key,nonsense"}}.Encode())
	has(t, w, `<th scope="col" class="">body.total</th>`, `data-label="header.tenant"><bdi>acme</bdi>`, `class="preview"`, `&lt;script&gt;alert(1)&lt;/script&gt;\u{202e}`,
		`is no column: expected a field of the query language`, `cols=body.total%2Cheader.tenant%2Ckey%2Cnonsense`)
	if n := strings.Count(w.Body.String(), `<th scope="col" class="">key</th>`); n != 1 {
		t.Errorf("key is there %d times", n)
	}
	if strings.Contains(w.Body.String(), "<script>alert") {
		t.Error("a body is not escaped")
	}
	has(t, get(h, "/messages?q=state%3Aparked"), `id="all-matching"`, `name="all" value="1" id="all-matching-on" disabled`)
}

// All that match are meant, not only those that are named: they become a plan.
func TestAllThatMatchBecomeAPlan(t *testing.T) {
	s := scenes()[0]
	h := s.handler()
	w := send(h, "/messages/act", url.Values{"verb": {"replay"}, "id": {s.shop.Messages[0].ID}, "all": {"1"}, "q": {"state:parked"}})
	p, ok := s.shop.Plans[strings.TrimPrefix(w.Header().Get("Location"), "/plans/")]
	if !ok || p.Query != "state:parked" || p.Count < 50 || w.Code != http.StatusSeeOther {
		t.Errorf("%d %s %+v", w.Code, w.Header().Get("Location"), p)
	}
	w = send(h, "/messages/act", url.Values{"verb": {"copy"}, "id": {s.shop.Messages[0].ID}, "all": {"1"}, "q": {"state:parked"}})
	has(t, w, "Copy all that match", `name="all" value="1"`)
	w = send(h, "/messages/plan", url.Values{"verb": {"replay"}, "q": {"queue:orders.capture"}})
	id := strings.TrimPrefix(w.Header().Get("Location"), "/plans/")
	many := s.shop.Plans[id]
	many.SuggestedCanary = 12
	s.shop.Plans[id] = many
	has(t, get(h, "/plans/"+id), `name="canary" inputmode="numeric" size="6" placeholder="none" value="12"`, "Suggested, since there are many")
}

func TestErrorsArePlannedByTheirParkedMessages(t *testing.T) {
	s := scenes()[0]
	h := s.handler()
	a, b := s.shop.GroupList[0].ID, s.shop.GroupList[1].ID
	send(h, "/errors/plan", url.Values{"verb": {"discard"}, "id": {a, b}})
	asked, _ := s.shop.Asked[len(s.shop.Asked)-1].(operations.PlanRequest)
	if asked.Verb != actions.Discard || asked.Query != "state:parked (group:"+a+" OR group:"+b+")" {
		t.Errorf("%+v", asked)
	}
	if _, err := query.Parse(asked.Query); err != nil {
		t.Error(err)
	}
	for _, form := range []url.Values{{"verb": {"discard"}}, {"verb": {"discard"}, "id": {"x) OR (queue:*"}}} {
		if w := send(h, "/errors/plan", form); w.Code != http.StatusUnprocessableEntity {
			t.Errorf("%v: %d", form, w.Code)
		}
	}
	w := get(h, "/errors?sort=last")
	has(t, w, `aria-sort="descending"`, "12 queues", `<time data-exact`, "gateway incident INC-2231")
	if to := get(h, "/groups?q=a&x=1").Header().Get("Location"); to != "/errors?q=a&x=1" {
		t.Errorf("groups lead to %s", to)
	}
	has(t, get(h, "/errors?q=attempt%3A1"), "groups have no attempt, only queue, state, reason")
}

func TestAnOperationShowsWhatFailedAgain(t *testing.T) {
	s := scenes()[0]
	h := s.handler()
	has(t, get(h, "/operations"), `href="/operations/op0?only=again">386</a>`)
	has(t, get(h, "/operations/op0"), "386 failed again, 14 were not done", `action="/operations/op0/rest"`, "failed again</span>")
	w := get(h, "/operations/op0?only=again")
	has(t, w, `href="/operations/op0?only=again#outcomes" aria-current="true"`)
	if strings.Contains(w.Body.String(), `out-done"`) {
		t.Error("it shows what did not fail again")
	}
	send(h, "/operations/op0/rest", nil)
	if asked, _ := s.shop.Asked[len(s.shop.Asked)-1].(operations.PlanRequest); asked.RestOf != "op0" || asked.Verb != actions.Replay || asked.Query != "" {
		t.Errorf("%+v", asked)
	}
}

func TestTheAuditLogIsFiltered(t *testing.T) {
	s := scenes()[0]
	h := s.handler()
	w := get(h, "/audit?who=ci")
	has(t, w, `name="who" size="12" maxlength="256" value="ci"`, "line 4810, 4811", `<time data-exact`)
	if strings.Contains(w.Body.String(), "provider blocks us until noon") {
		t.Error("it shows what others did")
	}
	has(t, get(h, "/audit"), "not ended")
	has(t, get(h, "/audit?did=copy"), "No action matches")
	if w := get(h, "/audit?from=yesterday"); w.Code != http.StatusUnprocessableEntity {
		t.Errorf("%d", w.Code)
	}
}

func TestCompletionAnswersTheScript(t *testing.T) {
	s := scenes()[0]
	w := get(s.handler(), "/messages/complete?q=state:parked+queue:mail")
	var all []query.Suggestion
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || len(all) != 1 || all[0].Text != "queue:mail.send" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%s, %v", w.Body, err)
	}
	if w := get(s.handler(), "/messages/complete?groups=1&q=attem"); strings.TrimSpace(w.Body.String()) != "[]" {
		t.Errorf("%s", w.Body)
	}
}

// An edit is checked as it is written, and nothing is sent by that.
func TestAnEditIsCheckedAsItIsWritten(t *testing.T) {
	s := scenes()[0]
	m := s.shop.Messages[0]
	form := url.Values{"check": {"1"}, "send": {"1"}, "content": {""}}
	for i, header := range m.Headers {
		form.Set("name."+string(rune('0'+i)), header.Name)
		form.Set("value."+string(rune('0'+i)), header.Value)
	}
	n := len(s.shop.Messages)
	w := send(s.handler(), "/messages/"+m.ID+"/edit", form)
	has(t, w, "the document is not JSON")
	if strings.Contains(w.Body.String(), "<html") {
		t.Error("it is a whole page")
	}
	form.Set("content", `{"total": 1}`)
	has(t, send(s.handler(), "/messages/"+m.ID+"/edit", form), "2 fields differ")
	if len(s.shop.Messages) != n {
		t.Error("it was sent")
	}
}

// The stack of an error is folded, and all of it is there.
func TestLongErrorsAreFolded(t *testing.T) {
	s := scenes()[0]
	m := &s.shop.Messages[0]
	for i := range m.Timeline {
		m.Timeline[i].Error = "java.lang.NullPointerException\n\tat a.B.c(B.java:1)" + strings.Repeat("\n\tat d.E.f(E.java:2)", 40) + "\n\tat last.Line(X.java:3)"
	}
	has(t, get(s.handler(), "/messages/"+m.ID), `<summary>38 more lines</summary>`, "at last.Line(X.java:3)")
}

func TestAMessageShowsWhatAFrameworkWrote(t *testing.T) {
	s := scenes()[0]
	m := &s.shop.Messages[0]
	m.Framework = &inspect.Framework{Name: "MassTransit", Queue: "orders<b>", Attempts: 4}
	w := get(s.handler(), "/messages/"+m.ID)
	has(t, w, "<dt>MassTransit wrote</dt>", "queue orders&lt;b&gt;; attempts 4")
}
