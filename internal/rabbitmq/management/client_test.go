package management_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// names are what URLs mean something else by.
var names = []string{"orders", "a/b", "a%2Fb", "a b+c", "a?b=c#d", "...", "заказы", "\x1b[2J"}

func TestPolicies(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ctx, m := context.Background(), v.API()
		if all, err := m.Policies(ctx); err != nil || len(all) != 0 {
			t.Fatalf("a new virtual host has the policies %v, %v", all, err)
		}
		want := map[string]management.Policy{}
		for i, name := range names {
			p := management.Policy{Name: name, Pattern: "^a\\.b$", ApplyTo: "queues", Priority: i, Definition: map[string]any{"dead-letter-exchange": "redrive", "message-ttl": 1e9}}
			if err := m.PutPolicy(ctx, p); err != nil {
				t.Fatalf("setting policy %q: %v", name, err)
			}
			want[name] = p
		}
		orders := want["orders"]
		orders.Priority, orders.Definition = 99, map[string]any{"max-length": 5.0}
		want["orders"] = orders
		must(t, m.PutPolicy(ctx, orders))
		expect.Equal(t, cmp.Diff(want, policies(t, m)), "", "policies (-want +got):\n")
		for _, name := range names {
			expect.Err(t, m.DeletePolicy(ctx, name), nil, "deleting policy %q", name)
			delete(want, name)
			if d := cmp.Diff(want, policies(t, m)); d != "" {
				t.Fatalf("after deleting %q (-want +got):\n%s", name, d)
			}
		}
		expect.Err(t, m.DeletePolicy(ctx, "orders"), management.ErrNotFound, "deleting a policy that is not there")
		err := m.PutPolicy(ctx, management.Policy{Name: "bad", Pattern: "(", ApplyTo: "queues", Definition: map[string]any{"max-length": 5}})
		if err == nil || !strings.Contains(err.Error(), "policies/") || !strings.Contains(err.Error(), "pattern") {
			t.Errorf("a pattern that is none: %v", err)
		}
	})
}

// RabbitMQ closes a connection when it was idle for long, which may be just as the next request is sent.
func TestARequestIsMadeAgainWhereTheIdleConnectionWasClosed(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		t.Run(method, func(t *testing.T) {
			met := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if met++; met == 2 {
					panic(http.ErrAbortHandler) // closes, and answers nothing
				}
				if key, sent := r.Header["Idempotency-Key"]; sent {
					t.Errorf("it was sent with the key %q", key)
				}
				w.WriteHeader(http.StatusNoContent)
			}))
			defer s.Close()
			m := clientOf(t, s.URL, "/")
			for range 2 {
				must(t, m.Call(t.Context(), method, "policies/shop/orders", map[string]string{"pattern": "."}, nil))
			}
			expect.Equal(t, met, 3, "it was made … times in all")
		})
	}
}

func policies(t *testing.T, m *management.Client) map[string]management.Policy {
	t.Helper()
	all, err := m.Policies(context.Background())
	must(t, err)
	by := map[string]management.Policy{}
	for _, p := range all {
		by[p.Name] = p
	}
	return by
}

