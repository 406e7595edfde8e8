package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/redrive-mq/redrive/internal/api"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/management"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/wire"
)

// Problems are what is wrong now; none means ready.
func (s *Service) Problems() []string { return s.health.problems() }

// Notices are what a person should look at though it stops nothing.
func (s *Service) Notices() []string {
	all := s.refused.notices()
	n := s.aside.Load()
	if n == 0 {
		return all
	}
	return append([]string{fmt.Sprintf("messages that RabbitMQ failed to deliver, in its queue %s: %d (look at them on RabbitMQ's management page, then purge the queue)", wire.QueueAside, n)}, all...)
}

// Counts tells what it keeps.
func (s *Service) Counts(ctx context.Context) ([]store.QueueCount, error) { return s.store.Counts(ctx) }

// List shows messages without touching them.
func (s *Service) List(ctx context.Context, f store.Filter) (store.Page, error) {
	return s.store.List(ctx, f)
}

// restorable is how long what a person discarded can be restored.
const restorable = 30 * 24 * time.Hour

// openConsole makes what people see and do, and its HTTP face.
func (s *Service) openConsole() error {
	var atBroker console.Broker
	if at := s.config.Broker.Management; at != "" {
		manage, err := management.New(at, s.config.VHost())
		if err != nil {
			return err
		}
		atBroker = queues{manage}
	}
	decoder, err := decode.New(s.config.Decode)
	if err != nil {
		return err
	}
	if s.audit, err = audit.Open(s.config.Audit(), audit.Options{Log: s.Log}); err != nil {
		return err
	}
	s.console = console.New(console.Config{
		Store: s.store, Broker: atBroker, Audit: s.audit, Policies: s.flow.Policies, Events: s.events, Log: s.Log,
		Restorable: restorable, Version: s.Version, Since: s.since, BrokerAt: broker.Redact(s.config.Broker.URL),
		Rates: &s.rates, Problems: s.Problems, Notices: s.Notices, Decoder: decoder, SetHeld: s.loop.Hold, Way: s.flow.Way,
		Returns: func(queue string) string { return s.health.of(partQueue + queue) },
	})
	tokens := auth.NewTokens(s.store, s.audit)
	guard, err := s.guard(tokens)
	if err != nil {
		return err
	}
	if s.secure, err = s.tls(); err != nil {
		return err
	}
	s.api = api.New(api.Config{
		Console: s.console, Decoder: decoder, Entries: s.store, Metrics: s.metrics.Handler(),
		Problems: s.Problems, Notices: s.Notices, Guard: guard, Tokens: tokens, Log: s.Log,
	})
	return nil
}

// server serves the faces.
func (s *Service) server() *http.Server {
	server := &http.Server{Handler: s.api, TLSConfig: s.secure, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: s.errorLog()}
	server.RegisterOnShutdown(s.api.EndStreams)
	return server
}

// queues tells the console what RabbitMQ knows of a queue.
type queues struct{ *management.Client }

func (q queues) Queue(ctx context.Context, name string) (console.AtBroker, error) {
	at, err := q.Client.Queue(ctx, name)
	if errors.Is(err, management.ErrNotFound) {
		return console.AtBroker{}, nil
	}
	return console.AtBroker{Exists: err == nil, Kind: at.Type, Consumers: at.Consumers, Ready: at.Ready, Unacked: at.Unacked}, err
}
