package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// The doctor says of a certificate what is wrong and what to do, by AMQP and of the
// management API.
func TestDoctorExplainsCertificates(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		stranger, err := authority.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		c := configFor(t, v, everyQueue)
		c.Broker.URL, c.Broker.Management = v.SecureURL("guest", "guest", nil), v.HTTPS
		c.Broker.URL, _, _ = strings.Cut(c.Broker.URL, "?")
		c.Broker.Credentials.TLS.CA = stranger.CAFile()
		_, err = Gather(context.Background(), Options{Config: c})
		if !errors.Is(err, ErrNothing) || !errors.Is(err, wire.ErrTLS) || strings.Count(err.Error(), "unknown authority (CN=Redrive's tests); name the file of that CA (broker.tls.ca;") != 2 {
			t.Error(err)
		}
		c.Broker.Credentials.TLS.CA = v.CA(t).CAFile()
		if _, err := Gather(context.Background(), Options{Config: c}); err != nil {
			t.Error(err)
		}
	})
}
