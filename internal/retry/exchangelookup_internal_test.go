package retry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A queue without a retry exchange is looked up ever less often, however often it is asked for;
// likewise one for which RabbitMQ cannot be asked.
func TestAMissingExchangeIsLookedUpEverLessOften(t *testing.T) {
	for name, answer := range map[string]error{"missing": nil, "no answer": errors.New("closed")} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var at []time.Duration
			l := newExchangeLookup(func(context.Context, string) (bool, error) {
				at = append(at, time.Since(began))
				return false, answer
			})
			defer l.close()
			for time.Since(began) < 4*time.Minute {
				yes, _, err := l.exists("q", time.Now())
				if want := answer; yes || len(at) > 0 && !errors.Is(err, want) || len(at) == 0 && !errors.Is(err, ErrLookupPending) {
					t.Fatalf("%s: after %s: %v, %v", name, time.Since(began), yes, err)
				}
				time.Sleep(100 * time.Millisecond)
			}
			const s = time.Second
			if want := []time.Duration{0, 2 * s, 6 * s, 14 * s, 30 * s, 62 * s, 122 * s, 182 * s}; !slices.Equal(at, want) {
				t.Errorf("%s: it was looked up after %v, want %v", name, at, want)
			}
		})
	}
}

// No more lookups wait than may, however many names are asked for: the next one is not
// remembered, nor is another lookup of one that is known.
func TestLookupsThatWaitAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context, _ string) (bool, error) { <-ctx.Done(); return false, ctx.Err() }
		l := newExchangeLookup(hangs)
		defer l.close()
		l.answers["old"] = &lookupAnswer{asOf: time.Now().Add(-time.Hour)}
		for i := range maxLookups + maxPending {
			l.exists(fmt.Sprint("q", i), time.Now())
			synctest.Wait()
		}
		if l.workers != maxLookups || len(l.pending) != maxPending {
			t.Fatalf("%d lookups are under way, %d wait", l.workers, len(l.pending))
		}
		if _, _, err := l.exists("one more", time.Now()); !errors.Is(err, ErrLookupPending) || l.answers["one more"] != nil {
			t.Errorf("one more: %v, remembered: %v", err, l.answers["one more"] != nil)
		}
		if l.exists("old", time.Now()); l.answers["old"].pending || len(l.pending) != maxPending {
			t.Errorf("%d lookups wait", len(l.pending))
		}
	})
}

// Answers are forgotten when there are too many, all but those that are on their way.
func TestAnswersAreForgottenWhenThereAreTooMany(t *testing.T) {
	l := newExchangeLookup(func(ctx context.Context, _ string) (bool, error) { <-ctx.Done(); return false, ctx.Err() })
	l.close() // no lookup begins
	for i := range maxAnswers - 1 {
		l.answers[fmt.Sprint("q", i)] = &lookupAnswer{pending: i == 0}
	}
	if l.exists("the last", time.Time{}); len(l.answers) != maxAnswers {
		t.Errorf("%d answers are remembered, want %d", len(l.answers), maxAnswers)
	}
	if l.exists("one more", time.Time{}); len(l.answers) != 2 || l.answers["q0"] == nil || l.answers["one more"] == nil {
		t.Errorf("%d answers are remembered, want one that is on its way and the new one", len(l.answers))
	}
}

// Which answers are known without another lookup.
func TestWhichAnswersAreKnown(t *testing.T) {
	now := time.Now()
	since := now.Add(-time.Minute)
	for name, c := range map[string]struct {
		answer     *lookupAnswer
		yes, known bool
	}{
		"never asked":          {nil, false, false},
		"missing":              {&lookupAnswer{asOf: now}, false, true},
		"missing long ago":     {&lookupAnswer{asOf: since}, false, false},
		"there":                {&lookupAnswer{exists: true, asOf: now}, true, true},
		"there long ago":       {&lookupAnswer{exists: true, asOf: since}, true, true},
		"then it is not known": {&lookupAnswer{asOf: now, err: errors.New("closed")}, false, false},
		"no answer yet":        {&lookupAnswer{pending: true}, false, false},
	} {
		l := newExchangeLookup(nil)
		if c.answer != nil {
			l.answers["q"] = c.answer
		}
		if yes, known := l.cached("q", since); yes != c.yes || known != c.known {
			t.Errorf("%s: %v, known: %v", name, yes, known)
		}
		l.close()
	}
}
