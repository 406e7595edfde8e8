package redisstore_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/testenv/authority"
)

// A peer with a wrong name, of an unknown authority, or whose certificate has expired is
// refused before it hears the password.
func TestPeersOfRedissAreVerified(t *testing.T) {
	ca, err := authority.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := authority.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(ca.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	here := []string{"127.0.0.1"}
	for _, c := range []struct {
		what string
		by   *authority.Authority
		leaf authority.Leaf
		says string
	}{
		{"another name", ca, authority.Leaf{Hosts: []string{"redis.example"}}, "cannot validate certificate for 127.0.0.1"},
		{"an unknown authority", stranger, authority.Leaf{Hosts: here}, "store.redis.tls.ca"},
		{"an expired certificate", ca, authority.Leaf{Hosts: here, NotAfter: time.Now().Add(-time.Hour)}, "has expired"},
	} {
		peer, err := c.by.NewImpostor(c.leaf)
		if err != nil {
			t.Fatal(err)
		}
		s, err := redisstore.Open(ctx, redisstore.Options{URL: "rediss://redrive@" + peer.Addr, Password: "s3cretpass", Timeout: time.Second, TLS: &tls.Config{RootCAs: roots}})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cretpass") {
			t.Errorf("%s: %v", c.what, err)
		}
		if heard := peer.Close(); heard != "" {
			t.Errorf("%s: the peer heard %q", c.what, heard)
		}
	}
}
