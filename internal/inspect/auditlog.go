package inspect

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/policy"
)

// maxAuditPage bounds the texts of a page of the audit log, in bytes: one line may name 1,000 messages.
const maxAuditPage = 1 << 20

// AuditFilter chooses entries of the audit log; what is empty chooses all.
type AuditFilter struct {
	Who   string `query:"who" maxLength:"256" doc:"Of this person or token; * is any text, ? one character."`
	On    string `query:"on" maxLength:"256" doc:"On this queue, also where a query names it, or on this id."`
	Did   string `query:"did" maxLength:"256" doc:"This action, also by operations; * is any." example:"operation.*"`
	Since string `query:"since" maxLength:"40" doc:"Not before this time or date, or this long ago." example:"2h"`
	Until string `query:"until" maxLength:"40" doc:"Before this time or date, or longer ago than this."`
}

// AuditLog returns a page of who did what, newest first; after is the end of the page before. A page may be
// short, even empty, and not be the last.
func (in *Inspector) AuditLog(
	ctx context.Context, by auth.Caller, f AuditFilter, after string, limit int,
) (page []audit.Entry, next string, err error) {
	if err := by.MaySee(auth.Admin); err != nil {
		return nil, "", err
	}
	if by.Queues != nil { // a line may name any queue, in free text
		return nil, "", fmt.Errorf("%w: the audit log is about all queues, and %s is limited to some",
			auth.ErrForbidden, by.Name)
	}
	since, before, err := f.between(in.Now())
	if err != nil {
		return nil, "", err
	}
	if after != "" {
		end, err := strconv.ParseInt(after, 10, 64)
		if err != nil || end < 1 {
			return nil, "", fmt.Errorf("%w: %.60q is not the end of a page", ErrInvalid, after)
		}
		before = min(before, end)
	}
	if limit, err = PageSize(limit); err != nil {
		return nil, "", err
	}
	page = []audit.Entry{}
	if in.Audit == nil {
		return page, "", nil
	}
	began, size, last := time.Now(), 0, int64(0)
	err = in.Audit.Before(ctx, before, yielding(ctx, in, func(e audit.Entry) (bool, error) {
		if e.N < since {
			return false, nil
		}
		late := last != 0 && time.Since(began) > maxLookTime
		if match := f.matches(&e); match && !late {
			size += len(e.On) + len(e.Why)
			if late = len(page) == limit || size > maxAuditPage && len(page) > 0; !late {
				page = append(page, e)
			}
		}
		if late {
			next = strconv.FormatInt(last, 10)
			return false, nil
		}
		last = e.N
		return true, nil
	}))
	return page, next, err
}

// between returns the numbers of the entries from since on, and of those before until.
func (f *AuditFilter) between(now time.Time) (since, before int64, err error) {
	before = math.MaxInt64
	for _, t := range []struct {
		name, text string
		n          *int64
	}{{"since", f.Since, &since}, {"until", f.Until, &before}} {
		if t.text == "" {
			continue
		}
		at, ok := query.ParseAgo(t.text, now)
		if !ok {
			return 0, 0, fmt.Errorf("%w: %s is %.40q: expected how long ago, such as 2h, or a time such as "+
				"2026-11-21T10:00Z", ErrInvalid, t.name, t.text)
		}
		*t.n = at.UnixMicro()
	}
	return since, before, nil
}

func (f *AuditFilter) matches(e *audit.Entry) bool {
	return (f.Who == "" || policy.MatchQueue(f.Who, e.Who)) && (f.On == "" || mentions(e.On, f.On)) &&
		(f.Did == "" || policy.MatchQueue(f.Did, e.Did) || policy.MatchQueue(f.Did, verbOf(e)))
}

// verbOf returns the verb of an operation's entry, which follows its id; "" for other entries.
func verbOf(e *audit.Entry) string {
	if !strings.HasPrefix(e.Did, "operation.") {
		return ""
	}
	_, does, _ := strings.Cut(e.On, ": ")
	verb, _, _ := strings.Cut(does, " ")
	return verb
}

// Does says in words what an entry did: "start replay" for operation.start. The filter Did takes the code.
func Does(e audit.Entry) string {
	of, what, coded := strings.Cut(e.Did, ".")
	verb := cmp.Or(verbOf(&e), "operation")
	switch {
	case e.Did == "operation.end":
		return "end of " + verb
	case coded && of == "operation":
		return what + " " + verb
	case coded && of == "reported":
		return strings.ReplaceAll(what, ".", " ") + ", as reported"
	}
	return strings.ReplaceAll(e.Did, ".", " ")
}

// mentions reports whether a text has a name in it, not as a part of a longer one, or a query for names that
// this one matches.
func mentions(text, name string) bool {
	for at := 0; ; {
		i := strings.Index(text[at:], name)
		if i < 0 {
			break
		}
		at += i + len(name)
		if !strings.ContainsFunc(lastOf(text[:at-len(name)])+firstOf(text[at:]), inName) {
			return true
		}
	}
	if !strings.Contains(text, "queue:") || !strings.ContainsAny(text, "*?") {
		return false
	}
	for _, word := range strings.Fields(text) {
		if _, pattern, ok := strings.Cut(word, "queue:"); ok && strings.ContainsAny(pattern, "*?") &&
			policy.MatchQueue(strings.Trim(pattern, `()"`), name) {
			return true
		}
	}
	return false
}

func firstOf(s string) string { return s[:min(len(s), 1)] }

func lastOf(s string) string { return s[max(len(s)-1, 0):] }

// inName reports whether a byte before or after a name belongs to a longer name.
func inName(r rune) bool {
	return r == '.' || r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}
