package redrive_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// An error whose remedy is known has it apart from its text, for a log or a page that shows
// them separately.
func TestAnErrorHasItsRemedyApart(t *testing.T) {
	_, err := redrive.NewClient(t.Context(), redrive.Config{})
	var with interface{ ErrorHint() string }
	if !errors.As(err, &with) || with.ErrorHint() != "give at least one, such as amqp://user:password@host/vhost" {
		t.Errorf("%v has no remedy of its own", err)
	}
	if _, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{""}}); errors.As(err, &with) {
		t.Errorf("%v has a remedy", err)
	}
}

// Zero values and settings that cannot be kept are errors that name the field; nothing
// panics, and nothing connects.
func TestZeroValuesAreErrors(t *testing.T) {
	good := redrive.Consumer{Queue: "q", Policy: fast(2), Wait: redrive.Levels(), Handler: nothing}
	consumer := func(change func(*redrive.Consumer)) error {
		k := good
		change(&k)
		return redrive.Consume(t.Context(), redrive.Config{}, k)
	}
	client := func(c redrive.Config) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return errOf(redrive.NewClient(ctx, c))
	}
	amqpConfig := func(a amqp.Config) error {
		return client(redrive.Config{URLs: []string{"amqp://localhost"}, AMQP: a})
	}
	var none *redrive.Client
	for want, got := range map[string]error{
		"Config.URLs is empty":            client(redrive.Config{}),
		"Config.URLs has an empty string": client(redrive.Config{URLs: []string{""}}),
		"Config.AMQP.Heartbeat is 1ms":    amqpConfig(amqp.Config{Heartbeat: time.Millisecond}),
		"Config.AMQP.FrameSize is set":    amqpConfig(amqp.Config{FrameSize: 4096}),
		"Config.AMQP.Recovery is set":     amqpConfig(amqp.Config{Recovery: &amqp.Recovery{}}),
		"Config.AMQP.SASL has a nil":      amqpConfig(amqp.Config{SASL: []amqp.Authentication{nil}}),
		"make one with NewClient":         none.Consume(t.Context(), good),
		"make one with NewClient ":        (&redrive.Client{}).Consume(t.Context(), good),
		"Consumer.Queue is empty":         redrive.Consume(t.Context(), redrive.Config{}, redrive.Consumer{}),
		"Consumer.Wait is not set":        consumer(func(k *redrive.Consumer) { k.Wait = redrive.Way{} }),
		"Consumer.Wait: ":                 consumer(func(k *redrive.Consumer) { k.Wait = redrive.Levels(-1) }),
		"Consumer.Policy: ":               consumer(func(k *redrive.Consumer) { k.Policy = policy.Policy{} }),
		"Consumer.Handler is nil":         consumer(func(k *redrive.Consumer) { k.Handler = nil }),
		"are both set": consumer(func(k *redrive.Consumer) {
			k.Batch = redrive.Batch{Size: 2, Handler: allSucceed}
		}),
		"Consumer.Batch.Size is 0": consumer(func(k *redrive.Consumer) {
			k.Handler, k.Batch.Handler = nil, allSucceed
		}),
		"Consumer.Batch.Handler is nil": consumer(func(k *redrive.Consumer) { k.Batch.Size = 2 }),
		"wrap Batch.Handler yourself": consumer(func(k *redrive.Consumer) {
			k.Handler, k.Batch, k.Middleware = nil, redrive.Batch{Size: 2, Handler: allSucceed},
				make([]redrive.Middleware, 1)
		}),
		"Consumer.Middleware[0] is nil": consumer(func(k *redrive.Consumer) {
			k.Middleware = make([]redrive.Middleware, 1)
		}),
		"Consumer.Middleware[0] returned a nil Handler": consumer(func(k *redrive.Consumer) {
			k.Middleware = []redrive.Middleware{func(redrive.Handler) redrive.Handler { return nil }}
		}),
		"is negative": consumer(func(k *redrive.Consumer) { k.Shutdown = -1 }),
		"MaxDeliveries is 1: expected 2 to 1000000; leave it out for 10, or set -1 for no limit": consumer(func(k *redrive.Consumer) { k.MaxDeliveries = 1 }),
	} {
		if got == nil || !strings.Contains(got.Error(), strings.TrimSpace(want)) {
			t.Errorf("%v; want %q", got, want)
		}
	}
	none.Close()
	(&redrive.Client{}).Close()
	if _, err := (&redrive.Settler{}).Settle(t.Context(), &amqp.Delivery{}, nil); err == nil {
		t.Error("a zero Settler settles")
	}
	if (&redrive.Settler{}).Message(nil) != nil {
		t.Error("a zero Settler has a message")
	}
	if _, err := good.Decide(nil, errDown); err == nil {
		t.Error("Decide takes a nil message")
	}
	if l := (redrive.Way{}).Limits(); l.Name != "" {
		t.Errorf("the zero Way has limits: %+v", l)
	}
	if redrive.Park(nil).Error() == "" || redrive.RetryAfter(nil, 0).Error() == "" ||
		(&redrive.PanicError{}).Error() == "" {
		t.Error("an error without a text")
	}
}

