package webui

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
)

// actData is an action on messages that are named: before it, as what it would
// do, and after it, as what came of it.
type actData struct {
	actions.Act
	actions.Acted
	When     string // of the form: a time as the browser gives it
	Back     string // the query of the list it was chosen in
	Columns  string // of that list
	Sort     string // likewise
	One      bool   // chosen on the page of the message
	Happened bool   // it was done, and not only shown
	Skipped  int
	Asks     bool   // for the queue of the copies
	Problem  string // with that queue
}

// act shows what an action would do and, once that is confirmed, does it.
func (s *server) act(r *http.Request, c auth.Caller) (view, error) {
	in := r.PostForm
	d := actData{When: in.Get("at"), Back: in.Get("q"), Columns: in.Get("columns"), Sort: in.Get("sort"),
		One: in.Get("one") != "", Happened: in.Get("confirmed") != ""}
	at, err := due(in)
	if err != nil {
		return view{}, err
	}
	d.Act = actions.Act{Verb: actions.Verb(in.Get("verb")), IDs: in["id"], At: at, To: strings.TrimSpace(in.Get("to")),
		Reason: strings.TrimSpace(in.Get("reason")), DryRun: !d.Happened}
	if len(d.IDs) == 0 {
		return view{}, fmt.Errorf("%w: no message was selected", inspect.ErrInvalid)
	}
	ask := view{template: "act", title: d.Verb.Title(), nav: "/messages"}
	if d.Verb.Info().ToQueue && d.To == "" {
		d.Asks = true
		ask.data = d
		return ask, nil
	}
	d.Acted, err = s.console.Act(r.Context(), c, d.Act)
	if d.To != "" && errors.Is(err, inspect.ErrPrecondition) { // such as a queue that does not exist: ask again
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
		back := messagesURL(d.Back, d.Columns, d.Sort)
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
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04",
		"2006-01-02 15:04:05"} {
		if t, err := time.Parse(layout, s); err == nil {
			return &t, nil
		}
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
	"note":   "note saved",
	"state":  "the group's state is set",

	"follow":   "the queue is followed within seconds",
	"unfollow": "the queue is no longer followed; what is parked or waits stays",
}

// did says in words what was done, from the URL that an action leads to; nothing else of the URL
// is shown.
func did(q url.Values) string {
	if text, ok := results[q.Get("did")]; ok {
		return text
	}
	n, err := strconv.Atoi(q.Get("n"))
	v := actions.Verb(q.Get("did")).Info()
	if err != nil || v.Verb == "" || n < 0 {
		return ""
	}
	return plural(n, v.One, v.More)
}

// follow starts or stops following a dead-letter queue.
func (s *server) follow(r *http.Request, c auth.Caller) (view, error) {
	in, err := r.PostForm, error(nil)
	did := "follow"
	if in.Get("stop") != "" {
		did, err = "unfollow", s.console.Unfollow(r.Context(), c, in.Get("from"), in.Get("reason"))
	} else {
		err = s.console.Follow(r.Context(), c, in.Get("from"), operations.FollowRequest{
			Queue: strings.TrimSpace(in.Get("queue")), Then: in.Get("then"), Reason: in.Get("reason")})
	}
	if err != nil {
		return view{}, err
	}
	return view{to: "/?did=" + did + "&n=1"}, nil
}

func (s *server) pause(r *http.Request, c auth.Caller) (view, error) {
	if err := s.console.PauseQueue(r.Context(), c, r.PostForm.Get("queue"), r.PostForm.Get("reason")); err != nil {
		return view{}, err
	}
	return queueChanged(r, "pause"), nil
}

func (s *server) resume(r *http.Request, c auth.Caller) (view, error) {
	if err := s.console.ResumeQueue(r.Context(), c, r.PostForm.Get("queue"), r.PostForm.Get("reason")); err != nil {
		return view{}, err
	}
	return queueChanged(r, "resume"), nil
}

func (s *server) breaker(r *http.Request, c auth.Caller) (view, error) {
	to := r.PostForm.Get("to")
	if err := s.console.Breaker(r.Context(), c, r.PostForm.Get("queue"), to, r.PostForm.Get("reason")); err != nil {
		return view{}, err
	}
	return queueChanged(r, to), nil
}

// queueChanged leads to the page on which a queue was changed.
func queueChanged(r *http.Request, did string) view {
	to := "/queues"
	if r.PostForm.Get("back") != "" {
		to = queueURL(r.PostForm.Get("queue"))
	}
	return view{to: to + "?" + url.Values{"did": {did}, "n": {"1"}}.Encode()}
}

func (s *server) noteGroup(r *http.Request, c auth.Caller) (view, error) {
	if err := s.console.NoteGroup(r.Context(), c, r.PathValue("id"),
		strings.TrimSpace(r.PostForm.Get("note"))); err != nil {
		return view{}, err
	}
	in := r.PostForm
	return view{to: "/groups?" + kept(url.Values{"q": {in.Get("q")}, "state": {in.Get("state")},
		"sort": {in.Get("sort")}, "did": {"note"}, "n": {"1"}})}, nil
}

func (s *server) setGroupState(r *http.Request, c auth.Caller) (view, error) {
	id, in := r.PathValue("id"), r.PostForm
	err := s.console.SetGroupState(r.Context(), c, id, in.Get("state"), strings.TrimSpace(in.Get("note")))
	if err != nil {
		return view{}, err
	}
	return view{to: "/groups/" + url.PathEscape(id) + "?did=state&n=1"}, nil
}

// plan makes a plan of an action on all that a query finds, and shows it.
func (s *server) plan(r *http.Request, c auth.Caller) (view, error) {
	in := r.PostForm
	at, err := due(in)
	if err != nil {
		return view{}, err
	}
	look := 0
	if text := strings.TrimSpace(in.Get("sample")); text != "" {
		if look, err = strconv.Atoi(text); err != nil {
			return view{}, fmt.Errorf("%w: %.40q is not a number of messages", inspect.ErrInvalid, text)
		}
	}
	q := in.Get("q")
	if ids := strings.Fields(strings.Join(in["group"], " ")); len(ids) > 0 {
		q = "state:parked " + inspect.GroupsQuery(ids...)
	}
	p, err := s.console.Plan(r.Context(), c, operations.PlanRequest{
		Verb: actions.Verb(in.Get("verb")), Query: q, At: at,
		From: in.Get("from"), Sample: look, RestOf: in.Get("rest_of"), DiscardedBy: in.Get("discarded_by"),
		To: strings.TrimSpace(in.Get("to")), Reason: strings.TrimSpace(in.Get("reason"))})
	if err != nil {
		return view{}, err
	}
	return view{to: "/plans/" + url.PathEscape(p.ID)}, nil
}

func (s *server) showPlan(r *http.Request, c auth.Caller) (view, error) {
	p, err := s.console.GetPlan(r.Context(), c, r.PathValue("id"))
	if err != nil {
		return view{}, err
	}
	d := planData{Plan: p}
	if all, state := tabs(p.Query); state == inspect.Parked && p.RestOf == "" && p.DiscardedBy == "" {
		d.Waits = all[0].Query
		n, known, err := s.console.CountStates(r.Context(), c, d.Waits)
		if err == nil && known {
			d.Waiting = n.Waiting
		}
	}
	return view{template: "plan", title: "Plan", nav: "/operations", command: planCommand(p), data: d}, nil
}

// planData is a plan, and how many waiting messages it leaves out.
type planData struct {
	operations.Plan
	Waits   string // the query of the waiting ones
	Waiting int64
}

func planCommand(p operations.Plan) string {
	words := []string{"redrive", string(p.Verb), "--query", p.Query}
	switch {
	case p.RestOf != "":
		words = []string{"redrive", string(p.Verb), "--rest-of", p.RestOf}
	case p.DiscardedBy != "":
		words = []string{"redrive", string(p.Verb), "--discarded-by", p.DiscardedBy}
	case p.From != "":
		words = []string{"redrive", string(p.Verb), p.From}
		for _, queue := range p.WorkQueues {
			words = append(words, "--queue", queue)
		}
		if p.Format != "" {
			words = append(words, "--from", p.Format)
		}
	case p.Verb == actions.Unadopt:
		return command("redrive", string(p.Verb), p.To, "--dry-run")
	}
	if p.At != nil {
		words = append(words, "--at", p.At.Format(time.RFC3339))
	}
	if p.To != "" {
		words = append(words, "--to", p.To)
	}
	return command(append(words, "--dry-run")...)
}

func (s *server) start(r *http.Request, c auth.Caller) (view, error) {
	in := r.PostForm
	st := operations.Start{CanaryWait: strings.TrimSpace(in.Get("canary_wait")),
		Reason: strings.TrimSpace(in.Get("reason"))}
	n, err := strconv.ParseInt(in.Get("expect_count"), 10, 64)
	if err != nil {
		return view{}, fmt.Errorf("%w: the form does not say how many messages it was about", inspect.ErrInvalid)
	}
	st.ExpectCount = &n
	if v := strings.TrimSpace(in.Get("rate")); v != "" {
		if st.Rate, err = strconv.ParseFloat(v, 64); err != nil || !(st.Rate >= 0) {
			return view{}, fmt.Errorf("%w: the rate %q is not a number of messages a second", inspect.ErrInvalid, v)
		}
	}
	if v := strings.TrimSpace(in.Get("canary")); v != "" {
		if st.CanarySize, err = strconv.Atoi(v); err != nil || st.CanarySize < 0 {
			return view{}, fmt.Errorf("%w: the canary %q is not a number of messages", inspect.ErrInvalid, v)
		}
	}
	o, err := s.console.Start(r.Context(), c, r.PathValue("id"), st)
	if err != nil {
		return view{}, err
	}
	return view{to: operationURL(o.ID)}, nil
}

func (s *server) order(r *http.Request, c auth.Caller) (view, error) {
	order := operations.Order(r.PathValue("order"))
	if !slices.Contains([]operations.Order{operations.Pause, operations.Resume, operations.Cancel}, order) {
		return view{}, inspect.ErrNotFound
	}
	if _, err := s.console.Order(r.Context(), c, r.PathValue("id"), order); err != nil {
		return view{}, err
	}
	return view{to: operationURL(r.PathValue("id"))}, nil
}

// editData is the page where a message is edited, with the differences once they
// were asked for.
type editData struct {
	inspect.Message
	Ref      string
	As       string // "document", "text", or "" where a body cannot be edited here
	HeldBy   []inspect.Hold
	Masked   string // why a part, or all, of the body is not shown
	Steps    string // that a document goes back through
	Content  string // of the text area
	Headers  []editHeader
	Added    []inspect.Header // by the form
	When     string
	Reason   string
	Preview  *actions.Edited
	Problem  string // why the preview failed
	Original string // of Content
}

// editHeader is a header of the form. Those of the broker and of Redrive cannot be
// edited and are not among them.
type editHeader struct {
	inspect.Header
	Removed bool
	Was     string
}

// maxEdited is the longest body that is edited in a browser; longer ones go by way
// of the command line.
const maxEdited = 1 << 20

func (s *server) editOf(r *http.Request, c auth.Caller) (editData, error) {
	id := r.PathValue("id")
	m, err := s.console.Message(r.Context(), c, id)
	if err != nil {
		return editData{}, err
	}
	d := editData{Message: m.Message, HeldBy: m.HeldBy, Ref: id}
	for _, h := range m.Headers {
		if h.From == "publisher" && h.Type != "table" && h.Type != "array" && formKeeps(h.Name) && formKeeps(h.Value) {
			d.Headers = append(d.Headers, editHeader{Header: h, Was: h.Value})
		}
	}
	if m.Body == nil {
		return d, nil
	}
	var steps []string
	for _, st := range m.Body.Steps {
		steps = append(steps, st.Decoder)
	}
	d.Masked = m.Body.Masked
	d.Steps = strings.Join(steps, " → ")
	switch m.Body.Format {
	case "json", "protobuf":
		if !m.Body.Truncated && len(m.Body.Text) <= maxEdited && (m.Body.Format != "protobuf" || m.Body.Schema != "") {
			d.As, d.Content = "document", m.Body.Text
		}
	case "text", "xml", "empty":
		if len(steps) > 1 || m.Body.Masked != "" {
			break // what is in base64 or compressed goes back only as a document
		}
		body, err := s.console.Body(r.Context(), c, id)
		if err != nil {
			return d, err
		}
		// A form's text has its line ends changed: what has \r is not for it.
		if utf8.Valid(body) && len(body) <= maxEdited && !strings.ContainsAny(string(body), "\r\x00") {
			d.As, d.Content = "text", string(body)
		}
	}
	d.Original = d.Content
	return d, nil
}

func (s *server) edit(r *http.Request, c auth.Caller) (view, error) {
	d, err := s.editOf(r, c)
	if err == nil {
		err = c.May(auth.Editor, d.Queue) // a form that can only be refused is no help
	}
	return editView(d), err
}

// formKeeps reports whether a form field returns a text unchanged.
func formKeeps(s string) bool { return utf8.ValidString(s) && !strings.ContainsAny(s, "\r\n\x00") }

func editView(d editData) view {
	return view{template: "edit", title: "Edit", nav: "/messages", command: command("redrive", "edit", d.Ref), data: d}
}

// postEdit shows the differences, or sends the edited message.
func (s *server) postEdit(r *http.Request, c auth.Caller) (view, error) {
	d, err := s.editOf(r, c)
	if err != nil {
		return view{}, err
	}
	req, err := d.fill(r.PostForm)
	if err != nil {
		return view{}, err
	}
	req.DryRun = r.PostForm.Get("send") == ""
	e, err := s.console.Edit(r.Context(), c, req)
	if err != nil {
		d.Problem = err.Error() // with all that was typed
		v := editView(d)
		v.status = errorView(err).status
		return v, nil
	}
	if !req.DryRun {
		return view{to: messageURL(e.New)}, nil
	}
	d.Preview = &e
	return editView(d), nil
}

// fill puts into d what the form holds, and makes the request of it.
func (d *editData) fill(in url.Values) (actions.EditRequest, error) {
	req := actions.EditRequest{ID: d.Ref, Reason: strings.TrimSpace(in.Get("reason")), SetHeaders: map[string]string{}}
	d.Reason, d.When = req.Reason, in.Get("at")
	var err error
	if req.At, err = due(in); err != nil {
		return req, err
	}
	if in.Has("content") {
		d.Content = strings.ReplaceAll(in.Get("content"), "\r\n", "\n")
		switch {
		case d.Content == d.Original:
		case d.As == "document":
			req.Document = &d.Content
		case d.As == "text":
			b := []byte(d.Content)
			req.Body = &b
		}
	}
	removed := in["remove"]
	for i := range d.Headers {
		h := &d.Headers[i]
		n := strconv.Itoa(i)
		if in.Get("name."+n) != h.Name {
			return req, fmt.Errorf("%w: the message's headers have changed since the form was made",
				inspect.ErrPrecondition)
		}
		h.Value, h.Removed = in.Get("value."+n), slices.Contains(removed, h.Name)
		switch {
		case h.Removed:
			req.RemoveHeaders = append(req.RemoveHeaders, h.Name)
		case h.Value != h.Was:
			req.SetHeaders[h.Name] = h.Value
		}
	}
	values := in["new.value"]
	for i, name := range in["new.name"] {
		if name = strings.TrimSpace(name); name != "" && i < len(values) {
			req.SetHeaders[name] = values[i]
			d.Added = append(d.Added, inspect.Header{Name: name, Value: values[i]})
		}
	}
	return req, nil
}
