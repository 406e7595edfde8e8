package server

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

func TestAServiceThatOthersCouldReachDoesNotStartOpen(t *testing.T) {
	c := testConfig(t)
	c.Store.Disk = filepath.Join(c.Store.Disk, "data")
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		c.Listen = listen
		if _, err := New(c, quiet()); err == nil || !strings.Contains(err.Error(), "set `auth: {}`") {
			t.Errorf("%s: %v", listen, err)
		}
	}
	c.Access.SignIn = true
	if _, err := New(c, quiet()); err == nil || !strings.Contains(err.Error(), "tls.cert") {
		t.Errorf("without TLS: %v", err)
	}
	c.Access.TLS = auth.TLSFiles{Cert: "none.pem", Key: "none.pem"}
	if _, err := os.Stat(c.Store.Disk); err == nil {
		t.Error("a service that may not start has made its folder")
	}
	if _, err := New(c, quiet()); err == nil || !strings.Contains(err.Error(), "none.pem") {
		t.Errorf("with a certificate that is not there: %v", err)
	}
	// Each of those has released its folder.
	c.Access.TLS, c.Access.BehindProxy = auth.TLSFiles{}, true
	s, err := New(c, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// From nothing but an administrator of RabbitMQ's to a token that works, by TLS.
func TestTheFirstToken(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		root, viewer := "root-"+uuid.NewString(), "viewer-"+uuid.NewString()
		for name, tag := range map[string]string{root: "administrator", viewer: "monitoring"} {
			v.User(name, "s3cret")
			v.Must("PUT", "users/"+name, map[string]any{"password": "s3cret", "tags": tag})
			v.Grant(name, "^$", "^$", ".*")
		}
		proof := httptest.NewTLSServer(nil) // for its certificate, whose files the service reads
		proof.Close()
		c := testConfig(t)
		c.Broker.URL, c.Broker.Management = v.ServiceURL(c.Policies), v.Management
		c.Access.SignIn, c.Access.TLS = true, certificate(t, proof.TLS.Certificates[0])
		s, err := New(c, quiet())
		if err != nil {
			t.Fatal(err)
		}
		server, served := s.server(), make(chan struct{})
		go func() { defer close(served); s.serve(server) }()
		defer func() { server.Close(); <-served; s.Close() }()
		roots := x509.NewCertPool()
		roots.AddCert(proof.Certificate())
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}}}
		defer client.CloseIdleConnections()
		ask := func(method, path, in string, as func(*http.Request)) (int, string) {
			t.Helper()
			r, err := http.NewRequest(method, "https://"+s.Addr()+path, strings.NewReader(in))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			as(r)
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			out, _ := io.ReadAll(resp.Body)
			return resp.StatusCode, string(out)
		}
		nobody := func(*http.Request) {}
		user := func(name, password string) func(*http.Request) {
			return func(r *http.Request) { r.SetBasicAuth(name, password) }
		}
		for path, want := range map[string]int{"/healthz": 200, "/metrics": 401, "/api/v1/me": 401, "/api/v1/messages": 401, "/api/v1/tokens": 401, "/": 401} {
			if code, out := ask("GET", path, "", nobody); code != want {
				t.Errorf("%s for nobody: %d %s", path, code, out)
			}
		}
		const ci = `{"name":"ci","role":"operator","queues":["orders.*"]}`
		for who, want := range map[string]int{root: 200, viewer: 403} {
			if code, out := ask("POST", "/api/v1/tokens", ci, user(who, "s3cret")); code != want {
				t.Errorf("%s: %d %s", who, code, out)
			}
			if code, _ := ask("POST", "/api/v1/tokens", ci, user(who, "wrong")); code != 401 {
				t.Errorf("%s with a wrong password: %d", who, code)
			}
		}
		code, out := ask("POST", "/api/v1/tokens", strings.Replace(ci, `"ci"`, `"two"`, 1), user(root, "s3cret"))
		var made struct{ Secret string }
		if err := json.Unmarshal([]byte(out), &made); err != nil || code != 200 {
			t.Fatal(code, out, err)
		}
		token := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+made.Secret) }
		if code, out := ask("GET", "/api/v1/me", "", token); code != 200 || !strings.Contains(out, `"role":"operator"`) {
			t.Errorf("with the token: %d %s", code, out)
		}
		if code, _ := ask("GET", "/metrics", "", token); code != 403 {
			t.Errorf("the metrics of all queues, for one who is limited to some: %d", code)
		}
		if code, _ := ask("GET", "/metrics", "", user(viewer, "s3cret")); code != 200 {
			t.Errorf("the metrics, for a viewer: %d", code)
		}
		if code, out := ask("DELETE", "/api/v1/tokens/two", "", user(root, "s3cret")); code != 204 {
			t.Errorf("revoking: %d %s", code, out)
		}
		if code, _ := ask("GET", "/api/v1/me", "", token); code != 401 {
			t.Errorf("with the revoked token: %d", code)
		}
		if files, err := audit.Files(c.Audit()); err != nil {
			t.Error(err)
		} else if r, err := audit.Verify(files, audit.Expected{}); err != nil || r.Last < 7 {
			t.Errorf("the audit log: %+v, %v", r, err)
		}
	})
}

// certificate writes the files of one.
func certificate(t *testing.T, c tls.Certificate) auth.TLSFiles {
	t.Helper()
	dir := t.TempDir()
	files := auth.TLSFiles{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, files.Key: {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestAReadOnlyServiceChangesNothing(t *testing.T) {
	c := testConfig(t)
	c.Access.ReadOnly = true
	s, err := New(c, quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, path := range []string{"/api/v1/tokens"} {
		r := httptest.NewRequest("POST", path, strings.NewReader(`{"name":"ci","role":"viewer"}`))
		r.RemoteAddr, r.Host = "127.0.0.1:4242", "127.0.0.1:8250"
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.server().Handler.ServeHTTP(w, r)
		if w.Code != 403 || !strings.Contains(w.Body.String(), auth.ErrReadOnly.Error()) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
