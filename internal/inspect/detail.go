package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// ReadAs is how a person wants to see a body of Protobuf.
type ReadAs struct {
	Type     string `query:"type" maxLength:"512" doc:"Read the body as this Protobuf message type; left out: the one that is configured, or the type that it fits best." example:"shop.Order"`
	Defaults bool   `query:"defaults" doc:"Show the fields of Protobuf that are not set, with their defaults."`
}

// Message returns all that is known of one message, by its id or its key; of one that was retried,
// what is remembered.
func (in *Inspector) Message(ctx context.Context, by auth.Caller, id string, as ReadAs) (Detail, error) {
	if err := in.known(by, as.Type); err != nil {
		return Detail{}, err
	}
	l, others, err := in.messageNamed(ctx, by, id)
	if err != nil {
		return Detail{}, err
	}
	r := l.Record
	d := Detail{Message: in.Shown(l), Properties: []Property{}, Headers: []Header{}}
	pauses, err := Pauses(ctx, in.Store)
	if err != nil {
		return Detail{}, err
	}
	_, paused := pauses[r.Queue]
	d.Paused = paused && r.State == store.Waiting
	for _, o := range others {
		d.SameID = append(d.SameID, in.Shown(o))
	}
	past, err := in.Store.PastFailures(ctx, r.ID)
	if err != nil {
		return Detail{}, err
	}
	d.Timeline = in.timeline(r, past)
	if r.State != query.Retried {
		d.Properties, d.Headers, d.Framework = properties(&r.Message), headersOf(r), frameworkOf(&r.Message)
		body := BodyOf(r)
		body.As, body.Defaults, body.Guess = as.Type, as.Defaults, true
		d.Body = in.Decoder.Decode(ctx, body)
	}
	return d, nil
}

