package management_test

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/credentials"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// A peer with a wrong name, of an unknown authority, or whose certificate has expired is
// refused before it hears the password; the error says what to do.
func TestPeersOfManagementAreVerified(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		ca := v.CA(t)
		stranger, err := authority.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
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
			if err != nil {
				t.Fatal(err)
			}
			_, err = client(t, "https://guest:s3cretpass@"+peer.Addr, credentials.TLS{CA: ca.CAFile()}).Overview(t.Context())
			if !errors.Is(err, wire.ErrTLS) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cretpass") {
				t.Errorf("%s: %v", c.what, err)
			}
			if heard := peer.Close(); heard != "" {
				t.Errorf("%s: the peer heard %q", c.what, heard)
			}
		}
		at, _ := url.Parse(v.Management)
		if _, err := client(t, "https://guest:guest@"+at.Host, credentials.TLS{CA: ca.CAFile()}).Overview(t.Context()); !errors.Is(err, wire.ErrTLS) || !strings.Contains(err.Error(), "15671") {
			t.Errorf("a port without TLS: %v", err)
		}
	})
}

// An authority that changed on disk is used at the next connection, a password at the
// next request.
func TestManagementUsesWhatChangedOnDisk(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		stranger, err := authority.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		dir, user := t.TempDir(), "monitor-"+v.Name
		v.User(user, "first")
		v.Must("PUT", "users/"+user, map[string]any{"password": "first", "tags": "monitoring"})
		ca, password := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "password")
		replace(t, ca, stranger.CAFile())
		u, _ := url.Parse(v.HTTPS)
		u.User = url.UserPassword(user, "first")
		m, err := management.New(u.String(), v.Name)
		if err != nil {
			t.Fatal(err)
		}
		m.WithCredentials(credentials.Client{TLS: credentials.TLS{CA: ca}, Login: credentials.Login{User: user, PasswordFile: password}})
		if _, err := m.Overview(t.Context()); !errors.Is(err, wire.ErrTLS) {
			t.Errorf("with another authority: %v", err)
		}
		replace(t, ca, v.CA(t).CAFile())
		if _, err := m.Overview(t.Context()); err != nil {
			t.Error(err)
		}
		v.Must("PUT", "users/"+user, map[string]any{"password": "second", "tags": "monitoring"})
		if _, err := m.Overview(t.Context()); !errors.Is(err, management.ErrDenied) {
			t.Errorf("with the old password: %v", err)
		}
		if err := os.WriteFile(password, []byte("second\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Overview(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func client(t *testing.T, url string, files credentials.TLS) *management.Client {
	t.Helper()
	m, err := management.New(url, "/")
	if err != nil {
		t.Fatal(err)
	}
	return m.WithCredentials(credentials.Client{TLS: files})
}

func replace(t *testing.T, file, with string) {
	t.Helper()
	data, err := os.ReadFile(with)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
