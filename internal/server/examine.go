package server

import (
	"context"
	"os"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/rabbitmq/doctor"
	"github.com/redrive-mq/redrive/internal/store/redisstore"
)

// examine is a run of the doctor for the page and the API. It does not ask whether the service
// answers, since it is the service.
func (s *vhost) examine(ctx context.Context) (all []inspect.Finding, err error) {
	c := *s.config
	c.Policies = s.intake.Policies()
	o := doctor.Options{Config: &c, Insecure: os.Getenv("REDRIVE_INSECURE") == "1",
		Redis: func(ctx context.Context) ([]redisstore.Server, bool, error) { return SurveyRedis(ctx, &c) }}
	if s.multiVHost {
		o.Call = "redrive --vhost " + doctor.Quote(c.VHost())
	}
	scene, err := doctor.Gather(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, f := range doctor.Examine(scene).Findings {
		if f.Check == "service" {
			continue
		}
		all = append(all, inspect.Finding{Check: f.Check, Status: string(f.Status), Queue: f.Queue, What: f.What, Why: f.Why, Remedy: f.Remedy, Commands: f.Commands})
	}
	return all, nil
}

// policyYAML is what the config file says of a policy.
func (s *vhost) policyYAML(policy string) string {
	if c := s.inForce.Load(); c != nil {
		return c.PolicyYAML[policy]
	}
	return ""
}

// redirects are those of the configuration in force.
func (s *vhost) redirects() map[string]string {
	if c := s.inForce.Load(); c != nil {
		return c.Redirects
	}
	return nil
}
