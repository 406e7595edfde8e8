package auth

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

func usersAt(api, vhost string, grants map[string]Grant, kept store.SideTable) (*Users, error) {
	client, err := management.New(api, vhost)
	return NewUsers(client, vhost, grants, kept), err
}

// user makes one with tags and rights in the virtual host, and returns its name.
func user(v *brokertest.VHost, tags string, granted bool) string {
	name := "user-" + uuid.NewString()
	v.User(name, "s3cret")
	v.Must("PUT", "users/"+name, map[string]any{"password": "s3cret", "tags": tags})
	if granted {
		v.Grant(name, "^$", "^$", ".*")
	}
	return name
}

func users(t *testing.T, v *brokertest.VHost, grants map[string]Grant) *Users {
	t.Helper()
	u, err := usersAt(v.Management, v.Name, grants, shelf{})
	must(t, err)
	return u
}

func TestRabbitMQsUsersSignIn(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		grants := DefaultGrants()
		grants["shop"] = Grant{Operator, []string{"orders.*"}}
		grants["post"] = Grant{Operator, []string{"mail"}}
		grants["all"] = Grant{Operator, nil}
		u := users(t, v, grants)
		for _, c := range []struct {
			tags    string
			granted bool
			role    Role
			queues  []string
			err     error
		}{
			{"administrator", true, Admin, nil, nil},
			{"administrator", false, Admin, nil, nil}, // who can give themselves rights anyway
			{"monitoring", true, Viewer, nil, nil},
			{"policymaker", true, Viewer, nil, nil},
			{"management", true, Viewer, nil, nil},
			{"monitoring", false, NoRole, nil, ErrForbidden}, // another tenant's
			{"management", false, NoRole, nil, ErrForbidden},
			{"management,shop", true, Operator, []string{"orders.*"}, nil},
			{"management,shop,post", true, Operator, []string{"mail", "orders.*"}, nil},
			{"management,shop,all,post", true, Operator, nil, nil},
			{"administrator,shop", true, Admin, nil, nil},
			{"shop", true, NoRole, nil, ErrSignIn}, // RabbitMQ's management does not let it in
			{"", true, NoRole, nil, ErrSignIn},
		} {
			name := user(v, c.tags, c.granted)
			got, err := u.SignIn(t.Context(), name, "s3cret", "192.0.2.1")
			slices.Sort(got.Queues)
			if !errors.Is(err, c.err) || got.Role != c.role || !slices.Equal(got.Queues, c.queues) || err == nil && (got.Name != name || got.How != "rabbitmq") {
				t.Errorf("tags %q, granted %v: %+v, %v", c.tags, c.granted, got, err)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error shows the password: %v", err)
			}
		}
		if _, err := users(t, v, map[string]Grant{"shop": {Viewer, nil}}).SignIn(t.Context(), user(v, "administrator", true), "s3cret", "192.0.2.1"); !errors.Is(err, ErrForbidden) {
			t.Errorf("no tag has a role: %v", err)
		}
	})
}

