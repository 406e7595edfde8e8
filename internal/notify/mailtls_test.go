package notify

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/authority"
)

// caEnv names the folder of an authority that a run of this test by itself trusts as the
// system's, by SSL_CERT_FILE: Go reads those once in a process.
const caEnv = "REDRIVE_TEST_MAIL_CA"

// A mail server with a wrong name, of an unknown authority, or whose certificate has
// expired gets neither password nor mail, by TLS from the start and by STARTTLS.
func TestPeersOfSMTPAreVerified(t *testing.T) {
	dir := os.Getenv(caEnv)
	if dir == "" {
		ca, err := authority.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		c := exec.Command(os.Args[0], "-test.run=^TestPeersOfSMTPAreVerified$", "-test.count=1")
		c.Env = append(os.Environ(), caEnv+"="+ca.Dir, "SSL_CERT_FILE="+ca.CAFile())
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	ca, err := authority.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := authority.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	here := []string{"127.0.0.1"}
	for _, c := range []struct {
		what string
		by   *authority.Authority
		leaf authority.Leaf
		says string // "": it is delivered
	}{
		{"the right one", ca, authority.Leaf{Hosts: here}, ""},
		{"another name", ca, authority.Leaf{Hosts: []string{"mail.example"}}, "cannot validate certificate for 127.0.0.1"},
		{"an unknown authority", stranger, authority.Leaf{Hosts: here}, "unknown authority"},
		{"an expired certificate", ca, authority.Leaf{Hosts: here, NotAfter: time.Now().Add(-time.Hour)}, "has expired"},
	} {
		for _, encryption := range []string{"ImplicitTLS", "ExplicitTLS"} {
			addr, end := secureMailServer(t, c.by, c.leaf, encryption == "ImplicitTLS")
			to, err := openURL("smtp://user:s3cretpass@" + addr + "/?from=a@b.example&to=c@d.example&encryption=" + encryption)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			err = to.deliver(ctx, newClient(loopback), testMessage())
			cancel()
			heard := end()
			if c.says == "" && (err != nil || !strings.Contains(heard, "AUTH PLAIN") || !strings.Contains(heard, "RCPT TO:<c@d.example>")) {
				t.Errorf("%s, %s: %v, the server heard %q", c.what, encryption, err, heard)
			}
			if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(heard, "AUTH") || strings.Contains(heard, "MAIL")) {
				t.Errorf("%s, %s: %v, the server heard %q", c.what, encryption, err, heard)
			}
		}
	}
}

// secureMailServer takes one mail, by TLS from the start or after STARTTLS, and tells
// what it heard.
func secureMailServer(t *testing.T, by *authority.Authority, leaf authority.Leaf, implicit bool) (addr string, end func() string) {
	t.Helper()
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	if err := by.Issue(leaf, cert, key); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var heard []string
	var serving sync.WaitGroup
	serving.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { conn.Close() }()
		secure := func() { conn = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}}) }
		if implicit {
			secure()
		}
		said := textproto.NewConn(conn)
		answer := func(s string) { _, _ = io.WriteString(conn, s+"\r\n") }
		for answer("220 mail.example"); ; {
			line, err := said.ReadLine()
			if err != nil {
				return
			}
			heard = append(heard, line)
			switch command, _, _ := strings.Cut(line, " "); command {
			case "EHLO":
				answer("250-mail.example\r\n250-AUTH PLAIN\r\n250 STARTTLS")
			case "STARTTLS":
				answer("220 go on")
				secure()
				said = textproto.NewConn(conn)
			case "AUTH":
				answer("235 fine")
			case "DATA":
				answer("354 go on")
				_, _ = said.ReadDotBytes()
				answer("250 taken")
			default:
				answer("250 fine")
			}
		}
	})
	return l.Addr().String(), func() string {
		_ = l.Close()
		serving.Wait()
		return strings.Join(heard, " | ")
	}
}