func TestQueues(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ctx, m := context.Background(), v.API()
		for _, name := range names {
			v.Queue(name, amqp.Table{"x-queue-type": "classic", "x-max-length": 7})
			q, err := m.Queue(ctx, name)
			if err != nil {
				t.Errorf("queue %q: %v", name, err)
				continue
			}
			if q.Name != name || q.Type != "classic" || q.Policy != "" || q.Arguments["x-max-length"] != 7.0 {
				t.Errorf("queue %q is %+v", name, q)
			}
			to := delay.Topology{Exchanges: []delay.Exchange{{Name: "to " + name, Kind: amqp.ExchangeFanout}}, Bindings: []delay.Binding{{From: "to " + name, ToQueue: name}}}
			expect.Err(t, m.Declare(ctx, to), nil, "exchange for %q", name)
			v.Publish("to "+name, "", amqp.Publishing{Body: []byte(name)})
			c := v.Consume(name)
			c.Take(name)
			if err := m.Call(ctx, http.MethodDelete, "exchanges/"+url.PathEscape(v.Name)+"/"+url.PathEscape("to "+name), nil, nil); err != nil {
				t.Errorf("deleting the exchange for %q: %v", name, err)
			}
		}
		for _, name := range []string{".", ".."} { // RabbitMQ would answer for all queues
			if _, err := m.Queue(ctx, name); err == nil || !strings.Contains(err.Error(), "cannot address") {
				t.Errorf("queue %q: %v", name, err)
			}
		}
		v.Queue("quorum", amqp.Table{"x-queue-type": "quorum"})
		if q, err := m.Queue(ctx, "quorum"); err != nil || q.Type != "quorum" {
			t.Errorf("a quorum queue is %+v, %v", q, err)
		}
		if _, err := m.Queue(ctx, "nothing"); !errors.Is(err, management.ErrNotFound) || !strings.Contains(err.Error(), "nothing") {
			t.Errorf("a queue that is not there: %v", err)
		}
		if o, err := m.Overview(ctx); err != nil || o.Version != v.Version || o.Node == "" {
			t.Errorf("the overview is %+v, %v", o, err)
		}
	})
}

// Whoever may not learns who was refused, where, and what to look at; never a
// password.
func TestRefusedUsers(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ctx, user := context.Background(), "shop-"+uuid.NewString()
		v.User(user, "s3cret")
		for _, c := range []struct{ what, user, password, want string }{
			{"a wrong password", user, "s3cretnot", "password"},
			{"an unknown user", "nobody-" + user, "s3cret", "password"},
			{"a user without a tag", user, "s3cret", "tag"},
		} {
			_, err := clientAs(t, v, c.user, c.password).Policies(ctx)
			if !errors.Is(err, management.ErrDenied) {
				t.Errorf("%s: %v", c.what, err)
				continue
			}
			checkError(t, c.what, err, c.want, c.user, hostOf(t, v.Management), "broker.management")
		}
		// With the tag, but without a right on the virtual host.
		v.Must(http.MethodPut, "users/"+user, map[string]any{"password": "s3cret", "tags": "policymaker"})
		m := clientAs(t, v, user, "s3cret")
		if _, err := m.Policies(ctx); !errors.Is(err, management.ErrDenied) && !errors.Is(err, management.ErrNotFound) {
			t.Errorf("without a right on the virtual host: %v", err)
		} else {
			checkError(t, "without a right on the virtual host", err, user)
		}
		v.Grant(user, "", "", "")
		if err := m.PutPolicy(ctx, management.Policy{Name: "p", Pattern: "x", ApplyTo: "queues", Definition: map[string]any{"max-length": 5}}); err != nil {
			t.Errorf("with the tag policymaker: %v", err)
		}
		err := m.Declare(ctx, delay.Topology{Exchanges: []delay.Exchange{{Name: "e", Kind: amqp.ExchangeFanout}}})
		if err == nil {
			t.Error("an exchange was made without the right")
		} else {
			checkError(t, "an exchange without the right", err, "e")
		}
	})
}

func TestTheManagementAPIIsNotThere(t *testing.T) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/gone/") {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte("<html>a shop</html>"))
	}))
	defer site.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	for what, at := range map[string]string{"nothing listens": gone.URL, "another site": site.URL, "another site's 404": site.URL + "/gone"} {
		u, err := url.Parse(at)
		must(t, err)
		u.User = url.UserPassword("shop", "s3cret")
		m := clientOf(t, u.String(), "/")
		_, err = m.Queue(context.Background(), "orders")
		if err == nil {
			t.Errorf("%s: no error", what)
			continue
		}
		says := "orders"
		if unreachable := hint.KindOf(err, func(k hint.Kind) bool { return k.Exit == 7 }).Exit == 7; unreachable != (at == gone.URL) {
			t.Errorf("%s: unreachable is %v", what, unreachable)
		} else if unreachable {
			says = "the management API at " + u.Host + " does not answer: connection refused;"
		}
		checkError(t, what, err, u.Host, says, "rabbitmq_management", "broker.management")
	}
	for _, bad := range []string{"", "127.0.0.1:15672", "http://", "http://u:s3cret@ho st/"} {
		if _, err := management.New(bad, "/"); err == nil {
			t.Errorf("%q was taken for a URL", bad)
		} else {
			checkError(t, bad, err, "expected http://")
		}
	}
}

