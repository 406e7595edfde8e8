package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/query"
)

// Errors of the API itself.
var (
	// ErrUnreachable: no service answers there.
	ErrUnreachable = hint.New("unreachable", "no service answers")
	// ErrTooLarge: the request's body is too large.
	ErrTooLarge = hint.New("too_large", "the request is too large")
	// ErrMalformed: the request's body is not as HTTP wants it, or its connection broke.
	ErrMalformed = hint.New("malformed", "the request's body cannot be read")
	// ErrQuery: a query makes no sense; Problem.At is where.
	ErrQuery = hint.New("query", "the query makes no sense")
)

// codeOf returns the code of what net/http and the validation refuse with a status, or "".
func codeOf(status int) (code string) {
	for _, k := range hint.Kinds {
		if k.Status == status && status < 500 {
			code = k.Code // the last is the most general
		}
	}
	return code
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

// Is reports whether the problem is of this kind.
func (p *Problem) Is(target error) bool { return hint.HasCode(target, p.Code) }

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
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, large.Limit)
	}
	k := hint.HTTP(err)
	p = problem(k.Status, k.Code, hint.Text(err))
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
	p := problem(status, cmp.Or(codeOf(status), "internal"), detail)
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
	for _, k := range hint.Kinds {
		if k.Status != 0 {
			all = append(all, k.Code)
		}
	}
	slices.Sort(all)
	return slices.Compact(append(all, "internal"))
}
