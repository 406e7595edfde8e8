package httpapi

import (
	"time"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
)

// Count is how many messages a query finds.
type Count struct {
	Count int64 `json:"count"`
	Exact bool  `json:"exact" doc:"When false there are more: not all were looked at."`
}

// Queues is a list of queues.
type Queues struct {
	Queues []inspect.Queue `json:"queues"`
	After  string          `json:"after,omitempty" doc:"Where the next page begins; absent on the last."`
	// Forgotten is on the first page.
	Forgotten []string `json:"forgotten,omitempty" doc:"That hold messages, without consumer; as last checked."`
}

// Policies is a list of policies.
type Policies struct {
	Policies []inspect.PolicyInForce `json:"policies"`
}

// Operations is a list of operations.
type Operations struct {
	Operations []operations.Operation `json:"operations"`
}

// DeadLetterQueues is a list of queues that could be adopted.
type DeadLetterQueues struct {
	Queues []operations.DeadLetterQueue `json:"queues"`
}

// AuditPage is a piece of the audit log.
type AuditPage struct {
	Entries []audit.Entry `json:"entries"`
	After   string        `json:"after,omitempty" doc:"Of the next page, if there is one; this may be short."`
}

// Note is a person's words on a group.
type Note struct {
	Note string `json:"note" maxLength:"2000" doc:"Empty: none."`
}

// GroupState is what a person decides about a group.
type GroupState struct {
	State string `json:"state" enum:"open,acknowledged,ignored,resolved"`
	Note  string `json:"note,omitempty" maxLength:"500" doc:"Such as a ticket or a link; in the audit log too."`
}

// Reason is why something is done, for the audit log.
type Reason struct {
	Reason string `json:"reason,omitempty" maxLength:"500"`
}

// ShowReason is why a masked message is shown.
type ShowReason struct {
	Reason string `json:"reason" minLength:"1" maxLength:"500"`
}

// Breaker is the setting of a queue's circuit breaker.
type Breaker struct {
	Force  string `json:"force" enum:"open,closed,auto" doc:"auto: it opens and closes by itself."`
	Reason string `json:"reason,omitempty" maxLength:"500"`
}

// Snapshot asks for a copy of the store.
type Snapshot struct {
	Folder string `json:"folder" minLength:"1" maxLength:"4096" doc:"A new or empty folder on the service's machine."`
}

// DecodeRequest is a body to decode, with the properties that matter for that.
type DecodeRequest struct {
	Body            []byte `json:"body" contentEncoding:"base64"`
	Queue           string `json:"queue,omitempty" doc:"Its schema is used."`
	ContentType     string `json:"content_type,omitempty"`
	ContentEncoding string `json:"content_encoding,omitempty"`
	Type            string `json:"type,omitempty" doc:"The type property."`
}

// Me is the caller as the service sees them.
type Me struct {
	Name     string   `json:"name"`
	How      string   `json:"how" doc:"How they signed in: rabbitmq, oidc, proxy, token, local or visitor."`
	Role     string   `json:"role" enum:"viewer,operator,editor,admin"`
	Queues   []string `json:"queues,omitempty" doc:"The queues they are limited to, as patterns; absent: all."`
	ReadOnly bool     `json:"read_only" doc:"The service is read-only for every caller."`
}

// NewToken asks for a token.
type NewToken struct {
	Name    string     `json:"name" minLength:"1" maxLength:"64"`
	Role    string     `json:"role" enum:"viewer,operator,editor,admin"`
	Queues  []string   `json:"queues,omitempty" maxItems:"100" doc:"Queues (patterns) it is limited to; absent: all."`
	Expires *time.Time `json:"expires,omitempty" doc:"Left out: never."`
}

// MadeToken is a token with its secret.
type MadeToken struct {
	auth.Token
	Secret string `json:"secret" doc:"Shown only now."`
}

// TokenList is a list of tokens.
type TokenList struct {
	Tokens []auth.Token `json:"tokens"`
}

const (
	typeJSONLines = "application/jsonl"
	typeCSV       = "text/csv; charset=utf-8"
	typeEvents    = "text/event-stream"
)
