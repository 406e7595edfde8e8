package webui

import (
	"html/template"
	"maps"
	"strings"

	"github.com/redrive-mq/redrive/internal/inspect"
)

// Handlers and templates use paths as if the page were alone at its host. The base of one
// virtual host of several is put before a path last: in templates by at, for redirects by
// render, in the page's script by its own at.

// VHost is one of the virtual hosts that a service serves, each with a page of its
// own.
type VHost struct {
	Name string
	URL  string // of its first page, such as /v/shop/
	// Ready is false while its page has little to show, since RabbitMQ or its store
	// does not answer.
	Ready bool
	Here  bool // its page is this one
}

// at is where a browser finds a path of this page's.
func (s *server) at(path string) string { return s.Base + path }

// here adds to a redrive command the virtual host that the page shows.
func (s *server) here(line string) string {
	if s.VHost == "" {
		return line
	}
	return "redrive --vhost " + shellWord(s.VHost) + strings.TrimPrefix(line, "redrive")
}

// functions are what this page's templates can call.
func (s *server) functions() template.FuncMap {
	all := maps.Clone(functions)
	maps.Copy(all, template.FuncMap{
		"at":       s.at,
		"here":     s.here,
		"asset":    func(name string) string { return s.at(assetURL(name)) },
		"find":     func(pairs ...string) string { return s.at(findURL(pairs...)) },
		"listing":  func(query, cols string) string { return s.at(listURL(query, cols)) },
		"messages": func(query string) string { return s.at(messagesURL(query)) },
		"message":  func(id string) string { return s.at(messageURL(id)) },
		"queuesOf": func(policy string) string { return s.at(queuesURL(inspect.QueueQuery{Policy: policy}, "", false, "")) },
		"queue":    func(name string) string { return s.at(queueURL(name)) },
	})
	return all
}
