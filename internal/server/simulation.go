package server

import (
	"context"
	"html/template"
	"reflect"
	"sync"

	"github.com/redrive-mq/redrive/internal/simulate"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// outagePictures are the pictures of policies in an outage, by policy, each drawn when it is
// first shown and after the policy has changed.
type outagePictures struct {
	mu    sync.Mutex // one is drawn at a time: each is a second's work
	drawn map[string]outagePicture
}

type outagePicture struct {
	policy policy.Policy
	rules  throttle.Rules
	svg    template.HTML
}

// drawOutage draws what a policy in force would do. Policies that wait in RabbitMQ have no
// picture: no throttle limits them.
func (s *vhost) drawOutage(ctx context.Context, name string) template.HTML {
	set := s.inForce.Policies()
	for i := range set {
		if p := set[i]; p.Name == name && s.inForce.Way(name) == nil {
			return s.outagePictures.draw(ctx, p, s.policyLimits(name))
		}
	}
	return ""
}

func (s *outagePictures) draw(ctx context.Context, p policy.Policy, r throttle.Rules) template.HTML {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is, ok := s.drawn[p.Name]; ok && reflect.DeepEqual(is.policy, p) && reflect.DeepEqual(is.rules, r) {
		return is.svg
	}
	result, err := simulate.Run(ctx, simulate.Brief(p, r))
	if err != nil {
		return "" // the request was cancelled, or nothing can be drawn
	}
	if s.drawn == nil || len(s.drawn) > 1000 { // names that were in force once
		s.drawn = map[string]outagePicture{}
	}
	svg := template.HTML(result.SVG()) // its texts are escaped
	s.drawn[p.Name] = outagePicture{p, r, svg}
	return svg
}