// known refuses a Protobuf type that is not loaded.
func (in *Inspector) known(by auth.Caller, name string) error {
	if err := by.May(auth.Viewer, ""); err != nil || name == "" {
		return err
	}
	if err := in.Decoder.Knows(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// Body is a message's body as it is.
func (in *Inspector) Body(ctx context.Context, by auth.Caller, id string) ([]byte, error) {
	l, _, err := in.messageNamed(ctx, by, id)
	if err != nil {
		return nil, err
	}
	if l.Record.State == query.Retried {
		return nil, fmt.Errorf("%w: the message %s was retried, and its body is not kept any more", ErrNotFound, id)
	}
	return l.Record.Message.Body, nil
}

// messageNamed finds a message by id or key; one that is not kept any more by its last past
// failure. others have the same id.
func (in *Inspector) messageNamed(ctx context.Context, by auth.Caller, name string) (l store.Listed, others []store.Listed, err error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return l, nil, err
	}
	all, err := in.Named(ctx, by, name)
	id, isID := query.ParseID(name)
	switch {
	case err != nil:
		return l, nil, err
	case len(all) > 0 && isID:
		return all[0], all[1:], nil
	case len(all) > 0:
		others, err = in.Named(ctx, by, all[0].Record.ID.String())
		return all[0], slices.DeleteFunc(others, func(o store.Listed) bool { return o.Key == all[0].Key }), err
	case isID:
		if all, err = in.lastOf(ctx, by, id); err != nil {
			return l, nil, err
		}
	}
	if len(all) == 0 {
		return l, nil, fmt.Errorf("%w: there is no message %.60q, or nothing is remembered of it", ErrNotFound, name)
	}
	return all[0], nil, nil
}

// Named returns the stored messages with an id, or the one with a key, in queues that the caller
// sees.
func (in *Inspector) Named(ctx context.Context, by auth.Caller, name string) (all []store.Listed, err error) {
	if id, isID := query.ParseID(name); isID {
		all, err = in.Store.Find(ctx, id)
	} else if l, getErr := in.Store.Get(ctx, store.Key(name)); getErr == nil {
		all = []store.Listed{l}
	} else if !errors.Is(getErr, store.ErrNotFound) {
		err = getErr
	}
	return slices.DeleteFunc(all, func(l store.Listed) bool { return !by.Sees(l.Record.Queue) }), err
}

// timeline is each failure that is remembered, and what came of it.
func (in *Inspector) timeline(r *store.Record, past []store.PastFailure) []Step {
	steps := []Step{}
	for _, p := range past {
		if p.Queue != r.Queue {
			continue // another message with its id
		}
		ended := p.Ended
		s := Step{Attempt: p.Failures, Failed: p.FailedAt, Reason: p.Reason, Error: p.Error, Ended: &ended, Ending: endings[p.Ending]}
		s.Policy, s.Rule = store.PolicyAndRule(p.Policy)
		s.Delay, s.Why = in.whyWait(s.Policy, s.Rule, p.Failures, p.Due.Sub(p.FailedAt))
		if p.Ending == store.EndedDiscarded {
			s.Delay, s.Why = "", "it was discarded, and the time to restore it is over"
		}
		steps = append(steps, s)
	}
	if r.State == query.Retried {
		return steps
	}
	s := Step{Attempt: r.Failures, Failed: r.FailedAt, Reason: r.Reason, Error: r.Error}
	s.Policy, s.Rule = store.PolicyAndRule(r.Policy)
	switch {
	case r.State == store.Parked:
		s.Why = r.ParkedFor
	case r.State == store.Discarded:
		s.Why = "a person discarded it"
		if at := slices.IndexFunc(r.Notes, func(note string) bool { return strings.HasPrefix(note, ByRetention) }); at >= 0 {
			s.Why = r.Notes[at]
		}
	case r.Forward != nil:
		if s.Why = "it goes to " + sendsTo(r.Forward); s.Rule != "" {
			s.Why += fmt.Sprintf(", by rule %q of policy %q", s.Rule, s.Policy)
		}
	default:
		s.Delay, s.Why = in.whyWait(s.Policy, s.Rule, r.Failures, r.Due.Sub(r.FailedAt))
	}
	steps = append(steps, s)
	if first := steps[0]; first.Attempt > 1 && !r.FirstFailed.IsZero() && r.FirstFailed.Before(first.Failed) {
		steps = slices.Insert(steps, 0, Step{Attempt: 1, Failed: r.FirstFailed, Why: "it failed for the first time; nothing more is remembered of what was before the next one"})
	}
	return steps
}

// ByRetention begins the note of a message that its policy's retention has discarded.
const ByRetention = "discarded by retention"

var endings = map[store.Ending]string{store.EndedRetried: "retried", store.EndedForwarded: "forwarded", store.EndedDiscarded: "discarded"}

// whyWait explains how long a message waits after a failure.
func (in *Inspector) whyWait(name, rule string, attempt int, delay time.Duration) (text, why string) {
	text = policy.FormatDuration(delay)
	if attempt == 0 {
		return text, "a person replayed it: it starts again at attempt 1"
	}
	set := in.policies()
	i := slices.IndexFunc(set, func(p policy.Policy) bool { return p.Name == name })
	switch {
	case name == "":
		return text, ""
	case i < 0:
		return text, fmt.Sprintf("policy %q decided, which is not in force any more", name)
	}
	p, by := &set[i], fmt.Sprintf("policy %q", name)
	if rule != "" {
		by = fmt.Sprintf("rule %q of policy %q", rule, name)
		at := slices.IndexFunc(p.Rules, func(r policy.Rule) bool { return r.Name == rule })
		if at < 0 {
			return text, by + " decided, which is not in force any more"
		}
		under := p.Under(&p.Rules[at])
		p = &under
	}
	if attempt >= p.Attempts {
		return text, fmt.Sprintf("failure %d of the %d that %s allows now: a person replayed it, or the policy was changed since", attempt, p.Attempts, by)
	}
	least, most := waits(p, in.way(name), attempt)
	between := policy.FormatDuration(least)
	if least != most {
		between += " to " + policy.FormatDuration(most) + " (" + policy.FormatDuration(p.Backoff.Delay(attempt)) + " with jitter " + p.Jitter.String() + ")"
	}
	why = fmt.Sprintf("failure %d of %d: %s waits %s", attempt, p.Attempts, by, between)
	if slack := 2 * time.Millisecond; delay < least-slack || delay > most+slack {
		why += "; this differs because its consumer asked for another delay, a person changed it, or the policy was changed since"
	}
	return text, why
}
