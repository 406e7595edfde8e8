package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/query"
)

// Exit codes. Scripts rely on them.
const (
	ExitOK           = 0
	ExitError        = 1
	ExitUsage        = 2
	ExitPartly       = 3
	ExitForbidden    = 4
	ExitPrecondition = 5
	ExitNotFound     = 6
	ExitUnreachable  = 7
)

const exitCodes = `Exit codes:
  0  done
  1  error
  2  wrong usage, or an invalid query
  3  partly done: some messages were left out, or you stopped watching;
     doctor: only warnings, or checks that could not be made
  4  not allowed: sign in, or sign in as another user
  5  not as expected: another count, a queue that does not exist, a plan that is too old;
     doctor: something is wrong
  6  not found
  7  no service answers; doctor: no RabbitMQ answers`

// errUsage marks errors in arguments and flags.
var errUsage = hint.New("usage", "see --help")

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	error
}

func (e exitError) Unwrap() error { return e.error }

func exitErrorf(code int, format string, args ...any) error {
	return exitError{code, fmt.Errorf(format, args...)}
}

func codeOf(err error) int {
	if err == nil {
		return ExitOK
	}
	var e exitError
	if errors.As(err, &e) {
		return e.code
	}
	return hint.KindOf(err, func(k hint.Kind) bool { return k.Exit != 0 }).Exit
}

// continues is the error of a command that goes on where it was interrupted.
func continues(err error) error {
	if errors.Is(err, context.Canceled) {
		return exitErrorf(ExitPartly, "run the same command again to continue")
	}
	return err
}

// printError prints an error on standard error, its hint on a line of its own, and for an error
// in a query a mark below the character.
func (p *program) printError(err error) {
	if err == nil {
		return
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok && err.Error() == errors.Join(several.Unwrap()...).Error() {
		for _, err := range several.Unwrap() {
			p.printError(err)
		}
		return
	}
	// An error may quote a broker, another service or an argument.
	for line := range strings.SplitSeq(hint.Text(err), "\n") {
		fmt.Fprintf(p.err, "redrive: %s\n", plain(line))
	}
	if remedy := hint.Of(err); remedy != "" {
		fmt.Fprintf(p.err, "  hint: %s\n", plain(remedy))
	}
	var problem *httpapi.Problem
	if errors.As(err, &problem) && problem.At != nil && p.query != "" {
		for line := range strings.SplitSeq((&query.Error{At: *problem.At}).Show(p.query), "\n") {
			fmt.Fprintf(p.err, "  %s\n", strings.TrimRight(plain(line), " "))
		}
	}
}
