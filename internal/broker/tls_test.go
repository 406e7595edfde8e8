package broker_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/credentials"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// Frames are read and written above TLS: what consumes works by amqps, and so does what
// publishes, with a message that fills many TLS records.
func TestAMQPSWorks(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		secure := v.SecureURL("guest", "guest", nil)
		v.Queue("q", nil)
		p := publisher(t, secure)
		large := strings.Repeat("0123456789abcdef", 1<<16)
		for n, err := range p.Send(t.Context(), []wire.Outgoing{message("", "q", "small", nil), message("", "q", large, nil), message("", "nowhere", "lost", nil)})(t.Context()) {
			if (n == 2) != errors.Is(err, wire.ErrUnroutable) {
				t.Errorf("message %d: %v", n, err)
			}
		}
		took := make(chan string, 2)
		s := broker.NewSubscriber(broker.Config{URL: secure, Name: "work", Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() {
			consuming, end := context.WithCancel(context.Background())
			var connected sync.WaitGroup
			connected.Go(func() { _ = s.Run(consuming) })
			q := broker.ConsumeOptions{Queue: "q", Prefetch: 10, Log: slog.New(slog.DiscardHandler), Observe: func(bool) {}}
			_ = s.Consume(ctx, q, func(sub broker.Subscription) {
				for range 2 {
					d := <-sub.In
					_ = d.Ack(false)
					took <- string(d.Body)
				}
				<-ctx.Done()
			})
			end()
			connected.Wait()
		})
		defer run.Wait()
		defer cancel()
		for _, want := range []string{"small", large} {
			select {
			case got := <-took:
				if got != want {
					t.Errorf("took %d bytes, want %d", len(got), len(want))
				}
			case <-time.After(30 * time.Second):
				t.Fatal("nothing is delivered by amqps")
			}
		}
		c := startConsumer(t, secure)
		fail(t, v, 0, 200)
		if c.in(t, 0, 200) {
			t.Error("something was delivered twice")
		}
	})
}

// A peer with a wrong name, of an unknown authority, or whose certificate has expired is
// refused before it hears a word, and so is one without TLS; each error says what to do.
func TestPeersOfAMQPSAreVerified(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ca := v.CA(t)
		stranger, err := authority.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		here := []string{"127.0.0.1"}
		for _, c := range []struct {
			what string
			by   *authority.Authority
			leaf authority.Leaf
			with url.Values
			says []string
		}{
			{"another name", ca, authority.Leaf{Hosts: []string{"rabbit.example"}}, nil, []string{"is for rabbit.example, not for 127.0.0.1", "server_name_indication=NAME"}},
			{"a name in the subject only", ca, authority.Leaf{User: "127.0.0.1"}, nil, []string{"is for no host"}},
			{"not the name asked for", ca, authority.Leaf{Hosts: here}, url.Values{"server_name_indication": {"rabbit.example"}}, []string{"not for rabbit.example"}},
			{"an unknown authority", stranger, authority.Leaf{Hosts: here}, nil, []string{"unknown authority", "cacertfile=FILE"}},
			{"an expired certificate", ca, authority.Leaf{Hosts: here, NotAfter: time.Now().Add(-time.Hour)}, nil, []string{"is valid from", "renew it there"}},
		} {
			peer, err := c.by.NewImpostor(c.leaf)
			if err != nil {
				t.Fatal(err)
			}
			u, _ := url.Parse(v.SecureURL("guest", "s3cretpass", c.with))
			u.Host = peer.Addr
			refusedWith(t, c.what, broker.Config{URL: u.String()}, c.says...)
			if heard := peer.Close(); heard != "" {
				t.Errorf("%s: the peer heard %q", c.what, heard)
			}
		}
		plain, _ := url.Parse(v.SecureURL("guest", "guest", nil))
		at, _ := url.Parse(v.AMQP)
		plain.Host = at.Host
		refusedWith(t, "a port without TLS", broker.Config{URL: plain.String()}, "does not speak TLS", "5671")
		unsecured, _ := url.Parse(v.AMQPS)
		unsecured.Scheme = "amqp"
		refusedWith(t, "a port of TLS without it", broker.Config{URL: unsecured.String()}, "speaks TLS; use amqps://")
		refusedWith(t, "no file", broker.Config{URL: v.SecureURL("guest", "guest", url.Values{"cacertfile": {"/nowhere/ca.pem"}})}, "/nowhere/ca.pem")
		cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
		if err := stranger.Issue(authority.Leaf{User: "guest"}, cert, key); err != nil {
			t.Fatal(err)
		}
		_, err = broker.NewProbe(t.Context(), broker.Config{Name: "test", URL: v.SecureURL("guest", "guest", url.Values{"certfile": {cert}, "keyfile": {key}})})
		if err == nil || !strings.Contains(err.Error(), "RabbitMQ refuses this client") || !strings.Contains(err.Error(), "broker.tls.cert") {
			t.Errorf("a client of an unknown authority: %v", err)
		}
	})
}

