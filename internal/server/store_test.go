package server

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// What store.redis says of TLS is done: a server is believed by the CA that is named,
// and shown the certificate that is; one that is not believed is refused, and why.
func TestRedisByTLS(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		ca, other := redisnode.NewAuthority(t), redisnode.NewAuthority(t)
		own := ca.Identity("client")
		cert, key := ca.File(own.Cert), ca.File(own.Key)
		o.Config = "maxmemory 1gb"
		o.TLS = ca.Identity("127.0.0.1")
		open := redisnode.New(t, o)
		o.TLS.Clients = ca.Cert
		asks := redisnode.New(t, o) // for a certificate
		o.TLS = ca.Identity("redis.example")
		named := redisnode.New(t, o)
		for _, c := range []struct {
			name  string
			redis config.Redis
			want  string // "": it works
		}{
			{"its CA is named", config.Redis{URL: "rediss://" + open.TLSAddr(), CA: ca.File(ca.Cert)}, ""},
			{"it asks for a certificate", config.Redis{URL: "rediss://" + asks.TLSAddr(), CA: ca.File(ca.Cert), Cert: cert, Key: key}, ""},
			{"it asks for a certificate, and there is none", config.Redis{URL: "rediss://" + asks.TLSAddr(), CA: ca.File(ca.Cert)}, "redis at " + asks.TLSAddr()}, // which closes the connection, and says no more
			{"its CA is not named", config.Redis{URL: "rediss://" + open.TLSAddr()}, "signed by unknown authority; name the CA of its certificate, a file in PEM, with store.redis.tls.ca"},
			{"another CA is named", config.Redis{URL: "rediss://" + open.TLSAddr(), CA: ca.File(other.Cert)}, "store.redis.tls.ca"},
			{"it is another server", config.Redis{URL: "rediss://" + named.TLSAddr(), CA: ca.File(ca.Cert)}, "127.0.0.1"},
			{"the URL is one without TLS", config.Redis{URL: "redis://" + open.TLSAddr(), CA: ca.File(ca.Cert)}, "expected rediss://"},
			{"the port is one without TLS", config.Redis{URL: "rediss://" + open.Addr(), CA: ca.File(ca.Cert)}, "redis at " + open.Addr()},
			{"the CA is no certificate", config.Redis{URL: "rediss://" + open.TLSAddr(), CA: key}, "store.redis.tls.ca: " + key},
		} {
			t.Run(c.name, func(t *testing.T) {
				s, err := OpenStore(config.Store{Redis: c.redis}, quiet().Log)
				if c.want != "" {
					if err == nil || !strings.Contains(err.Error(), c.want) {
						t.Errorf("%v; want %q", err, c.want)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				keeps(t, s)
			})
		}
	})
}

// Each server of several is believed by its own name, not by that of the first.
func TestServersOfRedisHaveTheirOwnNames(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		ctx := context.Background()
		ca := redisnode.NewAuthority(t)
		o.TLS = ca.Identity("127.0.0.1")
		o.Config = "maxmemory 1gb\ncluster-enabled yes\ntls-cluster yes"
		server := redisnode.New(t, o)
		if _, err := server.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
			t.Fatal(err)
		}
		for state := ""; !strings.Contains(state, "cluster_state:ok"); {
			answer, err := server.Do(ctx, "CLUSTER", "INFO")
			if err != nil {
				t.Fatal(err)
			}
			state = fmt.Sprint(answer)
		}
		// No one is at the first address, and its name is another.
		s, err := OpenStore(config.Store{Redis: config.Redis{URL: "rediss://localhost:1?addr=" + server.TLSAddr(), CA: ca.File(ca.Cert)}}, quiet().Log)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		keeps(t, s)
	})
}

// keeps adds a message, and reads it.
func keeps(t *testing.T, s store.Store) {
	t.Helper()
	if err := s.Add(context.Background(), []*store.Record{storetest.Waiting("q", 0, "x")}); err != nil {
		t.Fatal(err)
	}
	if page, err := storetest.List(context.Background(), s, storetest.Filter{}); err != nil || len(page.Records) != 1 {
		t.Errorf("%d records, %v", len(page.Records), err)
	}
}
