package authority

import (
	"bytes"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

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
	if i.listen, err = tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}}); err != nil {
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
