package brokertest

import (
	"hash/fnv"
	"maps"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/testenv/authority"
)

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
	urls, err := addresses.Each(v.AMQPS, func(u *url.URL) {
		if u.User = url.User(user); password != "" {
			u.User = url.UserPassword(user, password)
		}
		u.Path, u.RawPath, u.RawQuery = "/"+v.Name, "/"+url.PathEscape(v.Name), query.Encode()
	})
	must(v.t, err)
	return urls
}
