package query

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/store"
)

// A value that is missing is one that was forgotten, but for a text in a header or a body, which
// may be empty.
func TestAValueIsMissing(t *testing.T) {
	for text, missing := range map[string]bool{`queue:`: true, `queue:""`: true, `error:""`: true, `header.x:`: true, `body.x:`: true, `header.x:""`: false, `body.x:""`: false} {
		_, err := Parse(text)
		if (err != nil) != missing || missing && !strings.Contains(err.Error(), "expected a value") {
			t.Errorf("%s: %v; missing: %v", text, err, missing)
		}
	}
}

func TestAnErrorCountsCharactersFromOne(t *testing.T) {
	for text, want := range map[string]string{`qeue:orders`: "query, character 1: ", `größe queue:`: "query, character 13: "} {
		if _, err := Parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// Two letters are enough to propose a field, one is not.
func TestTheNearestFieldIsProposed(t *testing.T) {
	for word, want := range map[string]string{"quux": ", perhaps queue", "QU": ", perhaps queue", "qx": "", "q": "", "zz": ""} {
		if got := nearest(word); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

// A text of no ASCII is found in capitals too.
func TestLettersBeyondASCIIAreFoundInCapitals(t *testing.T) {
	for _, text := range []string{"öü", "ÖÜ", "Öü", "größe", "GRÖSSE ÖÜ"} {
		q, err := Parse(Quote(text))
		if err != nil {
			t.Fatal(err)
		}
		l := parked()
		l.Record.Error = "GRÖßE grösse ÖÜ"
		if !matches(q, l) {
			t.Errorf("%s is not found in %s", text, l.Record.Error)
		}
	}
}

// A duration is less than a quarter of the longest that Go has, so that it can be taken off a time.
func TestTheLongestDuration(t *testing.T) {
	for s, want := range map[string]bool{"2305843009213693000ns": true, "2305843009213693952ns": false, "-2305843009213693952ns": false, "80w": true, "9999999w": false} {
		if _, ok := ParseDuration(s); ok != want {
			t.Errorf("%s is a duration: %v, want %v", s, ok, want)
		}
	}
}

// What is said of a state and of a queue counts together.
func TestAStateAndAQueueAreBothKnown(t *testing.T) {
	for text, want := range map[string]int{"state:parked queue:q": 1, "state:waiting queue:q": -1, "state:parked queue:other": -1, "state:parked OR queue:other": 1, "state:parked attempt:3": 0} {
		q, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := q.Says(store.Parked, "q", nil); got != want {
			t.Errorf("%s says %d of what is parked for q, want %d", text, got, want)
		}
	}
}

// A number is compared with all of its digits, in as few as tell it from all others.
func TestNumbersAreWrittenWithAllDigits(t *testing.T) {
	for v, want := range map[any]string{1.25: "1.25", float32(0.1): "0.1", 1234.5678: "1234.5678", 1e21: "1e+21", int64(-7): "-7", amqp.Decimal{Scale: 2, Value: 1250}: "1250e-2"} {
		if got, ok := Text(v); !ok || got != want {
			t.Errorf("%T %v is %q, want %q", v, v, got, want)
		}
	}
}
