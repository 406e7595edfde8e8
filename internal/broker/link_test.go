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
	"github.com/redrive-mq/redrive/internal/broker/brokertest"
)

// nobody listens there.
const nobody = "amqp://127.0.0.1:1/,amqp://127.0.0.1:2/"

// A connection that ends goes on at another broker, and says which.
func TestAConnectionGoesOnAtAnotherBroker(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		a, b := brokertest.NewProxy(t, v), brokertest.NewProxy(t, v)
		connected := make(chan string, 100)
		var log brokertest.Output
		p := broker.NewPublisher(broker.Config{URL: nobody + "," + a.URL + "," + b.URL, Name: "redrive returns", Log: slog.New(slog.NewTextHandler(&log, nil)), Observe: func(s broker.State) {
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
		if !strings.Contains(log.String(), `connection="redrive returns" at=`+was) {
			t.Errorf("the log does not say where it is connected:\n%s", log.String())
		}
	})
}

// Clients spread over the brokers, and pass by those that are not there.
func TestConnectionsSpreadOverBrokers(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		a, b := brokertest.NewProxy(t, v), brokertest.NewProxy(t, v)
		at := map[string]int{}
		for range 40 {
			l, err := broker.NewLook(context.Background(), a.URL+","+nobody+","+b.URL, "test")
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
// a person must mend is known for what it is.
func TestNoBrokerCanBeReached(t *testing.T) {
	text := ""
	for range 10 {
		_, err := broker.NewLook(context.Background(), nobody, "test")
		if !errors.Is(err, syscall.ECONNREFUSED) || !strings.HasPrefix(err.Error(), "none of 2 brokers: connecting to amqp://127.0.0.1:1/") || text != "" && err.Error() != text {
			t.Fatalf("it says %v", err)
		}
		text = err.Error()
	}
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		_, err := broker.NewLook(context.Background(), nobody+","+v.URLAs("stranger", "wrong"), "test")
		if err == nil || !broker.Mendable(err) {
			t.Errorf("a wrong password: %v", err)
		}
	})
}
