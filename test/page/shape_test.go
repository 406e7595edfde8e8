package page_test

import (
	"io"
	"maps"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/net/html"
)

// shape is all elements of a page with all their attributes: what templates write,
// and nothing that a message contains.
type shape map[string]bool

// shapeOf reads a page as a browser does, and complains about what no page of ours
// has: what is odd in texts, and links that lead elsewhere.
func shapeOf(t *testing.T, name string, r io.Reader) shape {
	t.Helper()
	doc, err := html.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	all := shape{}
	for n := range doc.Descendants() {
		switch n.Type {
		case html.CommentNode:
			t.Errorf("%s: a comment: %.100q", name, n.Data)
		case html.TextNode:
			if n.Parent.Data == "textarea" {
				break // returns what it was given
			}
			if i := strings.IndexFunc(n.Data, odd); i >= 0 {
				t.Errorf("%s: in a text is %.20q, which cannot be seen", name, n.Data[i:])
			}
		case html.ElementNode:
			all[n.Data] = true
			for _, a := range n.Attr {
				all[n.Data+" "+a.Key] = true
				switch a.Key {
				case "href", "src", "action", "formaction", "hx-get":
					if !strings.HasPrefix(a.Val, "/") && !strings.HasPrefix(a.Val, "#") || strings.HasPrefix(a.Val, "//") || strings.HasPrefix(a.Val, `/\`) {
						t.Errorf("%s: <%s %s=%.100q> leads elsewhere", name, n.Data, a.Key, a.Val)
					}
				case "title", "aria-label":
					if i := strings.IndexFunc(a.Val, odd); i >= 0 {
						t.Errorf("%s: in %s is %.20q, which cannot be seen", name, a.Key, a.Val[i:])
					}
				}
			}
		}
	}
	return all
}

// odd is what cannot be seen, or turns the text around it.
func odd(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r))
}

// ordinary is the shape of all pages of a shop that no one attacks, with their errors.
func ordinary(t *testing.T) shape {
	s := newShop(t, options{})
	all := shape{}
	for _, path := range append(pages(s), "/messages/"+s.order+"/edit", "/plans/"+s.blocked, "/nowhere", "/messages?q=staat:x", "/errors?q=staat:x", "/signin?error=refused", "/messages?q=state%3Adiscarded") {
		body, _ := s.get(t, path)
		maps.Copy(all, shapeOf(t, path, strings.NewReader(body)))
	}
	for _, is := range []string{"del", "ins", "i", "mark", "span class", "ul", "li", "a rel", "details open"} { // of differences and the like
		all[is] = true
	}
	return all
}

func pages(s *stocked) []string {
	return []string{"/", "/messages", "/messages?q=", "/messages?q=state%3Awaiting", "/messages?q=state%3Areturned", "/messages/" + s.order, "/messages/" + s.waiting,
		"/errors", "/queues", "/operations", "/operations/" + s.running, "/operations/" + s.paused, "/plans/" + s.plan, "/policies", "/audit", "/health", "/help"}
}
