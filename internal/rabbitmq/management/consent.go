package management

import (
	"context"
	"errors"
	"fmt"
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
)

var errNotConfigured = hint.Errorf("set broker.management", "there is no management API in the config")

// Consent knows which queues of the virtual host have a certain exchange as their
// effective dead-letter exchange. It lists all queues at once, and only while somebody
// wants to know: what a client reports must not cost a question for each name.
type Consent struct {
	client   *Client // nil: there is no API
	exchange string
	wanted   chan struct{}

	mu    sync.Mutex
	yes   map[string]bool
	began time.Time // of the list; zero: there is none
	err   error     // of the last try
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
	if !c.yes[queue] {
		return false, c.began, c.err
	}
	if time.Since(c.began) > consentFresh {
		return false, time.Time{}, c.err
	}
	return true, c.began, nil
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
		yes, err := c.list(ctx)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if c.err = err; err == nil {
			c.yes, c.began = yes, began
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(max(consentEvery, consentShare*time.Since(began))):
		}
	}
}

func (c *Consent) list(ctx context.Context) (yes map[string]bool, err error) {
	all, err := c.client.Queues(ctx)
	if errors.Is(err, ErrDenied) || errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w. A user without a tag gets one by: rabbitmqctl set_user_tags '%s' management", err, c.client.User())
	}
	yes = map[string]bool{}
	for _, q := range all {
		if q.Setting("dead-letter-exchange") == c.exchange {
			yes[q.Name] = true
		}
	}
	return yes, err
}
