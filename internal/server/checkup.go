package server

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redrive-mq/redrive/internal/doctor"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/inspect"
)

const (
	// checkupEvery is how old a checkup may be before the next look at a page starts another.
	checkupEvery = 10 * time.Minute
	// checkupAgain is the wait after a checkup that failed or missed a queue.
	checkupAgain = time.Minute
)

// checkup makes the checks of redrive doctor about queues, while people look at pages that show them.
type checkup struct {
	examine func(context.Context) (doctor.Report, error) // nil: no management API is configured
	wanted  chan struct{}
	last    atomic.Pointer[inspect.Checkup]
}

func newCheckup(s *vhost) *checkup {
	c := &checkup{wanted: make(chan struct{}, 1)}
	if s.manage == nil || s.Visitors {
		return c
	}
	o := doctor.Options{OfQueues: true}
	if label := s.vhostLabel(); label != "" {
		o.Call = "redrive --vhost " + doctor.Quote(label)
	}
	c.examine = func(ctx context.Context) (doctor.Report, error) {
		now := *s.config
		now.Policies, now.Watch = s.inForce.Policies(), *s.queueWatch.configured.Load()
		o.Config = &now
		scene, err := doctor.Gather(ctx, o)
		if err != nil {
			return doctor.Report{}, err
		}
		return doctor.ExamineQueues(scene), nil
	}
	return c
}

// latest returns the last checkup, and requests another if it is old or missed the queue; "": any queue.
func (c *checkup) latest(queue string) (is inspect.Checkup) {
	if c.examine == nil {
		return is
	}
	if last := c.last.Load(); last != nil {
		is = *last
	}
	_, looked := is.Looked[queue]
	old := is.At == nil || time.Since(*is.At) >= checkupEvery
	is.Checking = old || queue != "" && !looked
	if old || is.Checking && time.Since(*is.At) >= checkupAgain {
		select {
		case c.wanted <- struct{}{}:
		default:
		}
	}
	return is
}

func (c *checkup) run(ctx context.Context) {
	if c.examine == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wanted:
		}
		if last := c.last.Load(); last != nil && time.Since(*last.At) < checkupAgain {
			continue
		}
		at := time.Now()
		report, err := c.examine(ctx)
		if err != nil || report.Looked == nil {
			sleep(ctx, checkupAgain)
			continue
		}
		is := &inspect.Checkup{At: &at, Looked: report.Looked}
		for _, f := range report.Findings {
			if f.Status != doctor.Warning && f.Status != doctor.Wrong {
				continue
			}
			if f.Check == doctor.Forgotten {
				is.Forgotten = f.Queues
			}
			if len(f.Queues) > 0 { // it names several, and each of them is to have its own
				f.What, _, _ = strings.Cut(f.What, ": ")
				f.Remedy = strings.TrimSuffix(f.Remedy, " -o json lists them all.")
			}
			for _, queue := range append(f.Queues, f.Queue) {
				if queue != "" {
					is.Findings = append(is.Findings, inspect.Finding{Check: f.Check, Status: string(f.Status),
						Queue: queue, Title: f.Title, What: f.What, Why: f.Why, Remedy: f.Remedy, Commands: f.Commands})
				}
			}
		}
		slices.SortStableFunc(is.Findings, func(a, b inspect.Finding) int { return hint.Natural(a.Queue, b.Queue) })
		c.last.Store(is)
	}
}