func TestWhoIsWrongDoesNotSignIn(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		u, name := users(t, v, DefaultGrants()), user(v, "monitoring", true)
		signIn := func(name, password, from string) error {
			return errOf(u.SignIn(t.Context(), name, password, from))
		}
		for _, c := range [][2]string{{name, "S3cret"}, {name, "s3cret "}, {name, ""}, {"", "s3cret"}, {"nobody-" + name, "s3cret"}, {"guest", "guest"}, {name + "\x00", "s3cret"}, {"../" + name, "x"}} {
			expect.Err(t, signIn(c[0], c[1], c[0]+c[1]), ErrSignIn, "%q with %q", c[0], c[1])
		}
		must(t, signIn(name, "s3cret", "192.0.2.1"))
		other := user(v, "monitoring", true)
		var many *TooMany
		var err error
		for range 11 {
			err = signIn(other, "wrong", "192.0.2.9")
		}
		if !errors.As(err, &many) || many.Wait <= 0 || many.Wait > 30*time.Second {
			t.Errorf("after ten failures from an address: %v", err)
		}
		if err := signIn(other, "s3cret", "192.0.2.9"); !errors.As(err, &many) {
			t.Errorf("with the right password then, which a guess might be: %v", err)
		}
		expect.Err(t, signIn(name, "s3cret", "192.0.2.9"), nil,
			"who was right before is stopped by another at the address")
		for i := range 31 {
			err = signIn(name, "wrong", "198.51.100."+string(rune('a'+i)))
		}
		if !errors.As(err, &many) {
			t.Errorf("after thirty failures of a name from as many addresses: %v", err)
		}
		expect.Err(t, signIn(name, "s3cret", "192.0.2.1"), nil, "who was right before is stopped by guesses of others")
		expect.Err(t, signIn(other, "s3cret", "192.0.2.1"), nil, "another name at another address")
	})
}

func TestNobodySignsInWhileRabbitMQDoesNotAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	l.Close()
	u, err := usersAt("http://"+l.Addr().String(), "/", DefaultGrants(), shelf{})
	must(t, err)
	for range 20 { // which counts as no one's failure
		if _, err := u.SignIn(t.Context(), "ann", "s3cret", "192.0.2.1"); !errors.Is(err, ErrUnchecked) || errors.Is(err, ErrSignIn) || strings.Contains(err.Error(), "s3cret") {
			t.Fatal(err)
		}
	}
}

