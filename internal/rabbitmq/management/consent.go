package management

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
)

const (
	// consentEvery is the least time between two lists of all queues; where one takes long
	// it is consentShare times that.
	consentEvery, consentShare = time.Second, 10
	// consentFresh is how long a list counts for queues that are in it.
	consentFresh = 30 * time.Second
	// consentLag is how old statistics may be: from those alone RabbitMQ 3 tells what a
	// policy sets, and it gathers them every 5 s.
	consentLag = 10 * time.Second
)

var errNotConfigured = hint.Errorf("set broker.management", "there is no management API in the config")

// Consent knows which queues of the virtual host have a certain exchange as their
// effective dead-letter exchange. It lists all queues at once, and only while somebody
// wants to know: what a client reports must not cost a question for each name.
type Consent struct {
	client   *Client // nil: there is no API
	exchange string
	wanted   chan struct{}

	mu     sync.Mutex
	yes    map[string]bool
	lagged map[string]bool // has a policy, which set something else some seconds ago
	sorted []string        // the names of yes
	began  time.Time       // of the list; zero: there is none
	err    error           // of the last try
}

// NewConsent is for a dead-letter exchange. client may be nil: then nothing is ever known.
func NewConsent(client *Client, exchange string) *Consent {
	c := &Consent{client: client, exchange: exchange, wanted: make(chan struct{}, 1)}
	if client == nil {
		c.err = errNotConfigured
	}
	return c
}

// Consented answers from memory, and requests a new list: see retry.Consent. Safe
// for concurrent use.
func (c *Consent) Consented(queue string) (yes bool, asOf time.Time, err error) {
	select {
	case c.wanted <- struct{}{}:
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.yes[queue]:
		if time.Since(c.began) > consentFresh {
			return false, time.Time{}, c.err
		}
		return true, c.began, nil
	case c.lagged[queue]:
		return false, c.began.Add(-consentLag), c.err
	}
	return false, c.began, c.err
}

// Queues returns all queues that have consented, ordered by name, as of the last list, and requests
// a new one. The error is why there is no newer list.
func (c *Consent) Queues() (names []string, err error) {
	select {
	case c.wanted <- struct{}{}:
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sorted, c.err
}

// Run asks until ctx ends.
func (c *Consent) Run(ctx context.Context) {
	if c.client == nil {
		return
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-c.wanted:
		}
		began := time.Now()
		yes, lagged, err := c.list(ctx)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if c.err = err; err == nil {
			c.yes, c.lagged, c.began, c.sorted = yes, lagged, began, slices.Sorted(maps.Keys(yes))
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(max(consentEvery, consentShare*time.Since(began))):
		}
	}
}

// list asks without statistics, which is quick and up to date. RabbitMQ 3 then tells
// only the names of policies, so where there are any its statistics are needed, too.
func (c *Consent) list(ctx context.Context) (yes, lagged map[string]bool, err error) {
	all, err := c.queues(ctx, "?disable_stats=true&columns=name,arguments,policy,effective_policy_definition")
	if err != nil {
		return nil, nil, err
	}
	yes, lagged = map[string]bool{}, map[string]bool{}
	for _, q := range all {
		argument, has := q.Arguments["x-dead-letter-exchange"]
		switch {
		case has && argument == c.exchange, !has && q.Effective["dead-letter-exchange"] == c.exchange:
			yes[q.Name] = true
		case !has && q.Effective == nil && q.Policy != "":
			lagged[q.Name] = true
		}
	}
	if len(lagged) == 0 {
		return yes, lagged, nil
	}
	if all, err = c.queues(ctx, "?columns=name,effective_policy_definition"); err != nil {
		return nil, nil, err
	}
	for _, q := range all {
		if lagged[q.Name] && q.Effective["dead-letter-exchange"] == c.exchange {
			delete(lagged, q.Name)
			yes[q.Name] = true
		}
	}
	return yes, lagged, nil
}

func (c *Consent) queues(ctx context.Context, columns string) (all []Queue, err error) {
	err = c.client.Call(ctx, http.MethodGet, c.client.path("queues")+columns, nil, &all)
	if errors.Is(err, ErrDenied) || errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w. A user without a tag gets one by: rabbitmqctl set_user_tags '%s' management", err, c.client.User())
	}
	return all, err
}
