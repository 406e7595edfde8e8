// Package hint keeps the remedy of an error apart from its text: what went wrong is one line,
// and what to do about it is another.
//
//	return hint.Errorf("stop the other one, or set store.disk to another folder",
//		"data folder %s: %w", path, store.ErrLocked)
//
// Error returns both, so that no reader misses the remedy. The command line shows it on a line
// of its own, the API as `hint`, the page apart, and logs as the attribute hint.
//
// Kinds is the table of what programs, scripts and browsers learn of an error. A package
// makes its errors with New and the code of their kind.
package hint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
)

// Error is an error with a remedy.
type Error struct {
	Err  error
	Hint string // the remedy, in the imperative: "set `auth: {}`, or listen on 127.0.0.1"
}

func Errorf(hint, format string, args ...any) error {
	return &Error{fmt.Errorf(format, args...), hint}
}

func (e *Error) Error() string { return e.Err.Error() + hintSeparator + e.Hint }

func (e *Error) Unwrap() error { return e.Err }

// ErrorHint returns the remedy; other types of errors may have this method too.
func (e *Error) ErrorHint() string { return e.Hint }

const hintSeparator = "; "

func Of(err error) string {
	var with interface{ ErrorHint() string }
	if errors.As(err, &with) {
		return with.ErrorHint()
	}
	return ""
}

func Text(err error) string {
	text := err.Error()
	if hint := Of(err); hint != "" {
		return strings.ReplaceAll(text, hintSeparator+hint, "")
	}
	return text
}

// Attr splits an attribute whose value is an error with a remedy into two. It is for slog.HandlerOptions.ReplaceAttr.
func Attr(_ []string, a slog.Attr) slog.Attr {
	err, ok := a.Value.Any().(error)
	if !ok {
		return a
	}
	hint := Of(err)
	if hint == "" {
		return a
	}
	return slog.Attr{Value: slog.GroupValue(slog.String(a.Key, Text(err)), slog.String("hint", hint))}
}

// Kind is a kind of error, and what each of its readers learns.
type Kind struct {
	Code   string // part of the API: programs rely on it
	Status int    // of HTTP; 0: only the command line meets it
	Exit   int    // of the command line; 0: as for any other error
	Title  string // of the page; "": as for any other error
	Says   string // what the page says instead of the error's text
	Err    error  // of the standard library; nil: errors that New made with this code
}

// Kinds are all of them. The first that fits an error counts.
var Kinds = []Kind{
	{Code: "usage", Exit: 2},
	{Code: "unreachable", Exit: 7},
	{Code: "sign_in", Status: 401, Exit: 4},
	{Code: "read_only", Status: 403, Exit: 4, Title: "This service is read-only",
		Says: "It was started to show and not to change anything."},
	{Code: "forbidden", Status: 403, Exit: 4, Title: "Not allowed"},
	{Code: "not_found", Status: 404, Exit: 6, Title: "Not found",
		Says: "There is nothing of this name that you may see. " +
			"A message that was retried long ago, or was discarded for good, is forgotten."},
	{Code: "taken", Status: 409, Exit: 5},
	{Code: "unchecked", Status: 503},
	{Code: "precondition", Status: 412, Exit: 5, Title: "It is not as expected, so nothing was done"},
	{Code: "query", Status: 422, Exit: 2},
	{Code: "invalid", Status: 422, Exit: 2, Title: "That makes no sense"},
	{Code: "no_audit", Status: 503, Title: "Nothing was done"},
	{Code: "full", Status: 507},
	{Code: "malformed", Status: 400, Err: io.ErrUnexpectedEOF}, // the client has gone before all was sent
	{Code: "stopping", Status: 503},
	{Code: "stopping", Status: 503, Err: net.ErrClosed},
	{Code: "too_large", Status: 413},
	{Code: "too_many", Status: 429, Title: "Too much at once"},
	{Code: "timeout", Status: 408, Err: os.ErrDeadlineExceeded}, // the client is slow
	{Code: "timeout", Status: 504, Err: context.DeadlineExceeded, Title: "That takes too long",
		Says: "Ask for less: a queue, a state, or the last hours. An export waits for as long as it takes."},
	{Code: "stopping", Status: 503, Err: context.Canceled},
	{Code: "malformed", Status: 400}, // the last of the API, since it has other errors in it
	{Code: "method", Status: 405},
	{Code: "not_acceptable", Status: 406},
	{Code: "content_type", Status: 415},
	{Code: "denied", Exit: 4},
	{Code: "missing", Exit: 6},
	{Code: "consumers", Exit: 3},
	{Code: "refused", Exit: 5},
}

var internal = Kind{Code: "internal", Status: 500, Exit: 1, Title: "That did not work"}

func New(code, text string) error { return &kindError{code, text} }

type kindError struct{ code, text string }

func (e *kindError) Error() string { return e.text }

func (e *kindError) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k.Code == e.code && k.Err == nil
}

// Error lets errors.Is look for a Kind.
func (k Kind) Error() string { return k.Code }

// KindOf returns the first kind of err that has what its reader wants.
func KindOf(err error, has func(Kind) bool) Kind {
	for _, k := range Kinds {
		if has(k) && (errors.Is(err, k) || k.Err != nil && errors.Is(err, k.Err)) {
			return k
		}
	}
	return internal
}

func HTTP(err error) Kind { return KindOf(err, func(k Kind) bool { return k.Status != 0 }) }

// HasCode reports whether an error is of the kind that another process tells by its code.
func HasCode(err error, code string) bool { return code != internal.Code && HTTP(err).Code == code }
