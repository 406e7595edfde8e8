package expect_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/redrive-mq/redrive/testenv/expect"
)

// said is what a test would say.
type said string

func (s *said) Helper()                           {}
func (s *said) Errorf(format string, args ...any) { *s = said(fmt.Sprintf(format, args...)) }
func (s *said) Fatal(args ...any)                 { *s = said("ended: " + fmt.Sprint(args...)) }

func TestWhatIsNotAsExpectedIsSaid(t *testing.T) {
	for want, check := range map[said]func(*said){
		"":                              func(s *said) { expect.NoError(s, expect.ErrOf(1, nil)) },
		"ended: EOF":                    func(s *said) { expect.NoError(s, expect.ErrOf(1, io.EOF)) },
		"1 of 2: 3, want 4":             func(s *said) { expect.Equal(s, 3, 4, "%d of %d", 1, 2) },
		"none: EOF, want <nil>":         func(s *said) { expect.Err(s, io.EOF, nil, "none") },
		"one: <nil>, want EOF":          func(s *said) { expect.Err(s, nil, io.EOF, "one") },
		"it: a, b\nwant \"c\" in it":    func(s *said) { expect.Contains(s, "a, b", "it", "a", "c") },
		"none: <nil>\nwant \"x\" in it": func(s *said) { expect.ErrSays(s, nil, "none", "x") },
		"another: cut, want EOF":        func(s *said) { expect.Err(s, errors.New("cut"), io.EOF, "another") },
	} {
		var got said
		if check(&got); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	var got said
	expect.Equal(&got, 4, 4, "four")
	expect.Err(&got, nil, nil, "none")
	expect.Err(&got, fmt.Errorf("reading: %w", io.EOF), io.EOF, "the end")
	expect.Contains(&got, "a, b", "it", "b", "a")
	expect.ErrSays(&got, io.EOF, "the end", "EOF")
	if got != "" {
		t.Errorf("what is as expected is called %q", got)
	}
}
