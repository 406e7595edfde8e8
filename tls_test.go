package redrive_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// A consumer works by amqps: with the files that its URL names, and with a TLS config,
// as the user of its client certificate (SASL EXTERNAL).
func TestAConsumerByTLS(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ca, user := v.CA(t), "consumer-"+v.Name
		v.User(user, "s3cret")
		v.Grant(user, ".*", ".*", ".*")
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
		if err := ca.Issue(authority.Leaf{User: user}, cert, key); err != nil {
			t.Fatal(err)
		}
		byFiles, byConfig := config(t, v, fast(3)), config(t, v, fast(3))
		byFiles.URLs[0] = v.SecureURL("", "", url.Values{"auth_mechanism": {"external"}, "certfile": {cert}, "keyfile": {key}})
		bare, _, _ := strings.Cut(v.SecureURL("", "", nil), "?")
		byConfig.URLs[0] = bare + "?auth_mechanism=external"
		pem, err := os.ReadFile(ca.CAFile())
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		byConfig.AMQP.TLSClientConfig = &tls.Config{RootCAs: roots, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			return &pair, err
		}}
		for _, c := range []setup{byFiles, byConfig} {
			seen := make(chan int, 10)
			stop := consume(t, c, func(_ context.Context, m *redrive.Message) error {
				seen <- m.Attempt
				if m.Attempt < 2 {
					return errors.New("not yet")
				}
				return nil
			})
			v.Publish("", "orders", amqp.Publishing{Body: []byte("1")})
			for want := 1; want <= 2; want++ {
				select {
				case got := <-seen:
					if got != want {
						t.Errorf("attempt %d, want %d", got, want)
					}
				case <-time.After(30 * time.Second):
					t.Fatal("no attempt")
				}
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

// NewClient says at once that RabbitMQ's certificate is not to be trusted.
func TestAConsumerRefusesACertificate(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		stranger, err := authority.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		c := config(t, v, fast(2))
		c.URLs[0] = v.SecureURL("guest", "guest", url.Values{"cacertfile": {stranger.CAFile()}})
		if _, err := redrive.NewClient(t.Context(), c.Config); !errors.Is(err, wire.ErrTLS) || !strings.Contains(err.Error(), "unknown authority") {
			t.Error(err)
		}
	})
}

// What cannot be kept is refused before a connection is made.
func TestContradictingTLSSettingsAreRefused(t *testing.T) {
	for at, want := range map[string]string{
		"amqp://h/":                        "Config.AMQP.TLSClientConfig is set",
		"amqps://h/?certfile=c&keyfile=k":  "Config.AMQP.TLSClientConfig is set",
		"amqps://h/?verify=verify_none":    "always verified",
		"amqps://h1/,amqp://h2/":           "Config.AMQP.TLSClientConfig is set",
		"amqps://h/?auth_mechanism=nobody": "expected plain, amqplain or external",
	} {
		_, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{at}, AMQP: amqp.Config{TLSClientConfig: &tls.Config{}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", at, err, want)
		}
	}
}
