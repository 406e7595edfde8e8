package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

// pair writes a certificate for a name and its key; the certificate is its own
// authority.
func pair(t *testing.T, files TLSFiles, name string, at time.Time) (*x509.Certificate, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := write(t, files.Cert, "CERTIFICATE", der, at)
	made, err := tls.X509KeyPair(cert, write(t, files.Key, "PRIVATE KEY", secret, at))
	if err != nil {
		t.Fatal(err)
	}
	return made.Leaf, made
}

func write(t *testing.T, file, kind string, der []byte, at time.Time) []byte {
	t.Helper()
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, at, at); err != nil {
		t.Fatal(err)
	}
	return data
}

// serve answers by TLS with those files, and tells where.
func serve(t *testing.T, files TLSFiles) string {
	t.Helper()
	c, err := TLS(files, quiet)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(files.Cert, []byte("half a cert"), 0o600); err != nil {
		t.Fatal(err)
	}
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
