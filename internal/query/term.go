package query

import "strings"

// term reads one condition: a field with a value, or a text by itself.
func (p *parser) term() node {
	from := p.at
	t := &term{at: from}
	var word string
	if p.peek(`"`) {
		l := literal{text: p.quoted(), quoted: true}
		return p.text(t, from, l)
	}
	if word = p.bare(":"); !p.peek(":") && !(p.peek(`"`) && (word == headerField.name || word == bodyField.name)) {
		if word == "*" {
			t.op = exists
		}
		return p.text(t, from, literal{text: word, quoted: true})
	}
	p.named(t, from, word)
	if !p.peek(":") {
		p.fail(p.at, "expected a : and a value")
	}
	p.at++
	p.value(t)
	p.close()
	return t
}

// text is a word or a text without a field.
func (p *parser) text(t *term, from int, l literal) node {
	t.field, t.a = fieldNamed["text"], l
	if l.text == "" {
		p.fail(from, "expected something between the quotes")
	}
	p.interpret(t, &t.a, from)
	p.close()
	return t
}

// close refuses what follows a term without a space.
func (p *parser) close() {
	if !p.end() && (p.peek(`"`) || p.peek("(") || !ends(p.in[p.at])) {
		p.fail(p.at, "expected a space before this")
	}
	p.space()
}

// named finds the field.
func (p *parser) named(t *term, from int, word string) {
	for _, f := range []*field{headerField, bodyField} {
		path, ok := strings.CutPrefix(word, f.name)
		if !ok {
			continue
		}
		if path == "" && p.peek(`"`) {
			path = p.quoted()
		}
		if path == "" {
			p.fail(p.at, "expected a name after %s, as in %s", f.name, f.example)
		}
		t.field, t.path = f, path
		return
	}
	if t.field = fieldNamed[word]; t.field != nil {
		return
	}
	switch word {
	case "":
		p.fail(from, "expected a field before the :")
	case "header", "body":
		p.fail(from, "expected a name or a path, as in %s", map[string]*field{"header": headerField, "body": bodyField}[word].example)
	}
	p.fail(from, "there is no field %q%s; to search for the text itself, put it in quotes", word, nearest(word))
}

// nearest proposes a field that begins like a word that is none.
func nearest(word string) string {
	for n := min(len(word), 8); n >= 2; n-- {
		for _, f := range fields {
			if strings.HasPrefix(f.name, strings.ToLower(word[:n])) {
				return ", perhaps " + f.name
			}
		}
	}
	return ""
}

// value reads what stands behind the colon.
func (p *parser) value(t *term) {
	at := p.at
	for _, o := range []op{atLeast, atMost, greater, less} {
		if p.peek(string(o)) {
			p.at += len(o)
			t.op = o
			break
		}
	}
	if t.op != is && (t.field.kind < aNumber || t.field.short != "") {
		p.fail(at, "%s takes no %s, only %s", strings.TrimSuffix(t.field.name, "."), t.op, strings.ReplaceAll(t.field.takes(), "`", ""))
	}
	from := p.at
	if t.op == is && p.peek("/") {
		p.regexLiteral(t)
		return
	}
	if p.peek(`"`) {
		t.a = literal{text: p.quoted(), quoted: true}
		// The second half of "a".."b".
		if p.peek("..") && t.field.kind >= aNumber && t.op == is {
			p.at += 2
			p.upper(t, from)
			return
		}
	} else {
		t.a = literal{text: p.bare("")}
		low, high, isRange := strings.Cut(t.a.text, "..")
		if isRange && t.field.kind >= aNumber && t.op == is {
			t.a.text = low
			p.at -= len([]rune(high))
			p.upper(t, from)
			return
		}
	}
	switch {
	case t.a.text == "" && !(t.a.quoted && t.field.kind == anything):
		p.fail(from, "expected a value, as in %s", t.field.example)
	case t.a.text == "*" && !t.a.quoted && t.op == is && t.field.short == "":
		t.op = exists
		return
	case t.field.kind == anAge && t.op == is:
		p.fail(from, "expected age:>%[1]s, age:<%[1]s or a range such as age:1h..2h", t.a.text)
	case t.field.short != "":
		t.op = t.field.short
		t.field = fieldNamed["failed"]
	}
	p.interpret(t, &t.a, from)
	if t.op != is && t.field.kind == anything && !t.a.isNumber && !t.a.isTime {
		p.fail(from, "%q is neither a number nor a time, so nothing can be %s it", t.a.text, map[op]string{greater: "above", atLeast: "above", less: "below", atMost: "below"}[t.op])
	}
}

// upper reads the upper end of a range whose lower one begins at from.
func (p *parser) upper(t *term, from int) {
	at := p.at
	t.op = between
	if p.peek(`"`) {
		t.b = literal{text: p.quoted(), quoted: true}
	} else {
		t.b = literal{text: p.bare("")}
	}
	if t.a.text == "" || t.b.text == "" || t.field.short != "" {
		p.fail(from, "expected a range such as 1..5, with something on both sides")
	}
	p.interpret(t, &t.a, from)
	p.interpret(t, &t.b, at)
	if t.field.kind == anything && !(t.a.isNumber && t.b.isNumber || t.a.isTime && t.b.isTime) {
		p.fail(from, "expected a range of numbers or of times")
	}
}

// interpret gives a value its meaning, and takes off quotes that change nothing.
func (p *parser) interpret(t *term, l *literal, from int) {
	if expected := l.understand(t.field); expected != "" {
		p.fail(from, "%q: %s", l.text, expected)
	}
	if l.quoted && plain(l.text) {
		l.quoted = t.field.kind == anything && l.isNumber // "7" is a text, 7 a number
	}
}
