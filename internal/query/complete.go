package query

import "strings"

// Suggestion is what the last word of a query may become.
type Suggestion struct {
	Text string `json:"text" doc:"The whole word."`
	Doc  string `json:"doc,omitempty"`
}

// Names completes the values of a field by what there is, such as the queues that a caller sees;
// nil: nothing is known of the field.
type Names func(field string) []string

// Complete proposes how the last word of a query may go on: fields, and the values
// of those that have few, or that names knows. Where onlyGroups is set, the query is one about
// error groups.
func Complete(text string, names Names, onlyGroups bool) []Suggestion {
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
		if f := fieldNamed[name]; f != nil && (!onlyGroups || isOfGroups(f)) {
			for _, v := range f.proposed(names) {
				if strings.HasPrefix(v, value) && v != value {
					if !plain(v) {
						v = Quote(v)
					}
					propose(name+":"+v, "")
				}
			}
		}
		return all
	}
	for _, f := range append(fields[:len(fields):len(fields)], headerField, bodyField) {
		if !strings.HasPrefix(f.name, word) || onlyGroups && !isOfGroups(f) {
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

// proposed are the values that complete a field.
func (f *field) proposed(names Names) []string {
	if f.values == nil && names != nil {
		return names(f.name)
	}
	return f.values
}
