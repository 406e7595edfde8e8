package broker_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
	"github.com/redrive-mq/redrive/wire"
)

// TestMain fails when a goroutine outlives the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// unusedAddresses have no listener.
const unusedAddresses = "amqp://127.0.0.1:1/,amqp://127.0.0.1:2/"

// A connection that ends is replaced by one to another broker, and its state says which.
func TestALostConnectionContinuesAtAnotherBroker(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		a, b := brokertest.NewProxy(t, v), brokertest.NewProxy(t, v)
		connected := make(chan string, 100)
		var log brokertest.Output
		p := broker.NewPublisher(broker.Config{URL: unusedAddresses + "," + a.URL + "," + b.URL, Name: "redrive retries", Log: slog.New(slog.NewTextHandler(&log, nil)), Observe: func(s broker.State) {
			if s.Connected {
				connected <- s.At
			}
		}})
		runUntilEnd(t, p)
		was := ""
		for range 6 {
			at := <-connected
			if !strings.Contains(a.URL+b.URL, at) || at == was {
				t.Errorf("it went from %q to %q", was, at)
			}
			was = at
			a.Cut()
			b.Cut()
		}
		if !strings.Contains(log.String(), `connection="redrive retries" at=`+was) {
			t.Errorf("the log does not say where it is connected:\n%s", log.String())
		}
	})
}

// When all addresses were away, for several rounds of tries, the last used one alone is enough.
func TestAllBrokersGoneAndTheLastUsedOneComesBack(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		var proxies []*brokertest.Proxy
		var urls []string
		for range 3 {
			p := brokertest.NewProxy(t, v)
			proxies, urls = append(proxies, p), append(urls, p.URL)
		}
		connected := make(chan string, 100)
		p := broker.NewPublisher(broker.Config{URL: strings.Join(urls, ","), Name: "redrive retries", Log: slog.New(slog.DiscardHandler), Observe: func(s broker.State) {
			if s.Connected {
				connected <- s.At
			}
		}})
		runUntilEnd(t, p)
		last := <-connected
		back := map[string]func(){}
		refused := map[*brokertest.Proxy]int{}
		for _, p := range proxies {
			back[p.Addr()], refused[p] = p.Refuse(), p.Refused()
		}
		for _, p := range proxies {
			brokertest.Eventually(t, "each address is tried again and again", func() bool { return p.Refused() >= refused[p]+4 })
		}
		back[last]()
		if at := <-connected; at != last {
			t.Errorf("it is connected at %s, and only %s is back", at, last)
		}
	})
}

// Clients spread over the brokers, and skip those that are down.
func TestConnectionsSpreadOverBrokers(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		a, b := brokertest.NewProxy(t, v), brokertest.NewProxy(t, v)
		at := map[string]int{}
		for range 40 {
			l, err := broker.NewProbe(context.Background(), broker.Config{URL: a.URL + "," + unusedAddresses + "," + b.URL, Name: "test"})
			must(t, err)
			at[l.At()]++
			must(t, l.Close())
		}
		if len(at) != 2 {
			t.Errorf("40 connections went to %v", at)
		}
	})
}

// The error when no broker can be reached has the same text each time, to be logged once, and shows what to correct.
func TestNoBrokerCanBeReached(t *testing.T) {
	text := ""
	for range 10 {
		_, err := broker.NewProbe(context.Background(), broker.Config{URL: unusedAddresses, Name: "test"})
		if !errors.Is(err, syscall.ECONNREFUSED) || !strings.HasPrefix(err.Error(), "none of 2 brokers: connecting to amqp://127.0.0.1:1/") || text != "" && err.Error() != text {
			t.Fatalf("it says %v", err)
		}
		text = err.Error()
	}
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		_, err := broker.NewProbe(context.Background(), broker.Config{URL: unusedAddresses + "," + v.URLAs("stranger", "wrong"), Name: "test"})
		if err == nil || !broker.NeedsPerson(err) {
			t.Errorf("a wrong password: %v", err)
		}
	})
}

