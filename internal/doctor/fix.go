package doctor

import (
	"context"
	"fmt"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/config"
)

// fix is what --fix does about a finding: it only makes what is missing.
type fix struct {
	topology bool   // what the service declares when it starts
	queue    string // make and bind its retry exchange
}

func (f fix) String() string {
	if f.topology {
		return "declare the exchange redrive, the queue redrive.intake and what else the service declares when it starts"
	}
	return fmt.Sprintf("make the retry exchange of queue %q and bind it to that queue", f.queue)
}

// Plan is what --fix will do, in order.
type Plan []fix

// Plan of the findings that can be repaired safely.
func (r *Report) Plan() (p Plan) {
	done := map[fix]bool{}
	for _, f := range r.Findings {
		if f.Fixable && !done[f.fix] {
			done[f.fix] = true
			p = append(p, f.fix)
		}
	}
	return p
}

// Steps are the plan in words.
func (p Plan) Steps() (all []string) {
	for _, f := range p {
		all = append(all, f.String())
	}
	return all
}

// Apply carries it out by AMQP, as the service's user, who has the rights for it.
func (p Plan) Apply(ctx context.Context, c *config.Config) error {
	l, err := broker.NewProbe(ctx, broker.Config{URL: c.Broker.URL, Credentials: c.Broker.Credentials, Name: "redrive doctor --fix"})
	if err != nil {
		return err
	}
	defer l.Close()
	for _, f := range p {
		if f.topology {
			err = l.DeclareAll()
		} else {
			err = l.BindRetryExchange(f.queue)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	return nil
}