// On the port of AMQP, the usual mistake.
func TestThePortOfAMQPIsNotTheManagementAPI(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		host := hostOf(t, v.AMQP)
		m := clientOf(t, "http://shop:s3cret@"+host, "/")
		if _, err := m.Overview(context.Background()); err == nil {
			t.Error("no error")
		} else {
			checkError(t, "AMQP's port", err, host, "broker.management")
		}
	})
}

// Of several nodes one is asked, and another when that does not answer; whatever they
// are refused, all refuse.
func TestSeveralNodes(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ctx := context.Background()
		gone := httptest.NewServer(nil)
		gone.Close()
		broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
		defer broken.Close()
		as := func(at string) string { return strings.Replace(at, "http://", "http://guest:guest@", 1) }
		for range 10 { // which is the first is random
			m := clientOf(t, strings.Join([]string{as(gone.URL), as(broken.URL), v.Management}, ","), v.Name)
			if _, err := m.Overview(ctx); err != nil {
				t.Fatalf("one of three answers: %v", err)
			}
			if at := m.URL("queues"); !strings.Contains(at, hostOf(t, v.Management)) {
				t.Errorf("commands for people ask %s, which does not answer", at)
			}
			expect.Err(t, errOf(m.Queue(ctx, "nothing")), management.ErrNotFound, "a queue that is not there")
			expect.Err(t, errOf(m.As("guest", "s3cretnot").Overview(ctx)), management.ErrDenied, "a wrong password")
		}
		m := clientOf(t, as(gone.URL)+","+as(broken.URL), v.Name)
		if _, err := m.Overview(ctx); err == nil {
			t.Error("nobody answers, and there is no error")
		} else {
			checkError(t, "nobody answers", err, hostOf(t, gone.URL), hostOf(t, broken.URL))
		}
	})
}

// A node that takes the question and never answers costs its asker's time, and no
// other's.
func TestANodeThatHangsIsAskedOnce(t *testing.T) {
	hanging := make(chan struct{})
	hung := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hanging }))
	defer hung.Close()
	defer close(hanging)
	well := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
	defer well.Close()
	for range 5 { // which is the first is random
		m := clientOf(t, hung.URL+","+well.URL, "/")
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, _ = m.Overview(ctx)
		cancel()
		if _, err := m.Overview(context.Background()); err != nil || !strings.HasPrefix(m.URL("queues"), well.URL) {
			t.Errorf("the second question: %v, at %s", err, m.URL("queues"))
		}
	}
}

func clientAs(t *testing.T, v *brokertest.VHost, user, password string) *management.Client {
	t.Helper()
	u, err := url.Parse(v.Management)
	must(t, err)
	u.User = url.UserPassword(user, password)
	return clientOf(t, u.String(), v.Name)
}

func clientOf(t *testing.T, url, vhost string) *management.Client {
	t.Helper()
	m, err := management.New(url, vhost)
	must(t, err)
	return m
}

func hostOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	must(t, err)
	return u.Host
}

func checkError(t *testing.T, what string, err error, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q does not say %q", what, err, want)
		}
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%s: the password is in %q", what, err)
	}
}

