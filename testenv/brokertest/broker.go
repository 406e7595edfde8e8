package brokertest

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// Env names the brokers that tests run on, as Encode writes them.
const Env = "REDRIVE_TEST_BROKERS"

// Broker is one that tests run on.
type Broker struct {
	AMQP       string
	Management string
	Version    string
	Root       string // what a private node of the same version is started from
	Private    bool   // such a node can be started
	Group      int    // the process group of a private node; 0 when somebody else runs it
	// The same by TLS, and the folder of the authority that signed its certificate; ""
	// when somebody else runs it. See byTLS.
	AMQPS, HTTPS, Authority string
}

// Encode writes brokers for Env.
func Encode(list []Broker) string {
	data, _ := json.Marshal(list)
	return string(data)
}

// Given are brokers somebody else runs.
func Given(amqpURLs, managementURLs string) (list []Broker) {
	split := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
	}
	m := split(managementURLs)
	for i, raw := range split(amqpURLs) {
		b := Broker{AMQP: raw}
		if i < len(m) {
			b.Management = m[i]
		} else if u, err := url.Parse(raw); err == nil {
			b.Management = (&url.URL{Scheme: "http", User: u.User, Host: u.Hostname() + ":15672"}).String()
		}
		list = append(list, b)
	}
	return list
}

// Ask finds out the version.
func (b *Broker) Ask(ctx context.Context) error {
	m, err := management.New(b.Management, "/")
	if err != nil {
		return err
	}
	o, err := m.Overview(ctx)
	b.Version = o.Version
	return err
}

// Since4 tells RabbitMQ 4 and later from 3.
func (b Broker) Since4() bool { return !strings.HasPrefix(b.Version, "3.") }

// FromEnv are the brokers that the runner started or was given.
func FromEnv() (list []Broker, err error) {
	if err := json.Unmarshal([]byte(os.Getenv(Env)), &list); err != nil || len(list) == 0 {
		return nil, errors.New("this needs RabbitMQ: run `make test`, or `go run ./test/brokers COMMAND`")
	}
	return list, nil
}

// All are the brokers that were asked for. Without any the test fails: a suite
// that ran nowhere must not look green.
func All(t testing.TB) []Broker {
	t.Helper()
	list, err := FromEnv()
	must(t, err)
	return list
}
