package stories_test

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/credentials"
	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// A service with broker.tls is the user of its certificate. While RabbitMQ's certificate
// is not to be trusted it says so, and what to do; the right file put in place is enough.
func TestAServiceWithACertificate(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		stranger, err := authority.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		dir, user := t.TempDir(), "service-"+v.Name
		files := credentials.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
		put(t, files.CA, stranger.CAFile())
		if err := v.CA(t).Issue(authority.Leaf{User: user}, files.Cert, files.Key); err != nil {
			t.Fatal(err)
		}
		c := configured(t, v, `policies: [{name: p, queues: [orders], backoff: {fixed: 50ms}}]`, t.TempDir())
		v.User(user, "s3cret")
		v.Give(user, permissions.Service(c.Policies))
		c.Broker.URL = v.SecureURL("", "", url.Values{"auth_mechanism": {"external"}, "cacertfile": {""}})
		c.Broker.Credentials.TLS = files
		v.Queue("orders", amqp.Table{"x-dead-letter-exchange": "redrive"})
		s := run(t, c)
		brokertest.Eventually(t, "the service says that it does not trust RabbitMQ", func() bool {
			return slices.ContainsFunc(s.Problems(), func(p string) bool {
				return strings.HasPrefix(p, "intake: connecting to amqps://") && strings.Contains(p, "unknown authority") && strings.Contains(p, "broker.tls.ca")
			})
		})
		put(t, files.CA, v.CA(t).CAFile())
		s.ready(t)
		v.Publish("", "orders", amqp.Publishing{Body: []byte("1")})
		consumer := v.Consume("orders")
		consumer.Reject()
		s.wait(t, retry.Retried)
		consumer.Take("1")
	})
}

func put(t *testing.T, file, from string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
