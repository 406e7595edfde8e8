package auth

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"
)

// TLSFiles are what the service proves itself with, and, with ClientCA, which clients can
// connect at all: clients with a certificate of one of those authorities.
type TLSFiles struct {
	Cert, Key string
	ClientCA  string
}

// TLS is a configuration whose files are read again when they change, so that a
// certificate that is renewed needs no restart. Files that cannot be read stop the
// start; later, the old ones stay in use until they can.
func TLS(files TLSFiles, log *slog.Logger) (*tls.Config, error) {
	k := &keypair{files: files, log: log}
	k.changed = k.times()
	var err error
	if k.now, err = files.load(); err != nil {
		return nil, err
	}
	c := k.now.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.current(), nil }
	return c, nil
}

// Check returns why the files cannot be used.
func (f TLSFiles) Check() error {
	_, err := f.load()
	return err
}

func (f TLSFiles) load() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("tls.cert %s and tls.key %s: %w", f.Cert, f.Key, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{cert}}
	if f.ClientCA != "" {
		pem, err := os.ReadFile(f.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("tls.client_ca: %w", err)
		}
		c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !c.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.client_ca %s: there is no certificate in it", f.ClientCA)
		}
	}
	return c, nil
}

// keypair is the content of the files when they were last read, and when they had changed.
type keypair struct {
	files TLSFiles
	log   *slog.Logger

	mu      sync.Mutex
	now     *tls.Config
	changed []time.Time
}

func (k *keypair) times() []time.Time {
	var all []time.Time
	for _, name := range []string{k.files.Cert, k.files.Key, k.files.ClientCA} {
		var at time.Time
		if info, err := os.Stat(name); err == nil {
			at = info.ModTime()
		}
		all = append(all, at)
	}
	return all
}

// current returns the configuration for one handshake. While only one file of a pair is renewed, it
// does not load, and the old pair is used until a handshake after the other is renewed too.
func (k *keypair) current() *tls.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	times := k.times()
	if slices.EqualFunc(times, k.changed, time.Time.Equal) {
		return k.now
	}
	k.changed = times
	c, err := k.files.load()
	if err != nil {
		k.log.Error("the changed TLS files cannot be used; the old ones stay in use", "error", err)
		return k.now
	}
	k.log.Info("the TLS files have changed and are in use", "cert", k.files.Cert)
	k.now = c
	return c
}
