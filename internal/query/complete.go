package query

import "strings"

// Suggestion is what the last word of a query may become.
type Suggestion struct {
	Text string `json:"text"` // the whole word
	Doc  string `json:"doc"`
}

// Complete proposes how the last word of a query may go on: fields, and the values
// of those that have few.
func Complete(text string) []Suggestion {
	word := text[strings.LastIndexAny(text, " \t\n(")+1:]
	negated := strings.HasPrefix(word, "-")
	word = strings.TrimPrefix(word, "-")
	if strings.Contains(word, `"`) {
		return nil
	}
	var all []Suggestion
	propose := func(s, doc string) {
		if negated {
			s = "-" + s
		}
		all = append(all, Suggestion{s, doc})
	}
	if name, value, ok := strings.Cut(word, ":"); ok {
		if f := fieldNamed[name]; f != nil {
			for _, v := range f.values {
				if strings.HasPrefix(v, value) && v != value {
					propose(name+":"+v, "")
				}
			}
		}
		return all
	}
	for _, f := range append(fields[:len(fields):len(fields)], headerField, bodyField) {
		if !strings.HasPrefix(f.name, word) {
			continue
		}
		if f.kind == anything {
			propose(f.name, f.doc)
		} else {
			propose(f.name+":", f.doc)
		}
	}
	return all
}
