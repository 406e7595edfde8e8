// Package authority is a certificate authority for tests: of RabbitMQ nodes, of peers
// that are not what they say, and of clients.
package authority

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Authority signs certificates.
type Authority struct {
	Dir  string // has CAFile, and the key beside it
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

const keyFile = "ca-key.pem"

// New makes an authority, with its files in a folder.
func New(dir string) (*Authority, error) {
	a := &Authority{Dir: dir}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "Redrive's tests"}, IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign, NotAfter: time.Now().Add(24 * time.Hour)}
	if err := a.write(template, a.CAFile(), filepath.Join(dir, keyFile)); err != nil {
		return nil, err
	}
	return Open(dir)
}

// Open is an authority that New made.
func Open(dir string) (*Authority, error) {
	a := &Authority{Dir: dir}
	pair, err := tls.LoadX509KeyPair(a.CAFile(), filepath.Join(dir, keyFile))
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("authority: not a key of ours")
	}
	a.cert, a.key = pair.Leaf, key
	return a, nil
}

// CAFile has the certificate by which clients trust it.
func (a *Authority) CAFile() string { return filepath.Join(a.Dir, "ca.pem") }

// Leaf is what a certificate says.
type Leaf struct {
	User     string   // the common name
	Hosts    []string // names and addresses
	NotAfter time.Time
}

// Install issues a certificate in a folder, as cert.pem and key.pem, beside the authority's own, ca.pem.
func (a *Authority) Install(dir string, l Leaf) error {
	in := func(name string) string { return filepath.Join(dir, name) }
	ca, err := os.ReadFile(a.CAFile())
	return errors.Join(err, os.WriteFile(in("ca.pem"), ca, 0o600), a.Issue(l, in("cert.pem"), in("key.pem")))
}

// Issue writes a certificate and its key, valid for a day where NotAfter is zero.
func (a *Authority) Issue(l Leaf, certFile, keyFile string) error {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: l.User}, NotAfter: l.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if l.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(24 * time.Hour)
	}
	for _, h := range l.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	return a.write(template, certFile, keyFile)
}

// write signs a certificate of a new key; the first signs itself.
func (a *Authority) write(template *x509.Certificate, certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-48*time.Hour)
	by, with := a.cert, a.key
	if by == nil {
		by, with = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by, &key.PublicKey, with)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	// The broker may be another user of the machine.
	return errors.Join(os.WriteFile(certFile, encode("CERTIFICATE", der), 0o644),
		os.WriteFile(keyFile, encode("PRIVATE KEY", secret), 0o600))
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// Impostor is a server with a certificate of a test's own making. It never answers
// within TLS, and notes what it hears there.
type Impostor struct {
	Addr    string
	listen  net.Listener
	serving sync.WaitGroup
	mu      sync.Mutex
	heard   bytes.Buffer
}

// NewImpostor listens on loopback. Close it.
func (a *Authority) NewImpostor(l Leaf) (*Impostor, error) {
	dir, err := os.MkdirTemp("", "redrive-impostor-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := a.Issue(l, cert, key); err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	i := &Impostor{}
	if i.listen, err = tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{pair}}); err != nil {
		return nil, err
	}
	i.Addr = i.listen.Addr().String()
	i.serving.Go(i.serve)
	return i, nil
}

func (i *Impostor) serve() {
	for {
		conn, err := i.listen.Accept()
		if err != nil {
			return
		}
		i.serving.Go(func() {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
			for b := make([]byte, 4096); ; {
				n, err := conn.Read(b)
				i.mu.Lock()
				i.heard.Write(b[:n])
				i.mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
}

// Close ends it, and returns what it heard within TLS.
func (i *Impostor) Close() string {
	_ = i.listen.Close()
	i.serving.Wait()
	return i.heard.String()
}