// A virtual host that is missing, or in which the user has no rights, needs a person; too many connections do not.
func TestAMissingVirtualHostNeedsAPerson(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		user := "stranger-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		look := func(url string) error {
			return errOf(broker.NewProbe(context.Background(), broker.Config{URL: url, Name: "test"}))
		}
		if err := look(strings.Replace(v.URL(), v.Name, "nowhere", 1)); !errors.Is(err, wire.ErrNoVHost) || !broker.NeedsPerson(err) {
			t.Errorf("no such virtual host: %v", err)
		}
		if err := look(v.URLAs(user, "pw")); !errors.Is(err, wire.ErrForbidden) || !broker.NeedsPerson(err) {
			t.Errorf("a user without rights: %v", err)
		}
		v.Must("PUT", "vhost-limits/"+v.Name+"/max-connections", map[string]any{"value": 0})
		if err := look(v.URL()); err == nil || broker.NeedsPerson(err) {
			t.Errorf("too many connections: %v", err)
		}
	})
}

// A connection that is cut while signing in, at any byte, is not blamed on the password, unless RabbitMQ refuses it.
func TestAConnectionCutWhileSigningInIsNoWrongPassword(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		proxy := brokertest.NewProxy(t, v)
		signing, cuts := 0, 0
		for bytes := int64(0); ; bytes += 17 {
			before := proxy.Cuts()
			proxy.CutAfter(bytes)
			l, err := broker.NewProbe(t.Context(), broker.Config{URL: proxy.URL, Name: "test"})
			if err == nil {
				if err := l.Close(); err != nil { // the proxy counts a cut after it
					brokertest.Eventually(t, fmt.Sprintf("the cut that %q says", err), func() bool { return proxy.Cuts() > before })
				}
				if proxy.Cuts() == before { // all of it has passed
					break
				}
				continue
			}
			if cuts++; strings.Contains(err.Error(), "lost while signing in") {
				signing++
			}
			if broker.NeedsPerson(err) {
				t.Errorf("cut after %d bytes: %v", bytes, err)
			}
		}
		proxy.CutAfter(-1)
		if t.Logf("%d cuts, %d of them while signing in", cuts, signing); signing == 0 {
			t.Errorf("none of %d cuts was while signing in", cuts)
		}
		for name, password := range map[string]string{"guest": "wrong", "stranger": "guest"} {
			proxied := strings.Replace(v.URLAs("x", password), "//x:", "//"+name+":", 1)
			if _, err := broker.NewProbe(t.Context(), broker.Config{URL: proxied, Name: "test"}); !errors.Is(err, wire.ErrForbidden) || !strings.Contains(err.Error(), "wrong user or password") {
				t.Errorf("user %q, password %q: %v", name, password, err)
			}
		}
	})
}

// Frames are read and written above TLS, also those that fill many TLS records.
func TestAMQPSWorks(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
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
			got := brokertest.Receive(t, took, "a delivery by amqps")
			if got != want {
				t.Errorf("took %d bytes, want %d", len(got), len(want))
			}
		}
		c := startConsumer(t, secure)
		fail(t, v, 0, 200)
		if c.in(t, 0, 200) {
			t.Error("something was delivered twice")
		}
	})
}

