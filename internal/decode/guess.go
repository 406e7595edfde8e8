package decode

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/redrive-mq/redrive/internal/hint"
)

// Limits of a guess, besides those of each body.
const (
	mostGuessTime = 200 * time.Millisecond
	surelyTried   = 1 << 20 // bytes, times types: so much is looked at however slow the machine is
	mostGuessed   = 6       // types that are named
	leastEvidence = 6       // of a body that does not look like Protobuf by itself
)

// candidate is a type that bytes may be of.
type candidate struct {
	m protoreflect.MessageDescriptor
	fit
	unset int // fields of the type that are not there
}

// better orders candidates, the best first.
func better(a, b candidate) int {
	return cmp.Or(cmp.Compare(a.unknown, b.unknown), cmp.Compare(a.odd, b.odd), cmp.Compare(b.evidence, a.evidence), cmp.Compare(a.unset, b.unset),
		cmp.Compare(strings.Count(string(a.m.FullName()), "."), strings.Count(string(b.m.FullName()), ".")), // the outer type before those inside it
		cmp.Compare(a.m.FullName(), b.m.FullName()))
}

// guess shows Protobuf of a type that nothing names by the type that it fits best, of all that are
// loaded. plain: it looks like Protobuf without one.
func (r *reading) guess(plain bool) bool {
	if !r.body.Guess || r.trying || len(r.schemas.guessable) == 0 || !plain && isText(r.data) {
		return false
	}
	all, tried := r.candidates()
	if len(all) == 0 || !plain && (all[0].unknown+all[0].odd > 0 || all[0].evidence < leastEvidence) {
		return false
	}
	best := all[0].m
	p := &protoReader{b: r.budget(), s: r.schemas, defaults: r.body.Defaults}
	msg, err := p.read(r.data, best, 0)
	if err != nil {
		return false
	}
	v := p.message(msg, 0)
	for _, c := range all[:min(len(all), mostGuessed)] {
		r.result.LooksLike = append(r.result.LooksLike, string(c.m.FullName()))
	}
	found := "Protobuf that " + looksLike(r.result.LooksLike)
	if more := len(all) - mostGuessed; more > 0 {
		found += fmt.Sprintf(" and %d more", more)
	}
	found += ": nothing names its type, so this is a guess"
	if n := len(r.schemas.guessable); tried < n {
		found += fmt.Sprintf(", after %d of %d types", tried, n)
	}
	if len(p.unknown) > 0 {
		slices.Sort(p.unknown)
		found += fmt.Sprintf("; it has fields the type does not know: %v, under %s", slices.Compact(p.unknown), keyUnknown)
	}
	r.document("protobuf", &v, false)
	r.step("protobuf", found+p.leftOut())
	r.encode = func(string) ([]byte, []string, error) { return nil, nil, errUnnamed }
	return true
}

var errUnnamed = hint.Errorf("name it: by type or --type for this edit, or under decode.protobuf in the config file", "the body is Protobuf of a type that nothing names, which cannot be edited")

// looksLike puts the types that bytes fit into words.
func looksLike(names []string) string {
	text := "looks like " + names[0]
	if len(names) > 1 {
		text += " (also possible: " + strings.Join(names[1:], ", ") + ")"
	}
	return text
}

// candidates are the types that the bytes fit, the best first, and how many were tried before the
// time was over.
func (r *reading) candidates() (all []candidate, tried int) {
	tags, ok := topTags(r.data)
	if !ok {
		return nil, 0
	}
	var likely []candidate
	for _, m := range r.schemas.guessable {
		if c, ok := firstLook(m, tags); ok {
			likely = append(likely, c)
		}
	}
	slices.SortFunc(likely, better)
	tried = len(r.schemas.guessable) - len(likely)
	until := time.Now().Add(mostGuessTime)
	for work, c := range likely {
		w := fitting{b: r.budget(), until: until}
		if work*len(r.data) > surelyTried && w.late() != nil {
			break
		}
		c.fit = fit{}
		fits, err := w.message(r.data, c.m, 0, &c.fit)
		if err != nil {
			break
		}
		if tried++; fits && c.mostlyKnown() {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, better)
	return all, tried
}

// tag is a field's number and how it is encoded.
type tag struct {
	num protowire.Number
	t   protowire.Type
}

// mostTags: a message with more kinds of fields is none that a person could tell.
const mostTags = 1024

// topTags are the kinds of fields of a message, not of those in it. Not ok: it is no message.
func topTags(b []byte) (all map[tag]int, ok bool) {
	all = map[tag]int{}
	for len(b) > 0 {
		num, t, n := protowire.ConsumeField(b)
		if n < 0 {
			return nil, false
		}
		if all[tag{num, t}]++; len(all) > mostTags {
			return nil, false
		}
		b = b[n:]
	}
	return all, true
}

// firstLook tells whether the fields themselves are the type's, and most of them known.
func firstLook(m protoreflect.MessageDescriptor, tags map[tag]int) (candidate, bool) {
	c := candidate{m: m}
	for t := range tags {
		switch f := m.Fields().ByNumber(t.num); {
		case f == nil:
			c.unknown++
		case !encodes(f, t.t):
			return c, false
		default:
			c.known++
		}
	}
	c.unset = max(0, m.Fields().Len()-c.known)
	return c, c.mostlyKnown()
}
