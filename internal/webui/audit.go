package webui

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// auditData is a page of the audit log, action by action.
type auditData struct {
	inspect.AuditActions
	Filter auditFilter
	First  bool
	Next   string
}

// auditFilter is the form above the audit log, as it was filled in.
type auditFilter struct{ Who, Did, On, From, Until string }

// Any tells whether it leaves something out.
func (f auditFilter) Any() bool { return f != auditFilter{} }

// auditDid are the actions that can be chosen.
var auditDid = []string{"replay", "discard", "restore", "copy", "edit", "export", "import", "note", "pause", "resume", "breaker", "snapshot", "plan.", "operation.", "token."}

func (s *server) audit(r *http.Request, c auth.Caller) (view, error) {
	in := r.URL.Query()
	d := auditData{First: in.Get("after") == ""}
	field := func(name string) string { return strings.TrimSpace(in.Get(name)) }
	d.Filter = auditFilter{Who: field("who"), Did: field("did"), On: field("on"), From: field("from"), Until: field("until")}
	f := inspect.AuditFilter{Who: d.Filter.Who, Did: d.Filter.Did, On: d.Filter.On}
	for _, of := range []struct {
		text string
		at   *time.Time
	}{{d.Filter.From, &f.From}, {d.Filter.Until, &f.Until}} {
		if of.text == "" {
			continue
		}
		t, ok := readTime(of.text)
		if !ok {
			return view{}, fmt.Errorf("%w: %.60q is not a time such as 2026-11-21T18:30 (UTC)", inspect.ErrInvalid, of.text)
		}
		*of.at = t
	}
	var err error
	d.AuditActions, err = s.console.AuditActions(r.Context(), c, f, in.Get("after"), perPage)
	if d.After != "" {
		v := url.Values{"after": {d.After}}
		for _, name := range []string{"who", "did", "on", "from", "until"} {
			if text := field(name); text != "" {
				v.Set(name, text)
			}
		}
		d.Next = "/audit?" + v.Encode()
	}
	return view{template: "audit", title: "Audit", nav: "/audit", command: "redrive audit", data: d}, err
}

// readTime reads a time as forms have it; without a zone it is UTC.
func readTime(s string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02 15:04:05", "2006-01-02"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}
