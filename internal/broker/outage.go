package broker

import (
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/wire"
)

// remindAfter is how long the log says nothing of an error that goes on.
const remindAfter = 10 * time.Minute

// Outage is shared by the connections of one service, so that its log has an error that all of them
// meet once, and again while it lasts, but seldom.
type Outage struct {
	mu   sync.Mutex
	text string
	at   time.Time
}

// isNews tells whether an error is to be logged. A nil Outage knows of no other connection.
func (o *Outage) isNews(err error, changed bool) bool {
	if o == nil {
		return changed
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if text := err.Error(); o.text != text {
		if !changed {
			return false // another connection has another error: each was logged
		}
		o.text = text
	} else if now.Sub(o.at) < remindAfter {
		return false
	}
	o.at = now
	return true
}

// over has the next error logged.
func (o *Outage) over() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = ""
}

// withRemedy adds what a person can do about a connection that cannot be made.
func withRemedy(err error) error {
	var dns *net.DNSError
	remedy := ""
	switch text := err.Error(); {
	case hint.Of(err) != "":
	case errors.Is(err, syscall.ECONNREFUSED):
		remedy = "start RabbitMQ there, or correct host and port of the URL"
	case errors.As(err, &dns) && dns.IsNotFound:
		remedy = "correct the host of the URL"
	case errors.Is(err, wire.ErrForbidden) && strings.HasSuffix(text, wrongPassword):
		remedy = "correct user and password of the URL; the user guest may sign in only on RabbitMQ's own machine"
	case errors.Is(err, wire.ErrForbidden) && strings.Contains(text, "access to vhost"):
		remedy = "give the user rights there: `rabbitmqctl set_permissions`"
	case errors.Is(err, wire.ErrNoVHost):
		remedy = "make it with `rabbitmqctl add_vhost`, or correct the end of the URL"
	case strings.HasPrefix(text, lostBefore):
		remedy = "if this continues, is this the port of AMQP, by default 5672?"
	}
	if remedy == "" {
		return err
	}
	return &hint.Error{Err: err, Hint: remedy}
}

const (
	wrongPassword = "wrong user or password"
	lostBefore    = "the connection was lost"
)
