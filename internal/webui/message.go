package webui

import (
	"net/http"
	"strings"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// messageData is one message.
type messageData struct {
	inspect.Detail
	Ref      string // as it was asked for
	Text     string // of the body, as much as is shown
	Cut      bool   // there is more of it
	Coloured bool   // Text is JSON that is short enough to be coloured
	Verbs    []actions.Verb
	Editable bool
}

const (
	// mostShown of a decoded body is in the page at first; what is longer makes
	// browsers slow.
	mostShown = 64 << 10
	// mostColoured: each token of JSON is an element of the page.
	mostColoured = 24 << 10
)

func (s *server) message(r *http.Request, c auth.Caller) (view, error) {
	id := r.PathValue("id")
	m, err := s.console.Message(r.Context(), c, id, inspect.ReadAs{Type: r.FormValue("type"), Defaults: r.FormValue("defaults") != "0"})
	if err != nil {
		return view{}, err
	}
	d := messageData{Detail: m, Ref: id, Verbs: verbsOf(m.State), Editable: m.State == inspect.Parked || m.State == inspect.Waiting}
	if m.Body != nil {
		d.Text = m.Body.Text
		if len(d.Text) > mostShown && r.URL.Query().Get("body") != "all" {
			d.Text, d.Cut = strings.ToValidUTF8(d.Text[:mostShown], ""), true // without half a character
		}
		switch m.Body.Format {
		case "json", "protobuf", "messagepack", "cbor":
			d.Coloured = len(d.Text) <= mostColoured
		}
	}
	return view{template: "message", title: "Message in " + short(60, m.Queue), nav: "/messages", command: command("redrive", "messages", "show", id), data: d}, nil
}

// body is the raw body, as a download: a browser must never show it as a page.
func (s *server) body(w http.ResponseWriter, r *http.Request) {
	c := s.Caller(r)
	b, err := s.console.Body(r.Context(), c, r.PathValue("id"))
	if err != nil {
		s.render(w, r, c, errorView(err))
		return
	}
	download(w, "body.bin")
	_, _ = w.Write(b)
}

// token is a piece of JSON and what it is.
type token struct{ Kind, Text string }

// tokens splits JSON for colouring. Joined, they are the text, also when it is not JSON.
func tokens(s string) (all []token) {
	add := func(kind string, n int) {
		all = append(all, token{kind, s[:n]})
		s = s[n:]
	}
	for s != "" {
		switch c := s[0]; {
		case c == '"':
			n := 1
			for n < len(s) && s[n] != '"' {
				if s[n] == '\\' {
					n++
				}
				n++
			}
			n = min(n+1, len(s))
			kind := "str"
			if n < len(s) && s[n] == ':' {
				kind = "key"
			}
			add(kind, n)
		case c == '-' || c >= '0' && c <= '9':
			add("num", len(s)-len(strings.TrimLeft(s, "+-.eE0123456789")))
		case c >= 'a' && c <= 'z':
			add("word", len(s)-len(strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyz")))
		default:
			n := 1
			for n < len(s) && s[n] != '"' && s[n] != '-' && (s[n] < '0' || s[n] > '9') && (s[n] < 'a' || s[n] > 'z') {
				n++
			}
			add("", n)
		}
	}
	return all
}
