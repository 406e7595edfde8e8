// Package auth is access control: signing in with a user of RabbitMQ's or a token, roles, and the
// queues that callers are limited to. Read it in this order:
//
//	caller.go    a caller, their role and queues
//	guard.go     lets requests of known callers through, and slows guessing
//	token.go     tokens
//	rabbitmq.go  RabbitMQ's users
//	signin.go    signing in and out with the page; sessions, in the store
//	tls.go       certificates that are renewed while the service runs
package auth

import (
	"fmt"
	"slices"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/policy"
)

var (
	// ErrForbidden: the caller is signed in and lacks the permission.
	ErrForbidden = hint.New("forbidden", "not allowed")
	// ErrSignIn: the caller is not signed in, or what they signed in with is not valid.
	ErrSignIn = hint.New("sign_in", "sign in first")
	// ErrReadOnly: the service refuses all changes, whoever calls.
	ErrReadOnly = hint.New("read_only", "this service is read-only")
)

// Role is a caller's permission. Each includes the one before.
type Role uint8

// Roles.
const (
	NoRole   Role = iota
	Viewer        // see messages, their bodies too
	Operator      // replay, discard, restore, pause and resume; run operations
	Editor        // edit, import, and send copies to other queues
	Admin         // make tokens, read the audit log
)

var roleNames = [...]string{"nobody", "viewer", "operator", "editor", "admin"}

func (r Role) String() string { return roleNames[r] }

// ParseRole reads a role's name.
func ParseRole(s string) (Role, error) {
	if r := slices.Index(roleNames[:], s); r > 0 {
		return Role(r), nil
	}
	return NoRole, fmt.Errorf("%q is not a role: expected viewer, operator, editor or admin", s)
}

// Caller is the person or program that has sent a request.
type Caller struct {
	Name string // the user, or the token's name; "local" for whoever is on this machine where no one signs in
	How  string // "rabbitmq", "token" or "local"
	From string // the address the call came from
	// Interface is "page", "api" or "cli". Its name in JSON is that of stored sessions.
	Interface string `json:"Face"`
	Role      Role
	Queues    []string // names or patterns that they are limited to, as in a policy; nil: all
	// ReadOnly: whatever the role, nothing may be changed.
	ReadOnly bool
}

// ID tells callers apart; "" is whoever is on this machine where no one signs in.
func (c Caller) ID() string {
	if c.How == "local" {
		return ""
	}
	return c.How + " " + c.Name
}

// May returns nil when the caller has the role and may act on the queue; "" is none. Its errors are
// ErrReadOnly, ErrSignIn or ErrForbidden.
func (c Caller) May(role Role, queue string) error {
	switch {
	case c.Role == NoRole:
		return ErrSignIn
	case c.ReadOnly && role > Viewer:
		return ErrReadOnly
	case queue != "" && !c.Sees(queue):
		return fmt.Errorf("%w: %s may not touch the queue %q", ErrForbidden, c.Name, queue)
	}
	return c.MaySee(role)
}

// MaySee is May for what changes nothing and yet needs a role, such as the audit log: it is shown
// by a read-only service too.
func (c Caller) MaySee(role Role) error {
	switch {
	case c.Role == NoRole:
		return ErrSignIn
	case c.Role < role:
		return fmt.Errorf("%w: %s is %s, and this needs %s", ErrForbidden, c.Name, c.Role, role)
	}
	return nil
}

// Sees tells whether a queue is among the caller's.
func (c Caller) Sees(queue string) bool {
	return c.Queues == nil || slices.ContainsFunc(c.Queues, func(p string) bool { return policy.MatchQueue(p, queue) })
}
