package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
)

// Errors of the API itself.
var (
	// ErrUnreachable: no service answers there.
	ErrUnreachable = errors.New("no service answers")
	// ErrTooLarge: the request's body is too large.
	ErrTooLarge = errors.New("the request is too large")
	// ErrTooMany: as many requests of this kind are being served as may be at once.
	ErrTooMany = background.ErrTooMany
	// ErrMalformed: the request's body is not as HTTP wants it, or its connection broke.
	ErrMalformed = errors.New("the request's body cannot be read")
	// ErrQuery: a query makes no sense; Problem.At is where.
	ErrQuery = errors.New("the query makes no sense")
)

// kinds are the errors that have a code of their own. The codes are part of the
// API: programs rely on them. The first that fits counts.
var kinds = []struct {
	code   string
	status int
	err    error
}{
	{"sign_in", http.StatusUnauthorized, auth.ErrSignIn},
	{"read_only", http.StatusForbidden, auth.ErrReadOnly},
	{"forbidden", http.StatusForbidden, auth.ErrForbidden},
	{"not_found", http.StatusNotFound, inspect.ErrNotFound},
	{"not_found", http.StatusNotFound, store.ErrNotFound},
	{"not_found", http.StatusNotFound, auth.ErrNoToken},
	{"taken", http.StatusConflict, auth.ErrTaken},
	{"unchecked", http.StatusServiceUnavailable, auth.ErrUnchecked},
	{"precondition", http.StatusPreconditionFailed, inspect.ErrPrecondition},
	{"query", http.StatusUnprocessableEntity, ErrQuery},
	{"invalid", http.StatusUnprocessableEntity, inspect.ErrInvalid},
	{"invalid", http.StatusUnprocessableEntity, auth.ErrInvalid},
	{"no_audit", http.StatusServiceUnavailable, actions.ErrNoAudit},
	{"full", http.StatusInsufficientStorage, store.ErrFull},
	{"unanswered", http.StatusServiceUnavailable, operations.ErrNoLeader},
	{"malformed", http.StatusBadRequest, io.ErrUnexpectedEOF}, // the client has gone before all was sent
	{"stopping", http.StatusServiceUnavailable, store.ErrClosed},
	{"stopping", http.StatusServiceUnavailable, net.ErrClosed},
	{"too_large", http.StatusRequestEntityTooLarge, ErrTooLarge},
	{"too_many", http.StatusTooManyRequests, ErrTooMany},
	{"timeout", http.StatusRequestTimeout, os.ErrDeadlineExceeded}, // the client is slow
	{"timeout", http.StatusGatewayTimeout, context.DeadlineExceeded},
	{"stopping", http.StatusServiceUnavailable, context.Canceled},
	{"malformed", http.StatusBadRequest, ErrMalformed}, // the last, since it has other errors in it
}

// byStatus are the codes of what net/http and the validation refuse.
var byStatus = map[int]string{
	http.StatusBadRequest: "malformed", http.StatusUnauthorized: "sign_in", http.StatusForbidden: "forbidden",
	http.StatusNotFound: "not_found", http.StatusMethodNotAllowed: "method", http.StatusNotAcceptable: "not_acceptable",
	http.StatusRequestTimeout: "timeout", http.StatusRequestEntityTooLarge: "too_large", http.StatusUnsupportedMediaType: "content_type",
	http.StatusUnprocessableEntity: "invalid", http.StatusTooManyRequests: "too_many",
}

// typePrefix makes a code a URI, as RFC 9457 wants a problem's type.
const typePrefix = "urn:redrive:problem:"

// Problem is an error as it is sent (RFC 9457). In the client, errors.Is takes it for the
// errors that its code stands for.
type Problem struct {
	Type   string              `json:"type" doc:"urn:redrive:problem: and the code."`
	Code   string              `json:"code" doc:"What kind of error, for programs; the head of this document lists them."`
	Title  string              `json:"title"`
	Status int                 `json:"status"`
	Detail string              `json:"detail" doc:"What is wrong, for people."`
	Hint   string              `json:"hint,omitempty" doc:"What to do about it, for people."`
	At     *int                `json:"at,omitempty" doc:"Of a query: the character it is about, counted from 0."`
	Errors []*huma.ErrorDetail `json:"errors,omitempty" doc:"Each thing that is wrong with the request."`
}

func (p *Problem) Error() string {
	said := []string{p.Detail}
	for _, e := range p.Errors {
		said = append(said, strings.TrimPrefix(e.Location+": "+e.Message, ": "))
	}
	if p.Hint != "" {
		said = append(said, p.Hint)
	}
	return strings.Join(said, "; ")
}

// ErrorHint is for package hint.
func (p *Problem) ErrorHint() string { return p.Hint }

// Is tells whether the problem is of this kind.
func (p *Problem) Is(target error) bool {
	for _, k := range kinds {
		if k.code == p.Code && errors.Is(k.err, target) {
			return true
		}
	}
	return false
}

// GetStatus is for huma.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType is for huma.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// GetHeaders is for huma.
func (p *Problem) GetHeaders() http.Header {
	switch p.Status {
	case http.StatusUnauthorized:
		return http.Header{"Www-Authenticate": {`Bearer realm="redrive"`}}
	case http.StatusTooManyRequests:
		return http.Header{"Retry-After": {"5"}}
	}
	return nil
}

// NotFound answers that there is no such thing, for handlers outside the API.
func NotFound(w http.ResponseWriter, detail string) {
	writeProblem(w, problem(http.StatusNotFound, "not_found", detail+"; "+decodedSlash))
}

func problem(status int, code, detail string) *Problem {
	return &Problem{Type: typePrefix + code, Code: code, Title: http.StatusText(status), Status: status, Detail: detail}
}

// problemOf is an error as a Problem.
func problemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	var q *query.Error
	if errors.As(err, &q) {
		p = problem(http.StatusUnprocessableEntity, "query", err.Error())
		p.At = &q.At
		return p
	}
	var many *auth.TooMany
	if errors.As(err, &many) {
		return problem(http.StatusTooManyRequests, "too_many", err.Error())
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, large.Limit)
	}
	status, code := http.StatusInternalServerError, "internal"
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			status, code = k.status, k.code
			break
		}
	}
	p = problem(status, code, hint.Text(err))
	p.Hint = hint.Of(err)
	return p
}

// validationError is the Problem of a request that is not valid. The values that it quotes are left out:
// they may be what a message contains.
func validationError(status int, detail string, errs ...error) huma.StatusError {
	for _, err := range errs {
		if errors.Is(err, ErrMalformed) {
			return problemOf(err)
		}
	}
	code := byStatus[status]
	if code == "" {
		code = "internal"
	}
	p := problem(status, code, detail)
	for _, err := range errs {
		var d huma.ErrorDetailer
		switch {
		case err == nil:
		case errors.As(err, &d):
			e := d.ErrorDetail()
			p.Errors = append(p.Errors, &huma.ErrorDetail{Location: e.Location, Message: e.Message})
		default:
			p.Errors = append(p.Errors, &huma.ErrorDetail{Message: err.Error()})
		}
	}
	p.Errors = p.Errors[:min(len(p.Errors), 20)]
	return p
}

// codes are all of them, for the documentation.
func codes() (all []string) {
	for _, k := range kinds {
		all = append(all, k.code)
	}
	for _, c := range byStatus {
		all = append(all, c)
	}
	slices.Sort(all)
	return slices.Compact(append(all, "internal"))
}