func refusedWith(t *testing.T, what string, c broker.Config, says ...string) {
	t.Helper()
	c.Name = "test"
	l, err := broker.NewProbe(t.Context(), c)
	if err == nil {
		l.Close()
		t.Errorf("%s: it is connected", what)
		return
	}
	if !errors.Is(err, wire.ErrTLS) || !broker.NeedsPerson(err) || strings.Contains(err.Error(), "s3cretpass") {
		t.Errorf("%s: %v", what, err)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %v, and not %q", what, err, s)
		}
	}
}

// By SASL EXTERNAL a client is the user that its certificate names. A certificate that
// changed on disk is used at the next connection, and so is an authority, and a password.
func TestCredentialsThatChangedOnDiskAreUsedAtTheNextConnection(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ca, dir := v.CA(t), t.TempDir()
		first, second := "first-"+v.Name, "second-"+v.Name
		for _, user := range []string{first, second} {
			v.User(user, "s3cret")
			v.Grant(user, ".*", ".*", ".*")
		}
		files := credentials.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
		stranger, err := authority.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		replace(t, files.CA, ca.CAFile())
		issue(t, ca, "unknown-user", files)
		external := broker.Config{URL: v.SecureURL("", "", url.Values{"auth_mechanism": {"external"}, "cacertfile": {""}}), Name: "redrive retries", Log: slog.New(slog.DiscardHandler),
			Credentials: credentials.Client{TLS: files}}
		if _, err := broker.NewProbe(t.Context(), external); !errors.Is(err, wire.ErrForbidden) || !strings.Contains(err.Error(), "ssl_cert_login_from") {
			t.Errorf("no such user: %v", err)
		}
		replace(t, files.CA, stranger.CAFile())
		issue(t, ca, first, files)
		failed := make(chan error, 1000)
		external.Observe = func(s broker.State) {
			if s.Err != nil {
				failed <- s.Err
			}
		}
		p := broker.NewPublisher(external)
		runUntilEnd(t, p)
		if err := <-failed; !errors.Is(err, wire.ErrTLS) {
			t.Errorf("with another authority: %v", err)
		}
		replace(t, files.CA, ca.CAFile())
		p.AwaitUsable(t.Context())
		issue(t, ca, second, files)
		v.CloseConnections(first)
		v.CloseConnections(second) // waits for one
	})
}

// The same of a password in a file.
func TestAPasswordThatChangedOnDiskIsUsedAtTheNextConnection(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		user, file := "service-"+v.Name, filepath.Join(t.TempDir(), "password")
		v.User(user, "first")
		v.Grant(user, ".*", ".*", ".*")
		write(t, file, "first\n")
		p := broker.NewPublisher(broker.Config{URL: v.URLAs(user, "first"), Name: "redrive retries", Log: slog.New(slog.DiscardHandler),
			Credentials: credentials.Client{Login: credentials.Login{User: user, PasswordFile: file}}})
		runUntilEnd(t, p)
		p.AwaitUsable(t.Context())
		v.Must("PUT", "users/"+user, map[string]any{"password": "second", "tags": ""})
		write(t, file, "second\n")
		v.CloseConnections(user)
		if err := p.Send(t.Context(), []wire.Outgoing{message("", "nowhere", "", nil)})(t.Context())[0]; !errors.Is(err, wire.ErrUnroutable) && !errors.Is(err, wire.ErrNoAnswer) {
			t.Error(err)
		}
		brokertest.Eventually(t, "it is connected again", p.Ready)
	})
}

// runUntilEnd runs a publisher until the test ends.
func runUntilEnd(t *testing.T, p *broker.Publisher) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); run.Wait() })
}

func issue(t *testing.T, ca *authority.Authority, user string, to credentials.TLS) {
	t.Helper()
	if err := ca.Issue(authority.Leaf{User: user}, to.Cert, to.Key); err != nil {
		t.Fatal(err)
	}
}

func replace(t *testing.T, file, with string) {
	t.Helper()
	data, err := os.ReadFile(with)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(data))
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
