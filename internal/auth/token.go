package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/store"
)

var (
	// ErrInvalid: a token cannot be made as requested; the error says what is wrong.
	ErrInvalid = hint.New("invalid", "invalid")
	// ErrTaken: there is a token of that name.
	ErrTaken = hint.New("taken", "the name is taken")
	// ErrNoToken: there is no token of that name.
	ErrNoToken = hint.New("not_found", "no such token")
)

// Token is a token as it is shown: what proves it is shown once, when it is made.
type Token struct {
	Name    string     `json:"name"`
	Role    string     `json:"role" enum:"viewer,operator,editor,admin"`
	Queues  []string   `json:"queues,omitempty" doc:"Names or patterns of the queues it is limited to; absent: all."`
	Created time.Time  `json:"created"`
	By      string     `json:"by" doc:"Who made it."`
	Expires *time.Time `json:"expires,omitempty" doc:"Absent: never."`
}

// NewToken describes the token to make.
type NewToken struct {
	Name   string
	Role   string
	Queues []string      // nil: all
	Lasts  time.Duration // 0: for ever
}

// Audit is the log that making and revoking tokens is written to before it is done.
type Audit interface {
	Begin(e audit.Entry) (done func(outcome string, count int64), err error)
}

// Tokens are the service's. Of each the SHA-256 of its 256 random bits is stored: a slow hash, as
// passwords need, would not make those harder to guess, and cost each request. The hash is part of
// the entry's name, so that a request looks up one name, and no response time shows how much of a
// guess was right.
type Tokens struct {
	store  store.SideTable
	audit  Audit
	making sync.Mutex // one at a time, so that no name is given twice
}

// NewTokens keeps tokens in a store.
func NewTokens(s store.SideTable, a Audit) *Tokens { return &Tokens{store: s, audit: a} }

const (
	tokenPrefix = "token/"
	// secretPrefix lets a token be found where it should not be: in logs, and in
	// source code by scanners.
	secretPrefix = "redrive_"
)

