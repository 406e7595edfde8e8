package webui

import (
	"cmp"
	"html"
	"html/template"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
)

// sorting is how the rows of a page are sorted, and where a click on a column leads.
type sorting struct {
	By    string // as in the link: a column, with a - before it where the largest is first; "": as they are stored
	Part  bool   // of the list, which has other pages
	heads map[string]sortedHead
}

type sortedHead struct {
	url string // sorts by it, or the other way round
	now string // of aria-sort; "": not sorted by it
}

// sortRows sorts the rows that are on a page by the column that its URL names, if it has that one. It compares what
// the caller sees of them. stored is the order in which the rows come, as in the link; more: there are other pages.
func sortRows[T any](
	s *server, u *url.URL, stored string, rows []T, more bool, by []inspect.Column[T],
) sorting {
	in, kept := u.Query(), url.Values{}
	for _, name := range []string{"q", "state", "columns", "after"} {
		if in.Has(name) {
			kept.Set(name, in.Get(name))
		}
	}
	o := sorting{Part: more || in.Get("after") != "", heads: map[string]sortedHead{}}
	wanted, down := strings.CutPrefix(in.Get("sort"), "-")
	for _, c := range by {
		if name := columnName(c); name == wanted && in.Get("sort") != stored {
			o.By = in.Get("sort")
			slices.SortStableFunc(rows, func(a, b T) int {
				if down {
					a, b = b, a
				}
				return keyOf(c.Of(a)).compare(keyOf(c.Of(b)))
			})
		}
	}
	now := cmp.Or(o.By, stored)
	for _, c := range by {
		name, h := columnName(c), sortedHead{}
		next := name
		switch {
		case now == name:
			h.now, next = "ascending", "-"+name
		case now == "-"+name:
			h.now = "descending"
		case len(rows) > 0 && keyOf(c.Of(rows[0])).rank != isText:
			next = "-" + name // a person looks for the most, or the latest
		}
		if kept.Del("sort"); next != stored {
			kept.Set("sort", next)
		}
		h.url = s.at(u.EscapedPath()) + "?" + kept.Encode()
		o.heads[cmp.Or(c.Head, c.Field)] = h
	}
	return o
}

// head is a heading that sorts by its column.
func (s sorting) head(h sortedHead, class, name, help string) template.HTML {
	title := "Sort by this"
	if s.Part {
		title = "Sort this page by this"
	}
	if help != "" {
		title = html.EscapeString(help) + ". " + title
	}
	if h.now != "" {
		class += ` aria-sort="` + h.now + `"`
	}
	return template.HTML(`<th scope="col"` + class + `><a href="` + html.EscapeString(h.url) + `" title="` +
		title + `">` + name + `</a></th>`)
}

func columnName[T any](c inspect.Column[T]) string { return cmp.Or(strings.ToLower(c.Field), c.Head) }

// sortKey orders the values of a column: what is not known, numbers and times, texts.
type sortKey struct {
	rank   int
	number int64
	text   string
}

const (
	isUnknown = iota
	isNumber
	isText
)

func (k sortKey) compare(o sortKey) int {
	return cmp.Or(cmp.Compare(k.rank, o.rank), cmp.Compare(k.number, o.number), hint.Natural(k.text, o.text))
}

func keyOf(v any) sortKey {
	switch v := v.(type) {
	case int:
		return sortKey{rank: isNumber, number: int64(v)}
	case int64:
		return sortKey{rank: isNumber, number: v}
	case []int64:
		k := sortKey{rank: isNumber}
		for _, n := range v {
			k.number += n
		}
		return k
	case time.Time, *time.Time:
		if t := moment(v); !t.IsZero() {
			return sortKey{rank: isNumber, number: t.UnixMicro()}
		}
	case string:
		if v != "" {
			return sortKey{rank: isText, text: v}
		}
	}
	return sortKey{}
}