// What a handler returns can be asserted, however it is wrapped.
func TestErrorsCanBeAsserted(t *testing.T) {
	handler := func(err error) error { return fmt.Errorf("order 7: %w", err) }
	var park *redrive.ParkError
	if err := handler(redrive.Park(errDown)); !errors.As(err, &park) || park.Err != errDown ||
		!errors.Is(err, errDown) {
		t.Errorf("Park: %v", err)
	}
	var after *redrive.RetryAfterError
	if err := handler(redrive.RetryAfter(errDown, time.Minute)); !errors.As(err, &after) ||
		after.Delay != time.Minute || !errors.Is(err, errDown) {
		t.Errorf("RetryAfter: %v", err)
	}
	if !errors.Is(handler(redrive.ErrDiscard), redrive.ErrDiscard) {
		t.Error("ErrDiscard")
	}
}

// A program imports redrive and policy together: what has one name in both would be read
// for the other. Park is the same in both: an error of a handler asks for it, and so does
// a policy.
func TestNoNameIsInBothPackages(t *testing.T) {
	names := func(dir string) map[string]bool {
		all := map[string]bool{}
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		must(t, err)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			must(t, err)
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv == nil {
						all[d.Name.Name] = true
					}
				case *ast.GenDecl:
					for _, s := range d.Specs {
						switch s := s.(type) {
						case *ast.TypeSpec:
							all[s.Name.Name] = true
						case *ast.ValueSpec:
							for _, n := range s.Names {
								all[n.Name] = true
							}
						}
					}
				}
			}
		}
		return all
	}
	of := names("policy")
	for name := range names(".") {
		if ast.IsExported(name) && of[name] && name != "Park" {
			t.Errorf("redrive.%s and policy.%s", name, name)
		}
	}
}

// A consumer works by amqps: with the files that its URL names, and with a TLS config,
// as the user of its client certificate (SASL EXTERNAL).
func TestAConsumerByTLS(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ca, user := v.CA(t), "consumer-"+v.Name
		v.User(user, "s3cret")
		v.Grant(user, ".*", ".*", ".*")
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
		must(t, ca.Issue(authority.Leaf{User: user}, cert, key))
		byFiles, byConfig := config(t, v, fast(3)), config(t, v, fast(3))
		byFiles.URLs[0] = v.SecureURL("", "", url.Values{"auth_mechanism": {"external"}, "certfile": {cert},
			"keyfile": {key}})
		bare, _, _ := strings.Cut(v.SecureURL("", "", nil), "?")
		byConfig.URLs[0] = bare + "?auth_mechanism=external"
		pem, err := os.ReadFile(ca.CAFile())
		must(t, err)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		byConfig.AMQP.TLSClientConfig = &tls.Config{RootCAs: roots,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
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
				got := brokertest.Receive(t, seen, "an attempt")
				expect.Equal(t, got, want, "attempt")
			}
			must(t, stop())
		}
	})
}

// What cannot be kept is refused before a connection is made.
func TestContradictingTLSSettingsAreRefused(t *testing.T) {
	for at, want := range map[string]string{
		"amqp://h/":                        "Config.AMQP.TLSClientConfig needs every URL",
		"amqps://h/?certfile=c&keyfile=k":  "Config.AMQP.TLSClientConfig needs every URL",
		"amqps://h/?verify=verify_none":    "always verified",
		"amqps://h1/,amqp://h2/":           "Config.AMQP.TLSClientConfig needs every URL",
		"amqps://h/?auth_mechanism=nobody": "expected plain, amqplain or external",
	} {
		_, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{at},
			AMQP: amqp.Config{TLSClientConfig: &tls.Config{}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", at, err, want)
		}
	}
}