// A peer that is not proven is sent nothing, and each error says what to do.
func TestPeersOfAMQPSAreVerified(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ca := v.CA(t)
		stranger, err := authority.New(t.TempDir())
		must(t, err)
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
			must(t, err)
			u, _ := url.Parse(v.SecureURL("guest", "s3cretpass", c.with))
			u.Host = peer.Addr
			refusedWith(t, c.what, broker.Config{URL: u.String()}, c.says...)
			expect.Equal(t, peer.Close(), "", "%s: the peer heard", c.what)
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
		must(t, stranger.Issue(authority.Leaf{User: "guest"}, cert, key))
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

// Certificate and authority that changed on disk are used at the next connection, by SASL EXTERNAL.
func TestCredentialsThatChangedOnDiskAreUsedAtTheNextConnection(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ca, dir := v.CA(t), t.TempDir()
		first, second := "first-"+v.Name, "second-"+v.Name
		for _, user := range []string{first, second} {
			v.User(user, "s3cret")
			v.Grant(user, ".*", ".*", ".*")
		}
		files := connect.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
		stranger, err := authority.New(t.TempDir())
		must(t, err)
		replace(t, files.CA, ca.CAFile())
		issue(t, ca, "unknown-user", files)
		external := broker.Config{URL: v.SecureURL("", "", url.Values{"auth_mechanism": {"external"}, "cacertfile": {""}}), Name: "redrive retries", Log: slog.New(slog.DiscardHandler),
			Credentials: connect.Client{TLS: files}}
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
		expect.Err(t, <-failed, wire.ErrTLS, "with another authority")
		replace(t, files.CA, ca.CAFile())
		p.AwaitUsable(t.Context())
		issue(t, ca, second, files)
		v.CloseConnections(first)
		v.CloseConnections(second) // waits for one
	})
}

