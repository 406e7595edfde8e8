package enroll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/wire"
)

// State is the state of a move, as RabbitMQ shows it.
type State struct {
	Old, New *management.Queue // nil when it does not exist
	// Type and Arguments of the new queue, and those of the old one that it does not get.
	Type      string
	Arguments map[string]any
	Dropped   []string
	// Otherwise lists arguments that the new type reads differently.
	Otherwise []string
	Policy    *Plan
	// Bindings of the old queue, without those from the exchange of the detour.
	Bindings []management.Binding
	// Detour: its exchange exists. DetourToOld: it leads to the old queue.
	Detour         bool
	DetourBindings []management.Binding
	DetourToOld    bool
	Sources        []*Source
}

// Look reads the state, and refuses what cannot be moved.
func (m *Move) Look(ctx context.Context) (*State, error) {
	if m.From == m.To {
		return nil, refusef("the new name is the old one; a queue cannot be changed in place, since what is " +
			"published to its name between its end and its new beginning would be lost")
	}
	for _, name := range []string{m.From, m.To} {
		if wire.OwnQueue(name) || strings.HasPrefix(name, "amq.") || name == "" {
			return nil, refusef("%q is not a name for a work queue", name)
		}
	}
	s := &State{}
	var err error
	if s.Old, err = m.queue(ctx, m.From); err != nil {
		return nil, err
	}
	if s.New, err = m.queue(ctx, m.To); err != nil {
		return nil, err
	}
	if s.Old == nil && s.New == nil {
		return nil, fmt.Errorf("the queue %q does not exist: %w", m.From, management.ErrNotFound)
	}
	if err := m.lookAtDetour(ctx, s); err != nil {
		return nil, err
	}
	if s.Old == nil {
		return s, nil
	}
	switch {
	case s.Old.Type == "stream":
		return nil, refusef("%q is a stream", m.From)
	case s.Old.Exclusive || s.Old.AutoDelete:
		return nil, refusef("%q goes with its connection or its last consumer", m.From)
	}
	if s.Bindings, err = m.API.QueueBindings(ctx, m.From); err != nil {
		return nil, err
	}
	detour := wire.MoveExchange(m.From)
	s.DetourToOld = slices.ContainsFunc(s.Bindings, func(b management.Binding) bool { return b.Source == detour })
	s.Bindings = slices.DeleteFunc(s.Bindings, func(b management.Binding) bool { return b.Source == detour })
	for _, b := range s.Bindings {
		if err := m.movable(ctx, b); err != nil {
			return nil, err
		}
	}
	s.arguments(m.Type)
	if err := m.checkType(s); err != nil {
		return nil, err
	}
	policies, err := m.API.Policies(ctx)
	if err != nil {
		return nil, err
	}
	overview, err := m.API.Overview(ctx)
	if err != nil {
		return nil, err
	}
	s.Policy = Successor(*s.Old, policies, m.To, s.Type, overview.Version)
	for _, r := range s.otherwise() {
		if r.drop {
			delete(s.Policy.Policy.Definition, r.key)
		}
	}
	if s.Sources, err = m.lookAtSources(ctx); err != nil {
		return nil, err
	}
	return s, m.checkNew(s)
}

func (m *Move) queue(ctx context.Context, name string) (*management.Queue, error) {
	q, _, err := ReadQueue(ctx, m.API, name)
	if errors.Is(err, management.ErrNotFound) {
		return nil, nil
	}
	return &q, err
}

