package webui

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// actData is an action on messages that are named: before it, as what it would
// do, and after it, as what came of it.
type actData struct {
	actions.Act
	actions.Acted
	When     string // of the form: a time as the browser gives it
	Back     string // the query of the list it was chosen in
	Cols     string // the columns of that list
	All      bool   // that match the query are meant
	One      bool   // chosen on the page of the message
	Happened bool   // it was done, and not only shown
	Skipped  int
	Asks     bool   // for the queue of the copies
	Problem  string // with that queue
}

// act shows what an action would do and, once that is confirmed, does it.
func (s *server) act(r *http.Request, c auth.Caller) (view, error) {
	in := r.PostForm
	d := actData{When: in.Get("at"), Back: in.Get("q"), Cols: in.Get("cols"), All: in.Get("all") != "", One: in.Get("one") != "", Happened: in.Get("confirmed") != ""}
	at, err := due(in)
	if err != nil {
		return view{}, err
	}
	d.Act = actions.Act{Verb: actions.Verb(in.Get("verb")), IDs: in["id"], At: at, To: strings.TrimSpace(in.Get("to")), Reason: strings.TrimSpace(in.Get("reason")), DryRun: !d.Happened}
	if d.All && (d.Verb != actions.Copy || d.To != "") {
		return s.plan(r, c)
	}
	if len(d.IDs) == 0 {
		return view{}, fmt.Errorf("%w: no message was selected", inspect.ErrInvalid)
	}
	ask := view{template: "act", title: "Copy", nav: "/messages"}
	if d.Verb == actions.Copy && d.To == "" {
		d.Asks = true
		ask.data = d
		return ask, nil
	}
	d.Acted, err = s.console.Act(r.Context(), c, d.Act)
	if d.Verb == actions.Copy && errors.Is(err, inspect.ErrPrecondition) { // such as a queue that does not exist: ask again
		d.Asks, d.Problem, ask.status = true, err.Error(), http.StatusConflict
		ask.data = d
		return ask, nil
	}
	if err != nil {
		return view{}, err
	}
	for _, o := range d.Outcomes {
		if o.Outcome != "done" {
			d.Skipped++
		}
	}
	if d.Happened && d.Skipped == 0 {
		back := listURL(d.Back, d.Cols)
		if d.One {
			back = messageURL(d.IDs[0]) + "?"
		} else {
			back += "&"
		}
		return view{to: back + url.Values{"did": {string(d.Verb)}, "n": {strconv.Itoa(d.Done)}}.Encode()}, nil
	}
	return view{template: "act", title: d.Verb.Title(), nav: "/messages", command: actCommand(d.Act), data: d}, nil
}

// actCommand does the same on the command line.
func actCommand(a actions.Act) string {
	words := append([]string{"redrive", string(a.Verb)}, a.IDs...)
	if a.At != nil {
		words = append(words, "--at", a.At.Format(time.RFC3339))
	}
	if a.To != "" {
		words = append(words, "--to", a.To)
	}
	if a.Reason != "" {
		words = append(words, "--reason", a.Reason)
	}
	return command(words...)
}

// due is the time of a form at which messages are retried: after a duration, or at a time;
// nil for now.
func due(in url.Values) (*time.Time, error) {
	if s := strings.TrimSpace(in.Get("in")); s != "" {
		d := duration(s)
		if d <= 0 {
			return nil, fmt.Errorf("%w: %q is not a while from now, such as 10m or 2h", inspect.ErrInvalid, s)
		}
		t := time.Now().Add(d).UTC().Truncate(time.Second)
		return &t, nil
	}
	s := strings.TrimSpace(in.Get("at"))
	if s == "" {
		return nil, nil
	}
	if t, ok := readTime(s); ok {
		return &t, nil
	}
	return nil, fmt.Errorf("%w: %q is not a time such as 2026-11-21T18:30 (UTC)", inspect.ErrInvalid, s)
}

// results are actions on queues and groups that were done, in words.
var results = map[string]string{
	"pause":  "retries paused, until a person resumes them",
	"resume": "retries resumed: due messages are retried now",
	"open":   "breaker open: retries are paused until it is set otherwise",
	"closed": "breaker closed: it does not open by itself",
	"auto":   "the breaker opens and closes by itself again",
	"note":   "note kept",
	"doctor": "the doctor runs: its findings appear below in some 20 seconds",
}

// did says in words what was done, from the URL that an action leads to; nothing else of the URL
// is shown.
func did(q url.Values) string {
	if text, ok := results[q.Get("did")]; ok {
		return text
	}
	n, err := strconv.Atoi(q.Get("n"))
	one, more := actions.Verb(q.Get("did")).Result()
	if err != nil || one == "" || n < 0 {
		return ""
	}
	return plural(n, one, more)
}

func (s *server) pause(r *http.Request, c auth.Caller) (view, error) {
	if err := s.console.PauseQueue(r.Context(), c, r.PostForm.Get("queue"), r.PostForm.Get("reason")); err != nil {
		return view{}, err
	}
	return backToQueue(r, "pause"), nil
}

func (s *server) resume(r *http.Request, c auth.Caller) (view, error) {
	if err := s.console.ResumeQueue(r.Context(), c, r.PostForm.Get("queue"), r.PostForm.Get("reason")); err != nil {
		return view{}, err
	}
	return backToQueue(r, "resume"), nil
}

func (s *server) breaker(r *http.Request, c auth.Caller) (view, error) {
	to := r.PostForm.Get("to")
	if err := s.console.Breaker(r.Context(), c, r.PostForm.Get("queue"), to, r.PostForm.Get("reason")); err != nil {
		return view{}, err
	}
	return backToQueue(r, to), nil
}

// backToQueue leads to where an action on a queue was chosen: its own page, or the list.
func backToQueue(r *http.Request, did string) view {
	done := url.Values{"did": {did}, "n": {"1"}}.Encode()
	if r.PostForm.Get("one") == "" {
		return view{to: "/queues?" + done}
	}
	at := queueURL(r.PostForm.Get("queue"))
	if strings.Contains(at, "?") {
		return view{to: at + "&" + done}
	}
	return view{to: at + "?" + done}
}