// The same holds for a password in a file.
func TestAPasswordThatChangedOnDiskIsUsedAtTheNextConnection(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		user, file := "service-"+v.Name, filepath.Join(t.TempDir(), "password")
		v.User(user, "first")
		v.Grant(user, ".*", ".*", ".*")
		write(t, file, "first\n")
		p := broker.NewPublisher(broker.Config{URL: v.URLAs(user, "first"), Name: "redrive retries", Log: slog.New(slog.DiscardHandler),
			Credentials: connect.Client{Login: connect.Login{User: user, PasswordFile: file}}})
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

// A token of OAuth 2 is a password that expires.
func TestATokenThatExpires(t *testing.T) {
	brokertest.OnePrivate(t, "", func(t *testing.T, v *brokertest.VHost, n *rabbitnode.Node) {
		_, err := n.Shell(t.Context(), "rabbitmq-plugins enable rabbitmq_auth_backend_oauth2")
		must(t, err)
		_, err = n.Eval(t.Context(), `application:set_env(rabbit, auth_backends, [rabbit_auth_backend_oauth2, rabbit_auth_backend_internal]),
			application:set_env(rabbitmq_auth_backend_oauth2, resource_server_id, <<"rabbitmq">>),
			application:set_env(rabbitmq_auth_backend_oauth2, key_config, [{default_key, <<"k">>}, {signing_keys, #{<<"k">> =>
				{map, #{<<"kty">> => <<"oct">>, <<"alg">> => <<"HS256">>, <<"k">> => <<"`+base64.RawURLEncoding.EncodeToString([]byte(tokenKey))+`">>}}}}]).`)
		must(t, err)
		v.Queue("q", amqp.Table{"x-queue-type": "quorum"})
		t.Run("renewed in its file, it is passed on", func(t *testing.T) { aRenewedTokenIsPassedOn(t, v) })
		if brokertest.Long() {
			t.Run("expired, it has the connection ended", func(t *testing.T) { anExpiredTokenHasTheConnectionEnded(t, v) })
		}
	})
}

func aRenewedTokenIsPassedOn(t *testing.T, v *brokertest.VHost) {
	file := filepath.Join(t.TempDir(), "token")
	write(t, file, token(time.Hour, "rabbitmq.read:*/*"))
	var ended atomic.Int32
	p := broker.NewPublisher(broker.Config{URL: v.URLAs("svc", "x"), Name: "redrive retries", Log: slog.New(slog.DiscardHandler),
		Credentials: connect.Client{Login: connect.Login{User: "svc", PasswordFile: file}}, Observe: func(s broker.State) {
			if !s.Connected {
				ended.Add(1)
			}
		}})
	runUntilEnd(t, p)
	tries := 0
	send := func() error { // to another exchange each time, or repeating it would end the connection
		tries++
		return p.Send(t.Context(), []wire.Outgoing{message(fmt.Sprint("none-", tries), "", "", nil)})(t.Context())[0]
	}
	expect.Err(t, send(), wire.ErrForbidden, "without the scope")
	write(t, file, token(time.Hour, "rabbitmq.read:*/*", "rabbitmq.write:*/*"))
	brokertest.Eventually(t, "the new token's scope counts", func() bool { return !errors.Is(send(), wire.ErrForbidden) })
	if ended.Load() > 0 {
		t.Error("the connection ended")
	}
}

// RabbitMQ 3.10 leaves the connection open, and refuses all but what it allowed a moment before.
func anExpiredTokenHasTheConnectionEnded(t *testing.T, v *brokertest.VHost) {
	var tokens signIns
	var said sync.Map
	p := broker.NewPublisher(broker.Config{URL: v.URLAs("svc", "x"), Name: "redrive retries", Log: slog.New(slog.DiscardHandler),
		AMQP: amqp.Config{SASL: []amqp.Authentication{&tokens}}, Observe: func(s broker.State) {
			if s.Err != nil {
				said.Store(s.Err.Error(), true)
			}
		}})
	runUntilEnd(t, p)
	sent, unknown := 0, 0
	for ; tokens.Load() < 3; sent++ {
		one := []wire.Outgoing{message(wire.RetryExchange("q"), "", fmt.Sprint(sent), nil)}
		brokertest.Eventually(t, "it goes", func() bool {
			err := p.BindRetryExchange(t.Context(), "q")
			if err == nil {
				err = p.Send(t.Context(), one)(t.Context())[0]
			}
			if errors.Is(err, wire.ErrNoAnswer) {
				unknown++
			}
			return err == nil
		})
		<-time.After(100 * time.Millisecond) // so that they are some hundreds
	}
	said.Range(func(what, _ any) bool { t.Log(what); return true })
	got := map[string]int{}
	for in := v.ConsumeMany("q"); len(got) < sent; {
		got[string(in.Ack().Body)]++
	}
	twice := 0
	for _, n := range got {
		twice += n - 1
	}
	t.Logf("%d messages on %d connections, %d without an answer, %d twice", sent, tokens.Load(), unknown, twice)
	if twice > unknown {
		t.Error("a message with an answer arrived twice")
	}
}

// signIns counts them, and has a token for each.
type signIns struct{ atomic.Int32 }

func (*signIns) Mechanism() string { return "PLAIN" }

func (s *signIns) Response() string {
	s.Add(1)
	return "\x00svc\x00" + token(65*time.Second, "rabbitmq.read:*/*", "rabbitmq.write:*/*", "rabbitmq.configure:*/*")
}

const tokenKey = "a key of some 32 bytes, as HS256 takes"

func token(life time.Duration, scopes ...string) string {
	claims, _ := json.Marshal(map[string]any{"aud": []string{"rabbitmq"}, "sub": "svc", "client_id": "svc", "exp": time.Now().Add(life).Unix(), "scope": scopes})
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"HS256","typ":"JWT","kid":"k"}`)) + "." + encode(claims)
	mac := hmac.New(sha256.New, []byte(tokenKey))
	mac.Write([]byte(signed))
	return signed + "." + encode(mac.Sum(nil))
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

func issue(t *testing.T, ca *authority.Authority, user string, to connect.TLS) {
	t.Helper()
	must(t, ca.Issue(authority.Leaf{User: user}, to.Cert, to.Key))
}

func replace(t *testing.T, file, with string) {
	t.Helper()
	data, err := os.ReadFile(with)
	must(t, err)
	write(t, file, string(data))
}

func write(t *testing.T, file, text string) {
	t.Helper()
	must(t, os.WriteFile(file, []byte(text), 0o600))
}