// A consumer whose channel has just closed: its queue must be read all the same.
func TestAConsumerThatHasJustGone(t *testing.T) {
	for _, text := range []string{`{"consumer_tag":"a","channel_details":[]}`, `{"consumer_tag":"a","channel_details":{}}`, `{"consumer_tag":"a"}`} {
		var c management.QueueConsumer
		if err := json.Unmarshal([]byte(text), &c); err != nil || c.Tag != "a" || c.Channel.User != "" {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	var c management.QueueConsumer
	if err := json.Unmarshal([]byte(`{"channel_details":{"user":"dana","connection_name":"c","node":"n"}}`), &c); err != nil || c.Channel.User != "dana" || c.Channel.Connection != "c" {
		t.Errorf("%+v, %v", c, err)
	}
}

// A peer with a wrong name, of an unknown authority, or whose certificate has expired is
// refused before it hears the password; the error says what to do.
func TestPeersOfManagementAreVerified(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ca := v.CA(t)
		stranger, err := authority.New(t.TempDir())
		must(t, err)
		here := []string{"127.0.0.1"}
		for _, c := range []struct {
			what string
			by   *authority.Authority
			leaf authority.Leaf
			says string
		}{
			{"another name", ca, authority.Leaf{Hosts: []string{"rabbit.example"}}, "is for rabbit.example, not for 127.0.0.1"},
			{"an unknown authority", stranger, authority.Leaf{Hosts: here}, "unknown authority"},
			{"an expired certificate", ca, authority.Leaf{Hosts: here, NotAfter: time.Now().Add(-time.Hour)}, "is valid from"},
		} {
			peer, err := c.by.NewImpostor(c.leaf)
			must(t, err)
			_, err = client(t, "https://guest:s3cretpass@"+peer.Addr, connect.TLS{CA: ca.CAFile()}).Overview(t.Context())
			if !errors.Is(err, wire.ErrTLS) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cretpass") {
				t.Errorf("%s: %v", c.what, err)
			}
			expect.Equal(t, peer.Close(), "", "%s: the peer heard", c.what)
		}
		at, _ := url.Parse(v.Management)
		if _, err := client(t, "https://guest:guest@"+at.Host, connect.TLS{CA: ca.CAFile()}).Overview(t.Context()); !errors.Is(err, wire.ErrTLS) || !strings.Contains(err.Error(), "15671") {
			t.Errorf("a port without TLS: %v", err)
		}
	})
}

// An authority that changed on disk is used at the next connection, a password at the
// next request.
func TestManagementUsesWhatChangedOnDisk(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		stranger, err := authority.New(t.TempDir())
		must(t, err)
		dir, user := t.TempDir(), "monitor-"+v.Name
		v.User(user, "first")
		v.Must("PUT", "users/"+user, map[string]any{"password": "first", "tags": "monitoring"})
		ca, password := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "password")
		replace(t, ca, stranger.CAFile())
		u, _ := url.Parse(v.HTTPS)
		u.User = url.UserPassword(user, "first")
		m := clientOf(t, u.String(), v.Name)
		m.WithCredentials(connect.Client{TLS: connect.TLS{CA: ca}, Login: connect.Login{User: user, PasswordFile: password}})
		expect.Err(t, errOf(m.Overview(t.Context())), wire.ErrTLS, "with another authority")
		replace(t, ca, v.CA(t).CAFile())
		must(t, errOf(m.Overview(t.Context())))
		v.Must("PUT", "users/"+user, map[string]any{"password": "second", "tags": "monitoring"})
		expect.Err(t, errOf(m.Overview(t.Context())), management.ErrDenied, "with the old password")
		must(t, os.WriteFile(password, []byte("second\n"), 0o600))
		must(t, errOf(m.Overview(t.Context())))
	})
}

func client(t *testing.T, url string, files connect.TLS) *management.Client {
	t.Helper()
	return clientOf(t, url, "/").WithCredentials(connect.Client{TLS: files})
}

func replace(t *testing.T, file, with string) {
	t.Helper()
	data, err := os.ReadFile(with)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	must(t, err)
}

var must, errOf = expect.NoError, expect.ErrOf

