package broker_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// unusedAddresses have no listener.
const unusedAddresses = "amqp://127.0.0.1:1/,amqp://127.0.0.1:2/"

// A connection that ends goes on at another broker, and says which.
func TestALostConnectionContinuesAtAnotherBroker(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		a, b := brokertest.NewProxy(t, v), brokertest.NewProxy(t, v)
		connected := make(chan string, 100)
		var log brokertest.Output
		p := broker.NewPublisher(broker.Config{URL: unusedAddresses + "," + a.URL + "," + b.URL, Name: "redrive retries", Log: slog.New(slog.NewTextHandler(&log, nil)), Observe: func(s broker.State) {
			if s.Connected {
				connected <- s.At
			}
		}})
		ctx, cancel := context.WithCancel(context.Background())
		var run sync.WaitGroup
		run.Go(func() { _ = p.Run(ctx) })
		defer run.Wait()
		defer cancel()
		was := ""
		for range 6 {
			at := <-connected
			if !strings.Contains(a.URL+b.URL, at) || at == was {
				t.Errorf("it went from %q to %q", was, at)
			}
			was = at
			a.Cut()
			b.Cut()
		}
		if !strings.Contains(log.String(), `connection="redrive retries" at=`+was) {
			t.Errorf("the log does not say where it is connected:\n%s", log.String())
		}
	})
}

// All addresses are away, for several rounds of tries; then only the one that was used
// last is back.
func TestAllBrokersGoneAndTheLastUsedOneComesBack(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		var proxies []*brokertest.Proxy
		var urls []string
		for range 3 {
			p := brokertest.NewProxy(t, v)
			proxies, urls = append(proxies, p), append(urls, p.URL)
		}
		connected := make(chan string, 100)
		p := broker.NewPublisher(broker.Config{URL: strings.Join(urls, ","), Name: "redrive retries", Log: slog.New(slog.DiscardHandler), Observe: func(s broker.State) {
			if s.Connected {
				connected <- s.At
			}
		}})
		ctx, cancel := context.WithCancel(context.Background())
		var run sync.WaitGroup
		run.Go(func() { _ = p.Run(ctx) })
		defer run.Wait()
		defer cancel()
		last := <-connected
		back := map[string]func(){}
		refused := map[*brokertest.Proxy]int{}
		for _, p := range proxies {
			back[p.Addr()], refused[p] = p.Refuse(), p.Refused()
		}
		for _, p := range proxies {
			brokertest.Eventually(t, "each address is tried again and again", func() bool { return p.Refused() >= refused[p]+4 })
		}
		back[last]()
		if at := <-connected; at != last {
			t.Errorf("it is connected at %s, and only %s is back", at, last)
		}
	})
}

// Clients spread over the brokers, and pass by those that are not there.
func TestConnectionsSpreadOverBrokers(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		a, b := brokertest.NewProxy(t, v), brokertest.NewProxy(t, v)
		at := map[string]int{}
		for range 40 {
			l, err := broker.NewProbe(context.Background(), broker.Config{URL: a.URL + "," + unusedAddresses + "," + b.URL, Name: "test"})
			if err != nil {
				t.Fatal(err)
			}
			at[l.At()]++
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		if len(at) != 2 {
			t.Errorf("40 connections went to %v", at)
		}
	})
}

// Why none can be reached is always the same text, so that it is logged once; and what
// a person must correct is known for what it is.
func TestNoBrokerCanBeReached(t *testing.T) {
	text := ""
	for range 10 {
		_, err := broker.NewProbe(context.Background(), broker.Config{URL: unusedAddresses, Name: "test"})
		if !errors.Is(err, syscall.ECONNREFUSED) || !strings.HasPrefix(err.Error(), "none of 2 brokers: connecting to amqp://127.0.0.1:1/") || text != "" && err.Error() != text {
			t.Fatalf("it says %v", err)
		}
		text = err.Error()
	}
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		_, err := broker.NewProbe(context.Background(), broker.Config{URL: unusedAddresses + "," + v.URLAs("stranger", "wrong"), Name: "test"})
		if err == nil || !broker.NeedsPerson(err) {
			t.Errorf("a wrong password: %v", err)
		}
	})
}

// A virtual host that does not exist is for a person to repair, as is one that the user has
// no rights in; too many connections pass by themselves.
func TestAMissingVirtualHostNeedsAPerson(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		user := "stranger-" + v.Name[len(v.Name)-8:]
		v.User(user, "pw")
		look := func(url string) error {
			_, err := broker.NewProbe(context.Background(), broker.Config{URL: url, Name: "test"})
			return err
		}
		if err := look(strings.Replace(v.URL(), v.Name, "nowhere", 1)); !errors.Is(err, wire.ErrNoVHost) || !broker.NeedsPerson(err) {
			t.Errorf("no such virtual host: %v", err)
		}
		if err := look(v.URLAs(user, "pw")); !errors.Is(err, wire.ErrForbidden) || !broker.NeedsPerson(err) {
			t.Errorf("a user without rights: %v", err)
		}
		v.Must("PUT", "vhost-limits/"+v.Name+"/max-connections", map[string]any{"value": 0})
		if err := look(v.URL()); err == nil || broker.NeedsPerson(err) {
			t.Errorf("too many connections: %v", err)
		}
	})
}
