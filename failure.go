package redrive

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
)

// failure is what the error of an attempt asks for. The error's methods and Consumer.Retry
// are the user's code, so they are called once, here, where a panic is caught.
type failure struct {
	err        error  // as the handler returned it; nil for a message that no handler saw
	text       string // the error's own
	panicked   *PanicError
	discard    bool
	park       bool
	tooOften   bool // ErrMaxDeliveries
	retryAfter *RetryAfterError
	notRetried bool // Consumer.Retry does not retry it
}

// classify reads what an error asks for. A panic in the user's code is a failure like a
// handler's.
func (a *acknowledger) classify(err error) (f failure) {
	p := catch(func() {
		f = failure{err: err, text: textOf(err), discard: errors.Is(err, ErrDiscard), park: errors.As(err, new(*ParkError))}
		errors.As(err, &f.retryAfter)
		errors.As(err, &f.panicked)
		f.tooOften = errors.Is(err, ErrMaxDeliveries)
		if a.consumer.Retry != nil && !f.tooOften && !f.discard && !f.park && f.retryAfter == nil {
			f.notRetried = !a.consumer.Retry(err)
		}
	})
	if p != nil {
		return failure{err: p, text: textOf(p), panicked: p}
	}
	return f
}

// catch calls f, and returns the panic that it ended with, or nil.
func catch(f func()) (p *PanicError) {
	defer func() {
		if v := recover(); v != nil {
			p = &PanicError{Value: v, Stack: userFrames(string(debug.Stack()))}
		}
	}()
	f()
	return nil
}

// userFrames cuts the runtime's and Redrive's own frames off both ends of a panic's stack.
func userFrames(stack string) []byte {
	const ours = "github.com/redrive-mq/redrive."
	lines := strings.SplitAfter(stack, "\n") // two a frame: function, file
	first := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, "panic(") }) + 2
	end := len(lines)
	for i := first; i < len(lines); i++ {
		if strings.HasPrefix(lines[i], ours+"catch(") {
			end = i
			break
		}
	}
	for end-2 >= first && strings.HasPrefix(lines[end-2], ours) {
		end -= 2
	}
	return []byte(strings.Join(lines[first:end], ""))
}

// textOf returns an error's text, even where the error is a nil pointer or its Error panics.
func textOf(err error) (text string) {
	if p := catch(func() { text = err.Error() }); p != nil {
		return fmt.Sprintf("a %T, whose Error method panics: %v", err, p.Value)
	}
	return text
}

// header returns a failure's text for a header: for people, and for the next attempt.
func (f *failure) header() string {
	s := f.text
	if f.panicked != nil {
		s += "\n" + string(f.panicked.Stack)
	}
	s = strings.ToValidUTF8(s[:min(len(s), maxErrorText)], "\uFFFD") // which is longer than the byte that it replaces
	return strings.ToValidUTF8(s[:min(len(s), maxErrorText)], "")
}
