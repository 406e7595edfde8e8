package webui

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// editData is the page where a message is edited, with the differences once they
// were asked for.
type editData struct {
	inspect.Message
	Ref      string
	Type     string // of Protobuf, where a person named it
	As       string // "document", "text", or "" where a body cannot be edited here
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

// mostEdited is the longest body that is edited in a browser; longer ones go by way
// of the command line.
const mostEdited = 1 << 20

func (s *server) editOf(r *http.Request, c auth.Caller) (editData, error) {
	id := r.PathValue("id")
	m, err := s.console.Message(r.Context(), c, id, inspect.ReadAs{Type: r.FormValue("type")})
	if err != nil {
		return editData{}, err
	}
	d := editData{Message: m.Message, Ref: id, Type: r.FormValue("type")}
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
	d.Steps = strings.Join(steps, " → ")
	switch m.Body.Format {
	case "json", "protobuf":
		if !m.Body.Truncated && len(m.Body.Text) <= mostEdited && (m.Body.Format != "protobuf" || m.Body.Schema != "") {
			d.As, d.Content = "document", m.Body.Text
		}
	case "text", "xml", "empty":
		if len(steps) > 1 {
			break // what is in base64 or compressed goes back only as a document
		}
		body, err := s.console.Body(r.Context(), c, id)
		if err != nil {
			return d, err
		}
		// A form's text has its line ends changed: what has \r is not for it.
		if utf8.Valid(body) && len(body) <= mostEdited && !strings.ContainsAny(string(body), "\r\x00") {
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

// formKeeps tells whether a form field returns a text unchanged.
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
	if r.PostForm.Get("check") != "" { // as it is being written
		return s.checkEdit(r, c, d, req, err), nil
	}
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

// checkEdit says whether what is written could be sent, and changes nothing.
func (s *server) checkEdit(r *http.Request, c auth.Caller, d editData, req actions.EditRequest, err error) view {
	req.DryRun = true
	var e actions.Edited
	if err == nil {
		e, err = s.console.Edit(r.Context(), c, req)
	}
	d.Preview = &e
	if err != nil {
		d.Problem = err.Error()
	}
	return view{template: "edit", part: "editcheck", data: d}
}

// fill puts into d what the form holds, and makes the request of it.
func (d *editData) fill(in url.Values) (actions.EditRequest, error) {
	req := actions.EditRequest{ID: d.Ref, Reason: strings.TrimSpace(in.Get("reason")), Type: d.Type, SetHeaders: map[string]string{}}
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
			return req, fmt.Errorf("%w: the message's headers have changed since the form was made", inspect.ErrPrecondition)
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