// A proxy that decodes %2F leads to other objects: an answer about one of them is an error that names the
// proxy, and nothing is written.
func TestAProxyThatDecodesSlashes(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		vhost := "/" + v.Name // which leads to v.Name, where slashes are merged
		v.Must(http.MethodPut, "vhosts/"+url.PathEscape(vhost), nil)
		t.Cleanup(func() { v.Must(http.MethodDelete, "vhosts/"+url.PathEscape(vhost), nil) })
		v.Queue("orders", amqp.Table{"x-dead-letter-exchange": "redrive"})
		v.Policy("limits", "^limited$", 1, map[string]any{"max-length": 5})
		v.Must(http.MethodPut, "operator-policies/"+v.Name+"/limits", map[string]any{"pattern": "^limited$", "definition": map[string]any{"max-length": 5}})
		exchange := delay.Topology{Exchanges: []delay.Exchange{{Name: "orders", Kind: "fanout"}}, Bindings: []delay.Binding{{From: "orders", ToQueue: "orders"}}}
		must(t, v.API().Declare(t.Context(), exchange))
		direct := clientOf(t, v.Management, vhost)
		if q, err := direct.Queue(t.Context(), "a/b"); !errors.Is(err, management.ErrNotFound) || errors.Is(err, management.ErrOther) {
			t.Errorf("without a proxy: %+v, %v", q, err)
		}
		must(t, errOf(direct.Exchange(t.Context(), "amq.direct")))
		for _, merges := range []bool{false, true} {
			proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
				to, _ := url.Parse(v.Management)
				r.Out.URL.Scheme, r.Out.URL.Host, r.Out.URL.RawPath = to.Scheme, to.Host, ""
				if merges {
					r.Out.URL.Path = strings.ReplaceAll(strings.ReplaceAll(r.Out.URL.Path, "//", "/"), "//", "/")
				}
			}})
			defer proxy.Close()
			for _, vhost := range []string{"/", vhost} {
				m := clientOf(t, strings.Replace(proxy.URL, "http://", "http://guest:guest@", 1), vhost)
				for what, ask := range map[string]func(context.Context) error{
					"queue":             func(ctx context.Context) error { _, err := m.Queue(ctx, "orders"); return err },
					"queues":            func(ctx context.Context) error { _, err := m.Queues(ctx); return err },
					"queue's state":     func(ctx context.Context) error { _, err := m.QueueState(ctx, "orders"); return err },
					"states":            func(ctx context.Context) error { _, err := m.QueueStates(ctx); return err },
					"exchange":          func(ctx context.Context) error { _, err := m.Exchange(ctx, "orders"); return err },
					"exchanges":         func(ctx context.Context) error { _, err := m.Exchanges(ctx); return err },
					"bindings":          func(ctx context.Context) error { _, err := m.Bindings(ctx); return err },
					"queue's bindings":  func(ctx context.Context) error { _, err := m.QueueBindings(ctx, "orders"); return err },
					"bindings to it":    func(ctx context.Context) error { _, err := m.BindingsTo(ctx, "orders"); return err },
					"policy":            func(ctx context.Context) error { _, err := m.Policy(ctx, "limits"); return err },
					"policies":          func(ctx context.Context) error { _, err := m.Policies(ctx); return err },
					"operator policies": func(ctx context.Context) error { _, err := m.OperatorPolicies(ctx); return err },
					"put": func(ctx context.Context) error {
						return m.PutPolicy(ctx, management.Policy{Name: "ours", Pattern: "."})
					},
					"delete":  func(ctx context.Context) error { return m.DeletePolicy(ctx, "limits") },
					"declare": func(ctx context.Context) error { return m.Declare(ctx, exchange) },
				} {
					if err := ask(t.Context()); !errors.Is(err, management.ErrOther) {
						t.Errorf("%s in %q, slashes merged %v: %v", what, vhost, merges, err)
					} else {
						checkError(t, what, err, "proxy")
					}
				}
				c := management.NewConsent(m, "redrive")
				ctx, stop := context.WithCancel(t.Context())
				asking := make(chan struct{})
				go func() { defer close(asking); c.Run(ctx) }()
				var err error
				brokertest.Eventually(t, "it was asked", func() bool {
					var yes bool
					yes, _, err = c.Consented("orders")
					return yes || err != nil
				})
				stop()
				if <-asking; !errors.Is(err, management.ErrOther) {
					t.Errorf("consent in %q, slashes merged %v: %v", vhost, merges, err)
				}
			}
		}
		if all := policies(t, v.API()); len(all) != 1 {
			t.Errorf("what was written: %v", all)
		}
	})
}
