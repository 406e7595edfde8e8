package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/console"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/wire"
)

// problems are what is wrong now; none means ready.
func (s *vhost) problems() []string { return s.health.problems() }

// notices are what a person should look at though it stops nothing.
func (s *vhost) notices() []string {
	all := slices.Concat(s.refused.notices(), s.damaged(), s.unserved)
	if kept, ok := s.store.(interface{ Notices() []string }); ok {
		all = append(all, kept.Notices()...)
	}
	n := s.quarantine.Load()
	if n == 0 {
		return all
	}
	return append([]string{fmt.Sprintf("messages that RabbitMQ failed to deliver, in its queue %s: %d (redrive quarantine list shows them, redrive quarantine replay has them retried)", wire.QueueQuarantine, n)}, all...)
}

// openConsole makes what people see and do, and its HTTP face.
func (s *vhost) openConsole() error {
	var err error
	atBroker := queues{publish: s.publisher, manage: s.manage}
	if s.decoder, err = decode.New(s.config.Decode); err != nil {
		return err
	}
	if s.audit, err = audit.Open(s.config.Audit(), audit.Options{Log: s.Log}); err != nil {
		return err
	}
	s.console = console.New(console.Config{
		Store: s.store, Broker: atBroker, Audit: s.audit, Policies: s.intake.Policies, Events: s.events, Log: s.Log,
		Restorable: s.config.Store.Restorable, Version: s.Version, Since: s.since, ReadOnly: s.config.Access.ReadOnly, BrokerAt: s.brokerAt,
		Rates: &s.rates, Problems: s.problems, Notices: s.notices, Ready: s.health.ready, Decoder: s.decoder, SetPaused: s.scheduler.Pause, Way: s.intake.Way,
		Limits:   func(policy string) string { return s.rulesOf(policy).String() },
		Replicas: s.replicas(), Recounted: s.recounted, Throttle: s.gateOf, Force: s.force,
		Blocked: func(queue string) string { return s.health.of(partQueue + queue) },
	})
	tokens := auth.NewTokens(s.store, s.audit)
	if s.guarded, err = s.guard(tokens); err != nil {
		return err
	}
	s.api = httpapi.New(httpapi.Config{
		Console: s.console, Decoder: s.decoder, Entries: s.store, Metrics: s.metricsHandler(),
		Problems: s.problems, Notices: s.notices, Ready: s.console.IsReady, Guard: s.guarded, Tokens: tokens, Log: s.Log, Base: s.base,
	})
	for pattern, h := range webui.Routes(s.console, webui.Options{
		Caller: func(r *http.Request) auth.Caller { return auth.From(r.Context()) }, Problems: s.console.ProblemsFor, Storm: s.storm, Version: s.Version, Log: s.Log,
		Base: s.base, VHost: s.vhostLabel(), VHosts: s.all,
	}) {
		s.api.Handle(pattern, h)
	}
	return nil
}

// queues tells the console what RabbitMQ knows of a queue: by its management API
// or, where that does not answer, by AMQP, which knows less.
type queues struct {
	manage  *management.Client // nil: there is none
	publish *broker.Publisher
}

func (q queues) Queue(ctx context.Context, name string) (console.AtBroker, error) {
	if name == "" {
		return console.AtBroker{}, nil // to AMQP it would be any
	}
	err := errNoManagement
	if q.manage != nil {
		var at management.Queue
		if at, err = q.manage.Queue(ctx, name); err == nil {
			return console.AtBroker{Exists: true, Kind: at.Type, Consumers: at.Consumers, Ready: at.Ready, Unacked: at.Unacked}, nil
		}
	}
	consumers, ready, amqpErr := q.publish.Queue(ctx, name)
	switch {
	case amqpErr == nil:
		return console.AtBroker{Exists: true, Consumers: consumers, Ready: ready}, nil
	case errors.Is(amqpErr, wire.ErrQueueGone):
		return console.AtBroker{}, nil
	}
	return console.AtBroker{}, errors.Join(err, amqpErr)
}

var errNoManagement = errors.New("there is no management API in the config")
