package redrive

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

// failure is what the error of an attempt asks for. The error's methods and Config.Retry
// are the user's code, so they are called once, here, where a panic is caught.
type failure struct {
	text     string // the error's own
	panicked *PanicError
	discard  bool
	park     bool
	again    *retryError
	refused  bool // Config.Retry does not retry it
}

// read asks an error what it wants. A panic on the way is a failure like a handler's.
func (s *settler) read(err error) (f failure) {
	defer func() {
		if p := recover(); p != nil {
			f = failure{panicked: &PanicError{Value: p, Stack: debug.Stack()}}
			f.text = f.panicked.Error()
		}
	}()
	f.text = textOf(err)
	f.discard = errors.Is(err, Discard)
	f.park = errors.As(err, new(*parkError))
	errors.As(err, &f.again)
	errors.As(err, &f.panicked)
	if s.retry != nil && !f.discard && !f.park && f.again == nil {
		f.refused = !s.retry(err)
	}
	return f
}

// textOf is an error's text, also of one that is a nil pointer, or else panics.
func textOf(err error) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprintf("a %T, whose Error method panics: %v", err, p)
		}
	}()
	return err.Error()
}

// header is what a person, and the next attempt, can read of a failure.
func (f *failure) header() string {
	s := f.text
	if f.panicked != nil {
		s += "\n" + string(f.panicked.Stack)
	}
	if len(s) > longestError {
		s = s[:longestError]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