func (m *Move) lookAtDetour(ctx context.Context, s *State) error {
	e, err := m.API.Exchange(ctx, wire.MoveExchange(m.From))
	if errors.Is(err, management.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if to := e.Arguments["alternate-exchange"]; to != wire.RetryExchange(m.To) {
		return refusef("a move of %q to another name is under way (exchange %q leads to %q): finish that first", m.From,
			e.Name, to)
	}
	s.Detour = true
	s.DetourBindings, err = m.API.BindingsTo(ctx, e.Name)
	return err
}

// movableFrom are the types of exchanges whose bindings can be moved. With other types, such as a
// consistent hash or a history of messages, one binding more changes what other queues receive.
var movableFrom = []string{"direct", "fanout", "topic", "headers", "x-delayed-message"}

func (m *Move) movable(ctx context.Context, b management.Binding) error {
	e, err := m.API.Exchange(ctx, b.Source)
	if err != nil {
		return err
	}
	if !slices.Contains(movableFrom, e.Type) {
		return refusef("queue %q is bound to exchange %q of type %s, where a binding more changes what other queues "+
			"get: move that binding by hand", m.From, b.Source, e.Type)
	}
	for k, v := range b.Arguments {
		switch v.(type) {
		case string, bool:
		default:
			return refusef("its binding to exchange %q has the argument %s: %v, whose type RabbitMQ's API does not "+
				"tell: move that binding by hand", b.Source, k, v)
		}
	}
	return nil
}

// reading is a setting (an argument or a policy's key) that one type of queue refuses, or reads
// differently.
type reading struct {
	key string
	// value restricts it to one value; "" is any. on is the type.
	value, on string
	// drop: the new queue must not have it. RabbitMQ refuses the argument (406), and applies no
	// policy with the key.
	drop bool
	says string // what changes, for the person who moves the queue
	// refuse: the queue cannot be moved.
	refuse bool
}

// See TestTheNewTypeTakesWhatTheOldOneHas and TestWhatTheNewTypeReadsOtherwise.
var readings = []reading{
	{key: "overflow", value: "reject-publish-dlx", on: "quorum", refuse: true,
		says: "a quorum queue reads it as drop-head: full, it drops its oldest messages and refuses none"},
	{key: "max-priority", on: "quorum", drop: true,
		says: "messages are no longer delivered by priority (from RabbitMQ 4 on, those of priority 5 and more " +
			"come first)"},
	{key: "dead-letter-strategy", value: "at-least-once", on: "quorum",
		says: "it is in force from now on, with overflow reject-publish"},
	{key: "expires", on: "quorum", says: "declaring the queue again no longer renews it"},
	{key: "queue-mode", on: "quorum", drop: true},
	{key: "queue-version", on: "quorum", drop: true},
	{key: "queue-master-locator", on: "quorum", drop: true},
	{key: "ha-mode", on: "quorum", drop: true},
	{key: "ha-params", on: "quorum", drop: true},
	{key: "ha-sync-mode", on: "quorum", drop: true},
	{key: "ha-sync-batch-size", on: "quorum", drop: true},
	{key: "ha-promote-on-shutdown", on: "quorum", drop: true},
	{key: "ha-promote-on-failure", on: "quorum", drop: true},

	{key: "delivery-limit", on: "classic", drop: true, says: "a message may be requeued without end"},
	{key: "dead-letter-strategy", value: "at-least-once", on: "classic", drop: true,
		says: "dead letters may be lost: a classic queue is at-most-once"},
	{key: "delayed-retry-type", on: "classic", drop: true, says: "what is requeued is delivered at once"},
	{key: "delayed-retry-min", on: "classic", drop: true},
	{key: "delayed-retry-max", on: "classic", drop: true},
	{key: "consumer-timeout", on: "classic", drop: true, says: "RabbitMQ's own applies"},
	{key: "queue-leader-locator", on: "classic", drop: true},
	{key: "quorum-initial-group-size", on: "classic", drop: true},
	{key: "quorum-target-group-size", on: "classic", drop: true},
	{key: "max-in-memory-length", on: "classic", drop: true},
	{key: "max-in-memory-bytes", on: "classic", drop: true},
}

// arguments sets the arguments of the new queue.
func (s *State) arguments(kind string) {
	s.Type, s.Arguments = s.Old.Type, map[string]any{}
	if kind != "" && kind != s.Old.Type {
		s.Type = kind
		s.Arguments["x-queue-type"] = kind
	}
	drop := map[string]bool{}
	for _, r := range s.otherwise() {
		drop["x-"+r.key] = r.drop
		if r.says != "" {
			s.Otherwise = append(s.Otherwise,
				fmt.Sprintf("%s: %s: %s", r.key, management.Text(s.Old.Setting(r.key)), r.says))
		}
	}
	if s.Type == "quorum" && s.Old.Type != s.Type && s.Old.Setting("delivery-limit") == nil {
		s.Otherwise = append(s.Otherwise, "from RabbitMQ 4 on, a message that failed 20 times without being "+
			"acknowledged or rejected is dead-lettered")
	}
	for k, v := range s.Old.Effective {
		if drop["x-"+k] {
			s.Dropped = append(s.Dropped, management.Text(k)+": "+management.Text(v))
		}
	}
	for k, v := range s.Old.Arguments {
		switch {
		case k == "x-queue-type":
			s.Arguments[k] = s.Type
		case strings.HasPrefix(k, "x-dead-letter-"), drop[k]:
			s.Dropped = append(s.Dropped, management.Text(k)+": "+management.Text(v))
		default:
			s.Arguments[k] = v
		}
	}
	slices.Sort(s.Dropped)
}

// otherwise returns what the new queue's type reads otherwise than the old one's.
func (s *State) otherwise() (all []reading) {
	for _, r := range readings {
		v := s.Old.Setting(r.key)
		if s.Type != s.Old.Type && r.on == s.Type && v != nil && (r.value == "" || r.value == v) {
			all = append(all, r)
		}
	}
	return all
}

// checkType refuses a type that cannot have what the old queue has.
func (m *Move) checkType(s *State) error {
	for _, r := range s.otherwise() {
		if r.refuse {
			return refusef("%q has %s: %s, and %s; keep the type, or change that first", m.From, r.key, r.value, r.says)
		}
	}
	if s.Type == "quorum" && !s.Old.Durable {
		return refusef("%q is not durable, and a quorum queue is", m.From)
	}
	return nil
}

// checkNew refuses a new queue that exists already and is not as it would be declared.
func (m *Move) checkNew(s *State) error {
	if s.New == nil {
		return nil
	}
	if s.New.Type != s.Type {
		return refusef("%q is there already, and %s instead of %s", m.To, s.New.Type, s.Type)
	}
	for k := range s.New.Arguments {
		if _, wanted := s.Arguments[k]; !wanted && k != "x-queue-type" {
			return refusef("%q is there already, with %s: %s, which the new queue is not to have", m.To,
				k, management.Text(s.New.Arguments[k]))
		}
	}
	for k, v := range s.Arguments {
		if is, ok := s.New.Arguments[k]; k != "x-queue-type" && (!ok || management.Text(is) != management.Text(v)) {
			return refusef("%q is there already, without %s: %s", m.To, k, management.Text(v))
		}
	}
	return nil
}

// Write shows what is done and what is left.
func (m *Move) Write(w io.Writer, s *State) {
	mark := func(done bool, format string, args ...any) {
		sign := "-"
		if done {
			sign = "="
		}
		fmt.Fprintf(w, "%s %s\n", sign, fmt.Sprintf(format, args...))
	}
	if s.Old == nil {
		fmt.Fprintf(w, "queue %q is gone, and %q is there\n", m.From, m.To)
		if s.Detour {
			mark(false, "lets %d bindings lead to it directly", len(s.DetourBindings))
		}
		return
	}
	messages := "uncounted"
	if s.Old.Counted() {
		messages = strconv.Itoa(s.Old.Messages)
	}
	fmt.Fprintf(w, "queue %q (%s, %s messages) moves to %q (= is done already):\n", m.From, s.Old.Type, messages, m.To)
	mark(s.New != nil, "makes queue %q, %s, %s", m.To, s.Type, arguments(s.Arguments))
	if len(s.Dropped) > 0 {
		fmt.Fprintf(w, "    without %s\n", strings.Join(s.Dropped, ", "))
	}
	for _, says := range s.Otherwise {
		fmt.Fprintf(w, "    %s\n", says)
	}
	mark(s.New != nil && s.New.Policy == s.Policy.Policy.Name,
		"gives it what applies to %q, and dead letters to Redrive:", m.From)
	Write(w, "will", s.Policy)
	mark(false, "continues when %q has consumers, or %q has none", m.To, m.From)
	consumers(w, s.Old)
	if s.New != nil {
		consumers(w, s.New)
	}
	mark(s.Detour && len(s.Bindings) == 0, "leads its bindings to %q, by way of exchange %q, which switches to it in "+
		"one step: no message comes to both, or to none", m.To, wire.MoveExchange(m.From))
	for _, b := range append(slices.Clone(s.Bindings), s.DetourBindings...) {
		fmt.Fprintf(w, "    from exchange %q, routing key %q%s\n", b.Source, b.RoutingKey, withArguments(b.Arguments))
	}
	mark(false, "moves its messages, in order and as they are; consumers see %q as their exchange",
		wire.RetryExchange(m.To))
	fmt.Fprintf(w, "    their time to live begins again: how much was left, RabbitMQ does not say; what is published "+
		"after the switch may be in front of the last of them\n")
	if m.Keep {
		mark(false, "keeps queue %q, empty and without bindings", m.From)
	} else {
		writeSources(w, m.From, s.Sources)
		mark(false, "deletes queue %q when it is empty, no one consumes it, and nothing has come for %s",
			m.From, m.Quiet)
	}
	if !s.Old.Counted() {
		fmt.Fprintf(w, "note: RabbitMQ's statistics are switched off: what a client holds that does not consume "+
			"(basic.get), and what a quorum queue keeps until its dead letters are confirmed, is not known to be "+
			"there and goes with queue %q: --keep keeps it\n", m.From)
	}
	fmt.Fprintf(w, "note: who publishes to %q by its name (the default exchange) is not known to RabbitMQ, and must "+
		"use %q before it is deleted\n", m.From, m.To)
	fmt.Fprintf(w, "note: what waits in Redrive for %q stays there, and is parked when it is due and the queue is "+
		"gone: \"redrive copy\" sends it on\n", m.From)
}

func consumers(w io.Writer, q *management.Queue) {
	if !q.Counted() {
		fmt.Fprintf(w, "    %q: RabbitMQ's statistics are switched off, and name no consumers\n", q.Name)
	} else if len(q.ConsumerDetails) == 0 {
		fmt.Fprintf(w, "    %q: no consumer\n", q.Name)
	}
	for _, c := range q.ConsumerDetails {
		fmt.Fprintf(w, "    %q: consumer %q, user %q, connection %q\n", q.Name, c.Tag, c.Channel.User,
			c.Channel.Connection)
	}
}

// A hand-made retry queue dead-letters to the old queue by its name, through the default exchange.
// No binding shows that, so none can be moved, and RabbitMQ drops what expires after the old queue
// is deleted. So the move waits until such queues are empty, and stops while anything but the old
// queue feeds them.

// Source is a queue whose dead letters reach the old queue by its name, directly or through others.
type Source struct {
	Queue    string
	Messages int
	// TTL is the queue's; 0: it has none.
	TTL time.Duration
	// FedBy says what feeds it besides the old queue.
	FedBy []string

	grew time.Time // when Messages last grew
}

func (q *Source) String() string {
	text := fmt.Sprintf("queue %q, %d messages", q.Queue, q.Messages)
	switch {
	case q.Messages == 0:
	case q.TTL > 0:
		text += ", the last expires by " + q.grew.Add(q.TTL).Format(time.TimeOnly)
	default:
		text += ", which expire as each says, if at all"
	}
	if len(q.FedBy) > 0 {
		text += "; fed by " + strings.Join(q.FedBy, ", ")
	}
	return text
}

// lookAtSources finds the sources. Their counts are RabbitMQ's statistics, some seconds old.
func (m *Move) lookAtSources(ctx context.Context) ([]*Source, error) {
	queues, err := m.API.QueueStates(ctx)
	if err != nil {
		return nil, err
	}
	bindings, err := m.API.Bindings(ctx)
	if err != nil {
		return nil, err
	}
	exchanges, err := m.API.Exchanges(ctx)
	if err != nil {
		return nil, err
	}
	policies, err := m.API.Policies(ctx)
	if err != nil {
		return nil, err
	}
	r := management.NewRoutes(queues, bindings, exchanges, policies)
	sources, seen := sourcesOf(r, m.From), map[string]*Source{}
	for _, q := range sources {
		q.grew = time.Now()
		if was := m.sources[q.Queue]; was != nil && was.Messages >= q.Messages {
			q.grew = was.grew
		}
		seen[q.Queue] = q
	}
	m.sources = seen
	return sources, nil
}

// exhausted reports whether all sources are empty. While anything else feeds one it returns
// ErrConsumers.
func (m *Move) exhausted(ctx context.Context, c *broker.Mover) (bool, error) {
	sources, err := m.lookAtSources(ctx)
	if err != nil {
		return false, err
	}
	var waits, fed []string
	for _, q := range sources {
		ready, consumers, err := c.Depth(q.Queue) // statistics may be older, or switched off
		if err != nil {
			return false, err
		}
		q.Messages = max(q.Messages, ready)
		if by := "publishers, as it has consumers"; consumers > 0 && !slices.Contains(q.FedBy, by) {
			q.FedBy = append(q.FedBy, by)
		}
		switch {
		case len(q.FedBy) > 0:
			fed = append(fed, "    "+q.String())
		case q.Messages > 0:
			waits = append(waits, "    "+q.String())
		}
	}
	if len(fed) > 0 {
		return false, fmt.Errorf("queue %q stays: these dead-letter to it by its name, and RabbitMQ would drop "+
			"their messages without it:\n%s\npoint them elsewhere, or stop what feeds them; %w", m.From,
			strings.Join(fed, "\n"), ErrConsumers)
	}
	if text := strings.Join(waits, "\n"); len(waits) > 0 && text != m.said {
		m.said = text
		m.Report(fmt.Sprintf("waits for what dead-letters to queue %q by its name:\n%s", m.From, text))
	}
	return len(waits) == 0, nil
}

func writeSources(w io.Writer, from string, sources []*Source) {
	if len(sources) == 0 {
		return
	}
	fmt.Fprintf(w, "- waits until nothing is left in the queues that dead-letter to %q by its name; delete "+
		"them then:\n", from)
	for _, q := range sources {
		fmt.Fprintf(w, "    %s\n", q)
	}
}

// grow adds queues to a set, until joins reports true for no other.
func grow(r *management.Routes, set map[string]bool, joins func(queue string) bool) {
	for again := true; again; {
		again = false
		for name := range r.Queues {
			if !set[name] && joins(name) {
				set[name], again = true, true
			}
		}
	}
}

// sourcesOf finds the sources of a queue, sorted by name.
func sourcesOf(r *management.Routes, queue string) (all []*Source) {
	to, through := map[string]map[string]bool{}, map[string]map[string]bool{}
	sources := map[string]bool{}
	for name, q := range r.Queues {
		var keys []string
		to[name], through[name], keys = r.DeadLetters(name)
		if q.Setting("dead-letter-exchange") == "" && name != queue && slices.Contains(keys, queue) {
			sources[name] = true
		}
	}
	leadsTo := func(from string, set map[string]bool) bool {
		for name := range to[from] {
			if set[name] {
				return true
			}
		}
		return false
	}
	grow(r, sources, func(name string) bool { return name != queue && leadsTo(name, sources) })
	fed := map[string]bool{queue: true} // by the queue, directly or through others
	grow(r, fed, func(name string) bool {
		for from := range fed {
			if to[from][name] {
				return true
			}
		}
		return false
	})
	ours := map[string]bool{} // exchanges that the queue and its sources dead-letter through
	maps.Copy(ours, through[queue])
	for name := range sources {
		maps.Copy(ours, through[name])
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		q := r.Queues[name]
		s := &Source{Queue: name, Messages: max(q.Messages, q.Ready+q.Unacked+q.Dead), TTL: q.TTL()}
		switch {
		case q.Consumers > 0:
			s.FedBy = append(s.FedBy, "publishers, as it has consumers")
		case s.TTL == 0 && !fed[name]: // a work queue, whose dead letters come here
			s.FedBy = append(s.FedBy, "publishers, as it has no time to live")
		}
		for from := range to {
			if to[from][name] && from != queue && !sources[from] {
				s.FedBy = append(s.FedBy, fmt.Sprintf("dead letters of queue %q", from))
			}
		}
		for exchange, bindings := range r.Bindings {
			if !ours[exchange] && slices.ContainsFunc(bindings,
				func(b management.Binding) bool { return b.DestinationType == "queue" && b.Destination == name }) {
				s.FedBy = append(s.FedBy, fmt.Sprintf("exchange %q", exchange))
			}
		}
		slices.Sort(s.FedBy)
		all = append(all, s)
	}
	return all
}
