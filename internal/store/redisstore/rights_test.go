package redisstore_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// documentedUser makes the user that docs/how-to/redis.md prints, for stores with such a prefix,
// and returns its password.
func documentedUser(t *testing.T, s *redisnode.Server, prefix string) (password string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/how-to/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile("`ACL (SETUSER redrive [^`]*)`").FindSubmatch(text)
	if line == nil {
		t.Fatal("docs/how-to/redis.md names no rights")
	}
	rights := strings.NewReplacer(">PASSWORD", ">s3cret", "{redrive}", "{"+prefix+"}").Replace(string(line[1]))
	if _, err := s.Do(ctx, append([]string{"ACL"}, strings.Fields(rights)...)...); err != nil {
		t.Fatal(err)
	}
	return "s3cret"
}

// The rights that docs/how-to/redis.md gives the service's user are enough for all that a store
// does, and no more than they are: other keys are not its. All of it by TLS.
func TestTheDocumentedUserByTLS(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		ca := redisnode.NewAuthority(t)
		o.TLS = ca.Identity("127.0.0.1")
		server := redisnode.New(t, o)
		password := documentedUser(t, server, "test*")
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca.Cert)
		so := redisstore.Options{URL: "rediss://redrive@" + server.TLSAddr(), Password: password, TLS: &tls.Config{RootCAs: roots}}
		t.Run("suite", func(t *testing.T) { suiteWith(t, so, replica) })
		so.Prefix = "other"
		if _, err := redisstore.Open(ctx, so); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("with another prefix: %v", err)
		}
		so.Prefix, so.Password = "test", "wrong"
		if _, err := redisstore.Open(ctx, so); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
			t.Errorf("with another password: %v", err)
		}
	})
}

// The service says nothing of rights that it lacks.
func TestTheRightsThatAreDocumented(t *testing.T) {
	server := start(t, "")
	password := documentedUser(t, server.Server, "redrive")
	var log bytes.Buffer
	s := openAt(t, redisstore.Options{URL: "redis://redrive@" + server.Addr(), Password: password, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 4 {
		add(t, s, 2)
	}
	if n := done(t, s, claim(t, s, 4)); n != 4 {
		t.Errorf("finished %d of 4", n)
	}
	if _, err := s.Change(ctx, keys(t, s), func(store.Key, *store.Record) store.Edit { return store.Edit{Delete: true} }, func(int) []store.Entry {
		return []store.Entry{{Name: "n", Value: []byte("v")}}
	}); err != nil {
		t.Error(err)
	}
	if _, _, err := s.Free(); err != nil {
		t.Error(err)
	}
	if err := s.Send(ctx, "topic", nil); err != nil {
		t.Error(err)
	}
	if _, _, err := s.Lead(ctx, "x", "a", time.Minute); err != nil {
		t.Error(err)
	}
	storetest.Balances(t, s)
	if log.Len() > 0 {
		t.Errorf("it says: %s", log.String())
	}
}
