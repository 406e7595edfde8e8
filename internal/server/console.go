package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/wire"
)

// notices returns what needs a person's attention, though it stops nothing.
func (s *vhost) notices() []string {
	all := slices.Concat(s.refused.notices(), s.damaged(), s.unserved)
	if kept, ok := s.store.(interface{ Notices() []string }); ok {
		all = append(all, kept.Notices()...)
	}
	if err := s.auditShort(); err != nil {
		all = append(all, err.Error())
	}
	if n := s.quarantine.messages.Load(); n > 0 && s.quarantine.stuck.Load() {
		all = append(all, fmt.Sprintf("messages in RabbitMQ's queue %s that cannot be parked: %d, as RabbitMQ cannot deliver the first (this shows it and removes it: %s)", wire.QueueQuarantine, n, broker.RemoveQuarantined(s.config.VHost())))
	}
	return all
}

// auditShort says that less than store.reserve is free.
func (s *vhost) auditShort() error {
	free, reserve, err := s.store.Free()
	if err != nil || free >= reserve { // what cannot be known stops no one
		return nil
	}
	return hint.Errorf("make room", "the store has %d MiB free, less than the %d MiB of store.reserve: only administrators can act", free>>20, reserve>>20)
}

// console is all that the page and the API call.
type console struct {
	*inspect.Inspector
	*actions.Actions
	*operations.Runner
}

// openConsole makes page and API, and what they call.
func (s *vhost) openConsole() error {
	var err error
	if s.decoder, err = decode.New(s.config.Decode); err != nil {
		return err
	}
	s.audit = audit.New(s.store, s.Log)
	s.openActions()
	tokens := auth.NewTokens(s.store, s.audit)
	if s.guard, err = s.newGuard(tokens); err != nil {
		return err
	}
	all := console{s.inspect, s.actions, s.operations}
	s.api = httpapi.New(httpapi.Config{
		Console: all, Decoder: s.decoder, Metrics: s.metricsHandler(),
		Conditions: s.conditions.List, Notices: s.notices, Ready: s.inspect.IsReady, Guard: s.guard, Tokens: tokens, Bounds: s.bounds, Log: s.Log, Base: s.base,
	})
	for pattern, h := range webui.Routes(all, webui.Options{
		Caller: func(r *http.Request) auth.Caller { return auth.From(r.Context()) }, Conditions: s.inspect.ConditionsFor, Simulation: s.drawOutage, Version: s.Version, Log: s.Log,
		Base: s.base, VHost: s.vhostLabel(), VHosts: s.links,
	}) {
		s.api.Handle(pattern, h)
	}
	return nil
}

// openActions makes what page and API call: inspect, actions and operations.
func (s *vhost) openActions() {
	c := inspect.Config{
		Store: s.store, Broker: brokerQueues{publish: s.publisher, manage: s.manage}, Audit: s.audit, Policies: s.inForce.Policies, Log: s.Log,
		Version: s.Version, Since: s.since, ReadOnly: s.config.Access.ReadOnly, BrokerURL: s.brokerAt,
		Activity: &s.activity, Conditions: s.conditions.List, Notices: s.notices, Ready: s.conditions.Ready, Decoder: s.decoder, Way: s.inForce.Way,
		Limits:    func(policy string) string { return s.policyLimits(policy).String() },
		Recounted: s.recounted, Busy: s.scheduler.Busy, Throttle: s.throttleOf,
		Unreachable: func(queue string) string {
			return s.conditions.Text(condition.Condition{Kind: condition.Unreachable, Queue: queue})
		},
	}
	id := "" // of this replica, where the store can be shared
	if s.replica != nil {
		id, c.Replicas, c.Changed = s.replica.ID, s.replica.Shown, s.replica.Changed
	}
	s.inspect = inspect.New(c)
	s.actions = actions.New(actions.Config{Inspect: s.inspect, Store: s.store, Audit: s.audit, Events: s.events,
		AuditShort: s.auditShort, Large: s.large, Restorable: s.config.Store.Restorable, SetPaused: s.scheduler.Pause, Force: s.force})
	s.operations = operations.New(operations.Config{Inspect: s.inspect, Actions: s.actions, Store: s.store, Replica: id})
}

// brokerQueues asks RabbitMQ about a queue: by its management API or, if that does not answer, by
// AMQP, which knows less.
type brokerQueues struct {
	manage  *management.Client // nil: there is none
	publish *broker.Publisher
}

func (q brokerQueues) Queue(ctx context.Context, name string) (inspect.AtBroker, error) {
	if name == "" {
		return inspect.AtBroker{}, nil // a passive declare without a name asks for none in particular
	}
	var at management.Queue
	err := errNoManagement
	if q.manage != nil {
		if at, err = q.manage.Queue(ctx, name); err == nil && at.Counted() {
			return inspect.AtBroker{Exists: true, Kind: at.Type, Consumers: at.Consumers, Ready: at.Ready, Unacked: &at.Unacked}, nil
		}
	}
	consumers, ready, amqpErr := q.publish.Queue(ctx, name)
	switch {
	case amqpErr == nil:
		return inspect.AtBroker{Exists: true, Kind: at.Type, Consumers: consumers, Ready: ready}, nil
	case errors.Is(amqpErr, wire.ErrQueueGone):
		return inspect.AtBroker{}, nil
	}
	return inspect.AtBroker{}, errors.Join(err, amqpErr)
}

var errNoManagement = errors.New("there is no management API in the config")
