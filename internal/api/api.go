// Package api is the service's HTTP face: health, metrics, and what the command
// line asks for. The types are shared with its client.
package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/store"
)

// Service is what the API shows and does.
type Service interface {
	Problems() []string
	Notices() []string
	Status(ctx context.Context) (Status, error)
	List(ctx context.Context, f store.Filter) (store.Page, error)
	Replay(ctx context.Context, sel store.Selection) (int, error)
}

// Status of a service.
type Status struct {
	Version  string        `json:"version"`
	Since    time.Time     `json:"since" doc:"When the service started."`
	Problems []string      `json:"problems" doc:"What is wrong now; empty when nothing is."`
	Notices  []string      `json:"notices,omitempty" doc:"What a person should look at though it stops nothing."`
	Broker   string        `json:"broker" doc:"Where RabbitMQ is, without the password."`
	Queues   []QueueStatus `json:"queues"`
}

// QueueStatus is what the service holds and did for one work queue.
type QueueStatus struct {
	Queue    string     `json:"queue"`
	Policy   string     `json:"policy,omitempty"`
	Way      string     `json:"way,omitempty" doc:"How its messages wait: disk, or a way of RabbitMQ's, which knows how many."`
	Waiting  int64      `json:"waiting" doc:"On disk. What waits in RabbitMQ is not counted here."`
	Parked   int64      `json:"parked"`
	NextDue  *time.Time `json:"next_due,omitempty" doc:"When the first waiting message is due."`
	Oldest   *time.Time `json:"oldest,omitempty" doc:"When the message that is due first failed."`
	Failed   int64      `json:"failed_per_minute" doc:"In the last minute."`
	Returned int64      `json:"returned_per_minute" doc:"In the last minute."`
	ParkedIn int64      `json:"parked_per_minute" doc:"In the last minute."`
	Returns  string     `json:"returns,omitempty" doc:"Why nothing returns to it; absent when returns work."`
}

// Message is a kept message, without its body.
type Message struct {
	ID          string     `json:"id"`
	Queue       string     `json:"queue"`
	State       string     `json:"state" enum:"waiting,parked"`
	Attempt     int        `json:"attempt" doc:"Failures so far."`
	Due         *time.Time `json:"due,omitempty" doc:"Of a waiting one: when it returns."`
	ParkedAt    *time.Time `json:"parked_at,omitempty"`
	ParkedFor   string     `json:"parked_for,omitempty" doc:"Why it is parked."`
	Reason      string     `json:"reason" doc:"Why it failed, in RabbitMQ's word."`
	Error       string     `json:"error,omitempty" doc:"What its consumer said."`
	Policy      string     `json:"policy,omitempty"`
	FirstFailed time.Time  `json:"first_failed"`
	Failed      time.Time  `json:"failed"`
	Exchange    string     `json:"exchange" doc:"As first published."`
	RoutingKey  string     `json:"routing_key" doc:"As first published."`
	Size        int        `json:"size" doc:"Of the body, in bytes."`
	Notes       []string   `json:"notes,omitempty" doc:"What was odd about it."`
}

// Page is a piece of a listing.
type Page struct {
	Messages []Message `json:"messages"`
	After    string    `json:"after,omitempty" doc:"Ask with it for the next page; absent on the last."`
}

// Selection chooses parked messages to replay.
type Selection struct {
	IDs   []uuid.UUID `json:"ids,omitempty" maxItems:"10000"`
	Queue string      `json:"queue,omitempty" doc:"All parked messages of this queue."`
}

// Replayed is the result of a replay.
type Replayed struct {
	Replayed int `json:"replayed" doc:"How many were parked and are now on their way."`
}

// Handler serves a service. With open false (the address is not loopback, and
// there is no way to sign in yet) only health and metrics are served.
func Handler(s Service, metrics http.Handler, version string, open bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		problems := s.Problems()
		if len(problems) == 0 {
			fmt.Fprintln(w, "ready")
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		for _, p := range slices.Concat(problems, s.Notices()) {
			fmt.Fprintln(w, p)
		}
	})
	mux.Handle("GET /metrics", metrics)
	if !open {
		return mux
	}
	c := huma.DefaultConfig("Redrive", version)
	c.DocsPath = "" // its page would load scripts from elsewhere
	routes(humago.New(mux, c), s)
	// A web page of somebody else's must not replay messages through the browser
	// of the person on call, nor read them by pointing a name at 127.0.0.1.
	return loopbackOnly(http.NewCrossOriginProtection().Handler(mux))
}

func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "ask for this service by its loopback address", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func routes(a huma.API, s Service) {
	huma.Get(a, "/api/v1/status", func(ctx context.Context, _ *struct{}) (*struct{ Body Status }, error) {
		st, err := s.Status(ctx)
		return &struct{ Body Status }{st}, err
	})
	huma.Get(a, "/api/v1/messages", func(ctx context.Context, in *struct {
		State string `query:"state" enum:"waiting,parked" doc:"Left out: both."`
		Queue string `query:"queue" doc:"Left out: all."`
		ID    string `query:"id" doc:"A message's x-redrive-id."`
		After string `query:"after" doc:"The end of the page before."`
		Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	}) (*struct{ Body Page }, error) {
		f := store.Filter{Queue: in.Queue, After: in.After, Limit: in.Limit, State: states[in.State]}
		if in.ID != "" {
			id, err := uuid.Parse(in.ID)
			if err != nil {
				return nil, huma.Error422UnprocessableEntity("id is not a UUID")
			}
			f.ID = id
		}
		page, err := s.List(ctx, f)
		if err != nil {
			return nil, err
		}
		out := Page{Messages: []Message{}, After: page.After}
		for _, l := range page.Records {
			out.Messages = append(out.Messages, shown(l))
		}
		return &struct{ Body Page }{out}, nil
	})
	huma.Post(a, "/api/v1/replay", func(ctx context.Context, in *struct{ Body Selection }) (*struct{ Body Replayed }, error) {
		if (len(in.Body.IDs) == 0) == (in.Body.Queue == "") {
			return nil, huma.Error422UnprocessableEntity("give ids or a queue, not both and not neither")
		}
		n, err := s.Replay(ctx, store.Selection{IDs: in.Body.IDs, Queue: in.Body.Queue})
		if err != nil && !errors.Is(err, context.Canceled) {
			return nil, huma.Error500InternalServerError(fmt.Sprintf("after %d messages: %v", n, err))
		}
		return &struct{ Body Replayed }{Replayed{n}}, nil
	})
}

var states = map[string]store.State{"waiting": store.Waiting, "parked": store.Parked}

func shown(l store.Listed) Message {
	r := l.Record
	m := Message{ID: r.ID.String(), Queue: r.Queue, State: "waiting", Attempt: r.Attempt, Reason: r.Reason, Error: r.Error, Policy: r.Policy,
		FirstFailed: r.FirstFailed, Failed: r.FailedAt, Exchange: r.Message.Exchange, RoutingKey: r.Message.RoutingKey, Size: l.BodySize, Notes: r.Notes}
	due := r.Due
	if r.State == store.Parked {
		m.State, m.ParkedAt, m.ParkedFor = "parked", &due, r.ParkedFor
	} else {
		m.Due = &due
	}
	return m
}