// Versions differ.
func TestTags(t *testing.T) {
	for text, want := range map[string][]string{`["a","b"]`: {"a", "b"}, `"a,b"`: {"a", "b"}, `"a, b"`: {"a", "b"}, `""`: nil, `[]`: nil} {
		var got tags
		if err := json.Unmarshal([]byte(text), &got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	var got tags
	if err := json.Unmarshal([]byte(`{"a":1}`), &got); err == nil {
		t.Errorf("no tags: %q", got)
	}
}

// Of several tags the highest role counts, in whatever order, with its own queues.
func TestTheHighestRoleOfSeveralTagsCounts(t *testing.T) {
	grants := map[string]Grant{"see": {Role: Viewer}, "shop": {Operator, []string{"orders.*"}},
		"post": {Operator, []string{"mail"}}, "all": {Role: Operator}}
	for text, want := range map[string]Grant{
		"": {}, "none": {}, "see": {Role: Viewer}, "see shop": {Operator, []string{"orders.*"}}, "shop see": {Operator, []string{"orders.*"}},
		"shop post": {Operator, []string{"orders.*", "mail"}}, "shop all": {Role: Operator}, "all shop": {Role: Operator},
	} {
		if got := highest(grants, strings.Fields(text)); got.Role != want.Role || !slices.Equal(got.Queues, want.Queues) || (got.Queues == nil) != (want.Queues == nil) {
			t.Errorf("tags %q: %+v, want %+v", text, got, want)
		}
	}
}

var quiet = slog.New(slog.DiscardHandler)

// pair writes a certificate for a name and its key; the certificate is its own
// authority.
func pair(t *testing.T, files TLSFiles, name string, at time.Time) (*x509.Certificate, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	cert := write(t, files.Cert, "CERTIFICATE", der, at)
	made, err := tls.X509KeyPair(cert, write(t, files.Key, "PRIVATE KEY", secret, at))
	must(t, err)
	return made.Leaf, made
}

func write(t *testing.T, file, kind string, der []byte, at time.Time) []byte {
	t.Helper()
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	must(t, os.WriteFile(file, data, 0o600))
	must(t, os.Chtimes(file, at, at))
	return data
}

// serve answers by TLS with those files, and tells where.
func serve(t *testing.T, files TLSFiles) string {
	t.Helper()
	c, err := TLS(files, quiet)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &http.Server{Handler: http.NotFoundHandler(), TLSConfig: c, ErrorLog: slog.NewLogLogger(quiet.Handler(), 0)}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.ServeTLS(l, "", "") }()
	t.Cleanup(func() { s.Close(); <-ended })
	return l.Addr().String()
}

// ask makes one request, on a connection of its own, and returns whose certificate
// answered.
func ask(addr string, c *tls.Config) (name, protocol string, err error) {
	transport := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("https://" + addr)
	if err != nil {
		return "", "", err
	}
	resp.Body.Close()
	return resp.TLS.PeerCertificates[0].Subject.CommonName, resp.Proto, nil
}

func trusting(cert *x509.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{RootCAs: pool, ServerName: cert.Subject.CommonName}
}

func TestTLSFilesThatChangeAreReadAnew(t *testing.T) {
	dir := t.TempDir()
	files := TLSFiles{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	began := time.Now().Add(-time.Hour)
	first, _ := pair(t, files, "first.example", began)
	addr := serve(t, files)
	if name, proto, err := ask(addr, trusting(first)); name != "first.example" || proto != "HTTP/2.0" {
		t.Fatal(name, proto, err)
	}
	old := trusting(first)
	old.MaxVersion = tls.VersionTLS11
	old.MinVersion = tls.VersionTLS10
	if _, _, err := ask(addr, old); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
	must(t, os.WriteFile(files.Cert, []byte("half a cert"), 0o600))
	if name, _, err := ask(addr, trusting(first)); name != "first.example" {
		t.Error("with a file that is being written:", name, err)
	}
	second, _ := pair(t, files, "second.example", began.Add(time.Minute))
	if name, _, err := ask(addr, trusting(second)); name != "second.example" {
		t.Error("with new files:", name, err)
	}
	if _, _, err := ask(addr, trusting(first)); err == nil {
		t.Error("the old certificate is still in use")
	}
}

func TestClientsNeedACertificateOfTheirAuthority(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	_, client := pair(t, TLSFiles{Cert: file("ca.pem"), Key: file("ca-key.pem")}, "ann", time.Now())
	_, stranger := pair(t, TLSFiles{Cert: file("other.pem"), Key: file("other-key.pem")}, "bob", time.Now())
	files := TLSFiles{Cert: file("cert.pem"), Key: file("key.pem"), ClientCA: file("ca.pem")}
	cert, _ := pair(t, files, "service.example", time.Now())
	addr := serve(t, files)
	for name, c := range map[string]struct {
		with []tls.Certificate
		ok   bool
	}{"theirs": {[]tls.Certificate{client}, true}, "another's": {[]tls.Certificate{stranger}, false}, "none": {nil, false}} {
		config := trusting(cert)
		config.Certificates = c.with
		if _, _, err := ask(addr, config); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTLSFilesThatCannotBeUsedStopTheStart(t *testing.T) {
	dir := t.TempDir()
	good := TLSFiles{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	pair(t, good, "a.example", time.Now())
	other := TLSFiles{Cert: filepath.Join(dir, "other.pem"), Key: filepath.Join(dir, "other-key.pem")}
	pair(t, other, "b.example", time.Now())
	for name, files := range map[string]TLSFiles{
		"no cert": {"none", good.Key, ""}, "no key": {good.Cert, "none", ""}, "another's key": {good.Cert, other.Key, ""},
		"no authority": {good.Cert, good.Key, "none"}, "a key as authority": {good.Cert, good.Key, good.Key},
	} {
		if _, err := TLS(files, quiet); err == nil {
			t.Errorf("%s: it starts", name)
		}
	}
}

// directory answers as RabbitMQ's: it knows alice, whose password has a colon in it,
// as a directory would, whatever the case of her name.
func directory(t *testing.T) (url string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		if !strings.EqualFold(name, "alice") || password != "s3:cret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"name": name, "tags": []string{"monitoring"}, "items": []any{}})
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// However a name is written, the failures count for the one it is.
func TestNoWayOfWritingANameGivesMoreGuesses(t *testing.T) {
	u, err := usersAt(directory(t), "/", DefaultGrants(), shelf{})
	must(t, err)
	must(t, errOf(u.SignIn(t.Context(), "alice", "s3:cret", "192.0.2.1")))
	// To RabbitMQ that would be alice with the password "s3:cret".
	expect.Err(t, errOf(u.SignIn(t.Context(), "alice:s3", "cret", "192.0.2.2")), ErrSignIn,
		"a name with a colon is a guess that counts for nobody")
	if _, err := u.SignIn(t.Context(), strings.Repeat("a", 1000), "x", "192.0.2.2"); !errors.Is(err, ErrSignIn) || len(u.names.buckets) > 1 {
		t.Errorf("a name longer than any is kept: %v", err)
	}
	guesses := 0
	for i := range 40 {
		name := []byte("alice")
		for bit := range name {
			if i>>bit&1 == 1 {
				name[bit] -= 'a' - 'A'
			}
		}
		var many *TooMany
		if _, err := u.SignIn(t.Context(), string(name), "wrong", string(rune('a'+i))); !errors.As(err, &many) {
			guesses++
		}
	}
	if guesses > 32 {
		t.Errorf("%d guesses, by writing the name in so many ways", guesses)
	}
}

// What does not work is written to the log, and not to strangers; and what somebody
// types into the wrong field not even to the log.
func TestWhatStrangersAndTheLogAreTold(t *testing.T) {
	users, err := usersAt("http://monitor:s3cret@127.0.0.1:1", "/", DefaultGrants(), shelf{})
	must(t, err)
	var log bytes.Buffer
	_, h, secret := guarded(t, Config{Users: users, Log: slog.New(slog.NewTextHandler(&log, nil))})
	basic := func(user, password string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(user, password) }
	}
	w := request(h, "GET", "/", basic("ann", "pass"))
	if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "127.0.0.1:1") {
		t.Errorf("a stranger is told where RabbitMQ is: %d %s", w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "127.0.0.1:1") || !strings.Contains(log.String(), "user=ann") {
		t.Errorf("the log does not say what is wrong: %s", &log)
	}
	request(h, "GET", "/", basic(secret, "x"))
	request(h, "GET", "/", basic(strings.Repeat("y", 300), "x"))
	if strings.Contains(log.String(), secret) || strings.Contains(log.String(), strings.Repeat("y", 70)) || strings.Contains(log.String(), "s3cret") {
		t.Errorf("the log has %s", &log)
	}
}

// All who come by one proxy have one address.
func TestAnAttackerLocksOutNobodyElseAtTheSameAddress(t *testing.T) {
	u, err := usersAt(directory(t), "/", DefaultGrants(), shelf{})
	must(t, err)
	const proxy = "192.0.2.1"
	signIn := func() error {
		clear(u.known) // some minutes later
		return errOf(u.SignIn(t.Context(), "alice", "s3:cret", proxy))
	}
	wrong := func(name string) (refused int) {
		for range 40 {
			var many *TooMany
			if _, err := u.SignIn(t.Context(), name, "wrong", proxy); !errors.As(err, &many) {
				refused++
			}
		}
		return refused
	}
	if n := wrong("bob"); n > 11 {
		t.Errorf("%d guesses at one account from one address", n)
	}
	if err := signIn(); err != nil {
		t.Fatalf("locked out by guesses at another account: %v", err)
	}
	for i := range 30 { // many accounts
		wrong("user" + string(rune('a'+i)))
	}
	expect.Err(t, signIn(), nil, "who signed in from there before is locked out")
	if n := wrong("another"); n > 1 {
		t.Errorf("%d guesses at one more account, after those at thirty", n)
	}
}

// After a restart, too, guesses at other accounts hold up only those who have never signed
// in from the address.
func TestWhoSignedInBeforeARestartIsNotHeldUpByOthers(t *testing.T) {
	url, kept := directory(t), memstore.New()
	const proxy = "192.0.2.1"
	started := func(s store.SideTable) *Users {
		u, err := usersAt(url, "/", DefaultGrants(), s)
		must(t, err)
		return u
	}
	must(t, errOf(started(kept).SignIn(t.Context(), "alice", "s3:cret", proxy)))
	for _, c := range []struct {
		name, from string
		kept       store.SideTable
		in         bool
	}{
		{"alice", proxy, kept, true}, {"ALICE", proxy, kept, true},
		{"alice", "192.0.2.2", kept, false}, {"alice", proxy, memstore.New(), false},
	} {
		u := started(c.kept)
		for i := range 150 {
			_, _ = u.SignIn(t.Context(), "user"+strconv.Itoa(i), "wrong", c.from)
		}
		_, err := u.SignIn(t.Context(), c.name, "s3:cret", c.from)
		var many *TooMany
		if in := err == nil; in != c.in || !in && !errors.As(err, &many) {
			t.Errorf("%s from %s, kept %t: %v", c.name, c.from, c.kept == kept, err)
		}
		if _, err := u.SignIn(t.Context(), "bob", "wrong", c.from); !errors.As(err, &many) {
			t.Errorf("an address with too many failures goes on guessing: %v", err)
		}
	}
}

// What is kept of who signed in does not grow for ever.
func TestWhoSignedInLongAgoIsForgotten(t *testing.T) {
	kept := memstore.New()
	old, err := time.Now().Add(-signedInFor - time.Hour).MarshalText()
	must(t, err)
	must(t, kept.PutEntries(t.Context(), []store.Entry{{Name: signedInName("bob 192.0.2.1"), Value: old}}))
	u, err := usersAt(directory(t), "/", DefaultGrants(), kept)
	must(t, err)
	must(t, errOf(u.SignIn(t.Context(), "alice", "s3:cret", "192.0.2.1")))
	if !u.lastSignIn(t.Context(), "bob 192.0.2.1").IsZero() {
		t.Error("who signed in long ago counts")
	}
	must(t, u.forget(t.Context(), time.Now()))
	old, err = kept.Entry(t.Context(), signedInName("bob 192.0.2.1"))
	must(t, err)
	if old != nil || u.lastSignIn(t.Context(), "alice 192.0.2.1").IsZero() {
		t.Error("it keeps what is old, or not what is new")
	}
}

func TestFailuresAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter{most: 3, every: time.Minute}
		allowed := func(key string) (n int) {
			for l.charge(key) == 0 {
				n++
			}
			return n
		}
		expect.Equal(t, allowed("a"), 3, "failures at first")
		expect.Equal(t, allowed("b"), 3, "failures for another")
		expect.Equal(t, l.charge("a"), time.Minute, "it says to wait")
		time.Sleep(30 * time.Second)
		expect.Equal(t, l.charge("a"), 30*time.Second, "after half of it,")
		time.Sleep(30 * time.Second)
		expect.Equal(t, allowed("a"), 1, "failures after a minute")
		time.Sleep(time.Hour)
		expect.Equal(t, allowed("a"), 3, "failures after an hour")
		l.refund("a")
		expect.Equal(t, allowed("a"), 1, "failures after one that was none")
	})
}

func TestTheLimiterIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter{most: 3, every: time.Minute}
		for i := range 3 * maxBuckets {
			l.charge(strconv.Itoa(i))
		}
		if len(l.buckets) > maxBuckets+1 {
			t.Errorf("%d are kept", len(l.buckets))
		}
		if l.charge("new") == 0 {
			t.Error("who comes when all are full is not limited")
		}
		time.Sleep(time.Hour)
		if l.charge("new") != 0 || len(l.buckets) != 1 {
			t.Errorf("after an hour %d are kept", len(l.buckets))
		}
	})
}
