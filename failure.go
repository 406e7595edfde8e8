package redrive

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

// failure is what the error of an attempt asks for. The error's methods and Consumer.Retry
// are the user's code, so they are called once, here, where a panic is caught.
type failure struct {
	err      error  // as the handler returned it; nil for a message that no handler saw
	text     string // the error's own
	panicked *PanicError
	discard  bool
	park     bool
	again    *RetryAfterError
	refused  bool // Consumer.Retry does not retry it
}

// read asks an error what it wants. A panic on the way is a failure like a handler's.
func (s *settler) read(err error) (f failure) {
	defer func() {
		if p := recover(); p != nil {
			f = failure{panicked: &PanicError{Value: p, Stack: debug.Stack()}}
			f.err, f.text = f.panicked, textOf(f.panicked)
		}
	}()
	f.err, f.text = err, textOf(err)
	f.discard = errors.Is(err, ErrDiscard)
	f.park = errors.As(err, new(*ParkError))
	errors.As(err, &f.again)
	errors.As(err, &f.panicked)
	if s.consumer.Retry != nil && !f.discard && !f.park && f.again == nil {
		f.refused = !s.consumer.Retry(err)
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
