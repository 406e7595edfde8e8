// Package servertest runs the service in tests on real brokers, as a user with the rights
// that `redrive permissions` prints for its policies.
package servertest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

var must = expect.NoError

// Service is a running Redrive.
type Service struct {
	*server.Service
	Client httpapi.Client
	Data   string             // its folder
	Events chan retry.Event   // the first 10,000
	Log    *brokertest.Output // what it has said
	Stop   func() error       // waits for its end; may be called twice
}

// Config is that of a service on a virtual host, with a folder and a port of its own.
func Config(t *testing.T, v *brokertest.VHost, yaml string) *config.Config {
	t.Helper()
	c, err := config.Parse("test.yaml", []byte(yaml))
	must(t, err)
	c.Broker.URL = v.ServiceURL(c.Policies, c.FollowedQueues()...)
	c.Broker.Management, c.Store.Disk, c.Listen = v.Management, t.TempDir(), "127.0.0.1:0"
	return c
}

// Run runs a service. It ends with the test, whose log has what it said if it failed.
func Run(t *testing.T, c *config.Config) *Service {
	t.Helper()
	log := &brokertest.Output{}
	events := make(chan retry.Event, 10_000)
	a, err := server.New(c, server.Options{Version: "test", ConfirmTimeout: 10 * time.Minute, Log: slog.New(slog.NewTextHandler(log, nil)), Events: func(e retry.Event) {
		select {
		case events <- e:
		default:
		}
	}})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop := sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("the service ended with: %v", err)
		}
		if t.Failed() {
			t.Logf("the service said:\n%s", log)
		}
	})
	return &Service{Service: a, Client: httpapi.Client{Addr: a.Addr()}, Data: c.Store.Disk, Events: events, Log: log, Stop: stop}
}

// Ready waits until nothing is wrong.
func (s *Service) Ready(t *testing.T) *Service {
	t.Helper()
	brokertest.Eventually(t, "the service is ready", func() bool { return len(s.Problems()) == 0 })
	return s
}

// Parked are all parked messages, 1,000 at most.
func (s *Service) Parked(t *testing.T) []inspect.Message {
	t.Helper()
	return s.find(t, "state:parked")
}

// WaitParked waits until so many messages are parked, no fewer and no more.
func (s *Service) WaitParked(t *testing.T, n int) (all []inspect.Message) {
	t.Helper()
	brokertest.Eventually(t, fmt.Sprintf("%d messages are parked", n), func() bool {
		all = s.Parked(t)
		return len(all) == n
	})
	return all
}

// Replay replays the parked messages that a query finds. It waits until there are any: a search finds a message a moment
// before its queue is counted.
func (s *Service) Replay(t *testing.T, query string) int {
	t.Helper()
	act := actions.Act{Verb: actions.Replay}
	brokertest.Eventually(t, "there is something to replay", func() bool {
		for _, m := range s.find(t, "state:parked "+query) {
			act.IDs = append(act.IDs, m.Key)
		}
		return len(act.IDs) > 0
	})
	done, err := s.Client.Act(context.Background(), act)
	must(t, err)
	return done.Done
}

func (s *Service) find(t *testing.T, query string) []inspect.Message {
	t.Helper()
	var all []inspect.Message
	for after := ""; ; { // a page may be short, and not the last
		page, err := s.Client.Messages(context.Background(), query, after, 1000-len(all))
		must(t, err)
		all = append(all, page.Messages...)
		if after = page.After; after == "" || len(all) == 1000 {
			return all
		}
	}
}
