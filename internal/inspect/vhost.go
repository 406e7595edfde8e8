package inspect

import (
	"context"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
)

// VHost is the state of one virtual host on one line.
type VHost struct {
	Identity
	Broker    string     `json:"broker,omitempty" doc:"Where RabbitMQ is, without the password."`
	Ready     bool       `json:"ready" doc:"As its /readyz says."`
	Problem   string     `json:"problem,omitempty" doc:"The first of what is wrong now: one that makes it not ready, if any does."`
	Problems  int        `json:"problems" doc:"How many things are wrong now."`
	Waiting   int64      `json:"waiting"`
	Parked    int64      `json:"parked"`
	PerMinute Flow       `json:"per_minute" doc:"In the last minute."`
	NextDue   *time.Time `json:"next_due,omitempty"`
	Unknown   string     `json:"unknown,omitempty" doc:"Why only its name is known now, where the caller could not be checked in time, say."`
}

// Identity is what a virtual host is called, and what RabbitMQ says of itself.
type Identity struct {
	Name     string `json:"name" doc:"As page, API, metrics and command line call it."`
	VHost    string `json:"vhost,omitempty" doc:"Its name in RabbitMQ."`
	Cluster  string `json:"cluster,omitempty" doc:"The name of RabbitMQ's cluster; absent until it has answered."`
	RabbitMQ string `json:"rabbitmq,omitempty" doc:"RabbitMQ's version; absent until it has answered."`
}

// VHost returns the state of the virtual host, of the queues that the caller sees.
func (in *Inspector) VHost(ctx context.Context, by auth.Caller) (VHost, error) {
	if err := by.May(auth.Viewer, ""); err != nil {
		return VHost{}, err
	}
	v := VHost{Ready: in.IsReady()}
	if in.Identity != nil {
		v.Identity = in.Identity()
	}
	if in.BrokerURL != nil {
		v.Broker = in.BrokerURL()
	}
	t, err := in.Totals(ctx, by)
	if err != nil {
		if ctx.Err() != nil || v.Ready {
			return VHost{}, err
		}
		t.Problems = append(in.ProblemsFor(by), Unread+err.Error())
	}
	v.Problem, v.Problems = worst(t.Problems), len(t.Problems)
	v.Waiting, v.Parked, v.PerMinute = t.Waiting, t.Parked, t.PerMinute
	if err == nil {
		v.NextDue, err = in.nextDue(ctx, by)
	} else {
		err = nil
	}
	return v, err
}

// worst returns the first problem that makes a service not ready, or else the first.
func worst(problems []string) (first string) {
	for _, p := range problems {
		if first == "" || MakesNotReady(p) && !MakesNotReady(first) {
			first = p
		}
	}
	return strings.ToValidUTF8(first, "\uFFFD")
}

// nextDue returns when the first of the messages that the caller sees is due; nil: none waits.
func (in *Inspector) nextDue(ctx context.Context, by auth.Caller) (first *time.Time, err error) {
	counts, err := in.counts(ctx)
	for _, n := range counts {
		if due, _ := dueFirst(n); due != nil && by.Sees(n.Queue) && (first == nil || due.Before(*first)) {
			first = due
		}
	}
	return first, err
}
