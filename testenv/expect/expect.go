// Package expect has the checks that nearly each test makes.
package expect

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// T is a *testing.T, a *testing.B or a *rapid.T.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// NoError ends a test at an error.
func NoError(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ErrOf is the error of a call that returns something else too.
func ErrOf(_ any, err error) error { return err }

// Patience is how long a test waits for what must happen: longer than the busiest machine takes.
const Patience = 3 * time.Minute

// Eventually waits until it is so, and ends a test that has waited for three minutes.
func Eventually(t T, what string, is func() bool) {
	t.Helper()
	began := time.Now()
	for !is() {
		waited := time.Since(began)
		if waited > Patience {
			t.Fatal("after", Patience, "still not so:", what)
		}
		// Frequent questions slow down the servers that the test waits for.
		time.Sleep(min(max(waited/10, 20*time.Millisecond), 100*time.Millisecond))
	}
}

// Equal fails a test where got is not want, and says what it is.
func Equal[V comparable](t T, got, want V, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", fmt.Sprintf(what, args...), got, want)
	}
}

// Contains fails a test where a text does not have all that it is to have.
func Contains(t T, text, what string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%s: %.4000s\nwant %q in it", what, text, want)
		}
	}
}

// ErrSays fails a test where there is no error, or not one that says all this.
func ErrSays(t T, err error, what string, wants ...string) {
	t.Helper()
	Contains(t, fmt.Sprint(err), what, wants...)
}

// Err fails a test where an error is not want; nil: where there is one.
func Err(t T, err, want error, what string, args ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", fmt.Sprintf(what, args...), err, want)
	}
}
