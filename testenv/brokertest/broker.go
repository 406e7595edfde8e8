package brokertest

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"maps"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/authority"
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

// TLSEnv says which tests of the suites that call AlsoByTLS reach RabbitMQ by TLS:
//
//	half   each on one of the two versions, the default
//	other  each on the other
//	all    each on both: `make test-tls`
//	none   none
const TLSEnv = "REDRIVE_TEST_TLS"

var alsoByTLS bool

// AlsoByTLS lets the tests of a package reach RabbitMQ by TLS as TLSEnv says. It is for
// TestMain.
func AlsoByTLS() { alsoByTLS = true }

// over is the broker as a test reaches it: by TLS or not. The choice is the same each
// time, and another on the other version.
func (b Broker) over(test string) Broker {
	how := os.Getenv(TLSEnv)
	if !alsoByTLS || b.Authority == "" || how == "none" {
		return b
	}
	if secure := chance(test)%2 == 0 == b.Since4(); how == "all" || secure != (how == "other") {
		b.AMQP, b.Management = b.AMQPS, b.HTTPS
	}
	return b
}

// chance is a number that stays the same for a test and its subtests.
func chance(test string) uint32 {
	name, _, _ := strings.Cut(test, "/")
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(name))
	return sum.Sum32()
}

// authority signs the certificates of further nodes; nil: they have none.
func (b Broker) authority(t testing.TB) *authority.Authority {
	if b.Authority == "" {
		return nil
	}
	a, err := authority.Open(b.Authority)
	must(t, err)
	return a
}

// CA is the authority of the broker's certificate. The test fails where there is none: it
// would show nothing of TLS.
func (b Broker) CA(t testing.TB) *authority.Authority {
	t.Helper()
	if !b.Private {
		t.Skip("not run: a broker that was given with BROKERS has no certificate of ours")
	}
	a := b.authority(t)
	if a == nil {
		t.Fatal("this needs RabbitMQ with TLS: run `make test`, or `go run ./test/brokers COMMAND`")
	}
	return a
}

// SecureURL is URLAs by TLS, with parameters; it names the authority unless they do. Where
// password is "" there is none.
func (v *VHost) SecureURL(user, password string, with url.Values) string {
	v.t.Helper()
	query := url.Values{"cacertfile": {v.CA(v.t).CAFile()}}
	maps.Copy(query, with)
	urls, err := connect.EachURL(v.AMQPS, func(u *url.URL) {
		if u.User = url.User(user); password != "" {
			u.User = url.UserPassword(user, password)
		}
		u.Path, u.RawPath, u.RawQuery = "/"+v.Name, "/"+url.PathEscape(v.Name), query.Encode()
	})
	must(v.t, err)
	return urls
}
