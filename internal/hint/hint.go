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
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// Error is an error with a remedy.
type Error struct {
	Err  error
	Hint string // the remedy, in the imperative: "set `auth: {}`, or listen on 127.0.0.1"
}

// Errorf makes an error from a format, with a remedy.
func Errorf(hint, format string, args ...any) error {
	return &Error{fmt.Errorf(format, args...), hint}
}

func (e *Error) Error() string { return e.Err.Error() + hintSeparator + e.Hint }

func (e *Error) Unwrap() error { return e.Err }

// ErrorHint returns the remedy; other types of errors may have this method too.
func (e *Error) ErrorHint() string { return e.Hint }

const hintSeparator = "; "

// Of returns the first remedy in err, or "".
func Of(err error) string {
	var with interface{ ErrorHint() string }
	if errors.As(err, &with) {
		return with.ErrorHint()
	}
	return ""
}

// Text returns the text of err without its remedy.
func Text(err error) string {
	text := err.Error()
	if hint := Of(err); hint != "" {
		return strings.ReplaceAll(text, hintSeparator+hint, "")
	}
	return text
}

// Attr splits an attribute whose value is an error with a remedy into two. It is for
// slog.HandlerOptions.ReplaceAttr.
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
