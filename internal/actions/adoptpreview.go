package actions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/wire"
)

// mostPeeked is how many messages of a queue a preview looks at: looking is a delivery.
const mostPeeked = 1000

// AdoptPreview is what adopting a queue would do.
type AdoptPreview struct {
	Queue     string        `json:"queue"`
	Messages  int           `json:"messages" doc:"That the queue has."`
	LookedAt  int           `json:"looked_at" doc:"How many of them, from its head on, the rest is about."`
	Consumers int           `json:"consumers" doc:"Of the queue, besides Redrive: they take messages too."`
	Origins   []AdoptOrigin `json:"origins" doc:"Most messages first."`
	Groups    []AdoptGroup  `json:"groups" doc:"Failures with the same error; most messages first."`
	Unknown   []AdoptCount  `json:"unknown" doc:"What messages do not tell, and why."`
}

// AdoptOrigin is a queue that messages failed in, as they say.
type AdoptOrigin struct {
	Queue    string `json:"queue" doc:"Empty: they do not tell."`
	Messages int    `json:"messages"`
	Obstacle string `json:"obstacle,omitempty" doc:"Why they cannot be replayed there."`
}

// AdoptGroup is an error group of a queue that is adopted.
type AdoptGroup struct {
	Queue     string     `json:"queue,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Error     string     `json:"error,omitempty" doc:"Of the first message."`
	Framework string     `json:"framework,omitempty"`
	Messages  int        `json:"messages"`
	Oldest    *time.Time `json:"oldest,omitempty"`
	Newest    *time.Time `json:"newest,omitempty"`
}

// AdoptCount is how many messages do not tell something.
type AdoptCount struct {
	What     string `json:"what"`
	Messages int    `json:"messages"`
}

// PreviewAdopt looks at the messages at the head of a queue, and requeues them.
func (a *Actions) PreviewAdopt(ctx context.Context, by auth.Caller, r AdoptRequest) (p AdoptPreview, err error) {
	framework, err := a.checkAdopt(by, "preview adopt", r)
	if err != nil {
		return p, err
	}
	if a.Peek == nil {
		return p, fmt.Errorf("%w: this service has no RabbitMQ", inspect.ErrPrecondition)
	}
	s := adoptSummary{as: retry.Adoption{Queue: r.Queue, Framework: framework}, now: a.now(),
		origins: map[string]int{}, groups: map[errorgroup.ID]*AdoptGroup{}, unknown: map[string]int{}}
	p.Queue = r.Queue
	p.Messages, p.Consumers, err = a.Peek(ctx, r.Queue, mostPeeked, s.add)
	switch {
	case errors.Is(err, wire.ErrQueueGone):
		return p, fmt.Errorf("%w: RabbitMQ has no queue %q", inspect.ErrNotFound, r.Queue)
	case err != nil:
		return p, fmt.Errorf("%w: %w", inspect.ErrPrecondition, err)
	}
	all, err := retry.Adoptions(ctx, a.Store)
	if err != nil {
		return p, err
	}
	if was, is := all[r.Queue]; is && was.State.Ended.IsZero() && p.Consumers > 0 {
		p.Consumers--
	}
	s.fill(&p)
	for i := range p.Origins {
		if o := &p.Origins[i]; o.Queue != "" && i < mostObstacles {
			o.Obstacle = a.Obstacle(ctx, o.Queue)
		}
	}
	return p, nil
}

// mostObstacles is of how many queues a preview asks RabbitMQ.
const mostObstacles = 50

// Obstacle is why messages cannot be replayed to a queue, as far as that is known, or "".
func (a *Actions) Obstacle(ctx context.Context, queue string) string {
	at, err := a.Inspect.AtBroker(ctx, queue)
	switch {
	case err == nil && !at.Exists:
		return fmt.Sprintf("the queue %q no longer exists: redrive copy --to QUEUE sends it to another one", queue)
	case !a.Inspect.HasPolicy(queue):
		return fmt.Sprintf("no policy takes the queue %q: add it to one to replay messages there", queue)
	case a.MayRetryTo != nil && !a.MayRetryTo(ctx, queue):
		return fmt.Sprintf("the queue %q is not enrolled, and no policy names it exactly: redrive enroll %s, or name it, to replay messages there", queue, queue)
	}
	return ""
}

// adoptSummary sums up messages of a queue.
type adoptSummary struct {
	as      retry.Adoption
	now     time.Time
	n       int
	origins map[string]int
	groups  map[errorgroup.ID]*AdoptGroup
	unknown map[string]int
}

func (s *adoptSummary) add(d *wire.Delivery) {
	f := s.as.Read(d, s.now)
	s.n++
	s.origins[f.Queue]++
	for _, what := range f.Unknown {
		s.unknown[what]++
	}
	id := errorgroup.Of(f.Queue, f.Reason, f.Error, d.Message.Type).ID
	g := s.groups[id]
	if g == nil {
		g = &AdoptGroup{Queue: f.Queue, Reason: f.Reason, Error: f.Error, Framework: f.Framework}
		s.groups[id] = g
	}
	g.Messages++
	if t := f.Last; !t.IsZero() {
		if g.Oldest == nil || t.Before(*g.Oldest) {
			g.Oldest = &t
		}
		if g.Newest == nil || t.After(*g.Newest) {
			g.Newest = &t
		}
	}
}

// mostGroups is how many error groups, and how many things that are not known, a preview has.
const mostGroups = 50

func (s *adoptSummary) fill(p *AdoptPreview) {
	p.LookedAt = s.n
	p.Origins, p.Groups, p.Unknown = []AdoptOrigin{}, []AdoptGroup{}, []AdoptCount{}
	for _, queue := range slices.Sorted(maps.Keys(s.origins)) {
		p.Origins = append(p.Origins, AdoptOrigin{Queue: queue, Messages: s.origins[queue]})
	}
	for _, g := range s.groups {
		p.Groups = append(p.Groups, *g)
	}
	for _, what := range slices.Sorted(maps.Keys(s.unknown)) {
		p.Unknown = append(p.Unknown, AdoptCount{what, s.unknown[what]})
	}
	slices.SortStableFunc(p.Origins, func(a, b AdoptOrigin) int { return b.Messages - a.Messages })
	slices.SortFunc(p.Groups, func(a, b AdoptGroup) int {
		return cmp.Or(b.Messages-a.Messages, cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Error, b.Error), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortStableFunc(p.Unknown, func(a, b AdoptCount) int { return b.Messages - a.Messages })
	p.Groups, p.Unknown = p.Groups[:min(len(p.Groups), mostGroups)], p.Unknown[:min(len(p.Unknown), mostGroups)]
}