var tokenName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// Create makes a token for an administrator and returns what proves it, which is
// kept nowhere.
func (t *Tokens) Create(ctx context.Context, c Caller, n NewToken) (secret string, made Token, err error) {
	if err := c.May(Admin, ""); err != nil {
		return "", Token{}, err
	}
	if _, err := ParseRole(n.Role); err != nil {
		return "", Token{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	switch {
	case !tokenName.MatchString(n.Name):
		return "", Token{}, fmt.Errorf("%w: the name %.80q; expected up to 64 letters, digits and any of . _ @ -",
			ErrInvalid, n.Name)
	case n.Lasts < 0:
		return "", Token{}, fmt.Errorf("%w: it would have expired already", ErrInvalid)
	case n.Queues != nil && len(n.Queues) == 0 || slices.Contains(n.Queues, ""):
		return "", Token{}, fmt.Errorf("%w: the list of queues is empty or has an empty name", ErrInvalid)
	}
	if c.Queues != nil && n.Queues == nil {
		n.Queues = c.Queues
	}
	if q, ok := c.covers(n.Queues); !ok {
		return "", Token{}, fmt.Errorf("%w: the queues %q are not among those of %s", ErrForbidden, q, c.Name)
	}
	t.making.Lock()
	defer t.making.Unlock()
	if _, _, err := t.find(ctx, n.Name); err == nil {
		return "", Token{}, fmt.Errorf("%w: revoke the token %q first, or choose another name", ErrTaken, n.Name)
	} else if !errors.Is(err, ErrNoToken) {
		return "", Token{}, err
	}
	var random [32]byte
	_, _ = rand.Read(random[:]) // it never fails
	secret = secretPrefix + base64.RawURLEncoding.EncodeToString(random[:])
	made = Token{Name: n.Name, Role: n.Role, Queues: n.Queues, Created: time.Now().UTC(), By: c.Name}
	if n.Lasts > 0 {
		at := made.Created.Add(n.Lasts)
		made.Expires = &at
	}
	value, err := json.Marshal(made)
	if err != nil {
		return "", Token{}, err
	}
	err = t.write(ctx, c, "token.create", fmt.Sprintf("%s (%s)", n.Name, n.Role),
		store.Entry{Name: nameOf(secret), Value: value})
	if err != nil {
		return "", Token{}, err
	}
	return secret, made, nil
}

// covers reports whether queues (nil: all) are among the caller's, and if not, names the first that is
// not. A pattern must be one of the caller's own: that one of theirs matches it as a name does not
// mean that they may see all that it matches.
func (c Caller) covers(queues []string) (not string, ok bool) {
	if c.Queues != nil && queues == nil {
		return "*", false
	}
	for _, q := range queues {
		if c.Queues != nil && !slices.Contains(c.Queues, q) && (strings.ContainsAny(q, "*?") || !c.Sees(q)) {
			return q, false
		}
	}
	return "", true
}

// List returns the tokens whose queues are all within the administrator's own, expired ones too.
func (t *Tokens) List(ctx context.Context, c Caller) ([]Token, error) {
	if err := c.MaySee(Admin); err != nil {
		return nil, err
	}
	all := []Token{}
	err := t.each(ctx, func(_ string, token Token) bool {
		if _, ok := c.covers(token.Queues); ok {
			all = append(all, token)
		}
		return true
	})
	slices.SortFunc(all, func(a, b Token) int { return strings.Compare(a.Name, b.Name) })
	return all, err
}

// Revoke ends a token that List shows, and the sessions that were begun with it, at
// once.
func (t *Tokens) Revoke(ctx context.Context, c Caller, name string) error {
	if err := c.May(Admin, ""); err != nil {
		return err
	}
	t.making.Lock()
	defer t.making.Unlock()
	key, token, err := t.find(ctx, name)
	if err != nil {
		return err
	}
	if _, ok := c.covers(token.Queues); !ok {
		return noToken(name)
	}
	return t.write(ctx, c, "token.revoke", fmt.Sprintf("%s (%s)", token.Name, token.Role), store.Entry{Name: key})
}

func (t *Tokens) write(ctx context.Context, c Caller, did, on string, e store.Entry) error {
	done, err := t.audit.Begin(audit.Entry{Who: c.Name, How: c.How, From: c.From, Interface: c.Interface,
		Did: did, On: on})
	if err != nil {
		return fmt.Errorf("the audit log cannot be written, and nothing is done without it: %w", err)
	}
	if err := t.store.PutEntries(ctx, []store.Entry{e}); err != nil {
		done(err.Error(), 0)
		return err
	}
	done("done", 0)
	return nil
}

func (t *Tokens) find(ctx context.Context, name string) (key string, found Token, err error) {
	err = t.each(ctx, func(k string, token Token) bool {
		if token.Name == name {
			key, found = k, token
		}
		return key == ""
	})
	if err == nil && key == "" {
		err = noToken(name)
	}
	return key, found, err
}

func noToken(name string) error { return fmt.Errorf("%w: %q", ErrNoToken, name) }

func (t *Tokens) each(ctx context.Context, visit func(key string, token Token) bool) error {
	return t.store.Entries(ctx, tokenPrefix, "", func(e store.Entry) (bool, error) {
		var token Token
		if err := json.Unmarshal(e.Value, &token); err != nil {
			return false, fmt.Errorf("the store's entry %s: %w", e.Name, err)
		}
		return visit(e.Name, token), nil
	})
}

func nameOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return tokenPrefix + hex.EncodeToString(sum[:])
}

// caller returns the holder of the token stored under key.
func (t *Tokens) caller(ctx context.Context, key string) (Caller, error) {
	value, err := t.store.Entry(ctx, key)
	if err != nil {
		return Caller{}, err
	}
	if value == nil {
		return Caller{}, fmt.Errorf("%w: the token is not valid; it may have been revoked", ErrSignIn)
	}
	var token Token
	if err := json.Unmarshal(value, &token); err != nil {
		return Caller{}, fmt.Errorf("the store's entry %s: %w", key, err)
	}
	if token.Expires != nil && !time.Now().Before(*token.Expires) {
		return Caller{}, fmt.Errorf("%w: the token %q expired at %s", ErrSignIn, token.Name,
			token.Expires.Format(time.RFC3339))
	}
	role, err := ParseRole(token.Role)
	return Caller{Name: token.Name, How: "token", Role: role, Queues: token.Queues}, err
}
