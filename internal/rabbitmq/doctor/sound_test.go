package doctor_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/rabbitmq/doctor"
	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// says are the findings of a report that are not ok, but for RabbitMQ 3 itself.
func says(r doctor.Report) string {
	r.Findings = slices.DeleteFunc(slices.Clone(r.Findings), func(f doctor.Finding) bool { return f.Check == "rabbitmq-version" })
	return notOK(r)
}

// recipes declares the delay queues that programs made before they had Redrive, each of a work queue
// that is enrolled by now. A dead-letter service and an x-delayed-message exchange have none.
func recipes(s *site) {
	for i := 1; i <= 4; i++ {
		s.Queue(fmt.Sprint("r", i), safely(nil))
	}
	wait := func(work string, more amqp.Table) amqp.Table {
		args := kind("classic", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work})
		for key, v := range more {
			args[key] = v
		}
		return args
	}
	s.Queue("r1.retry", wait("r1", amqp.Table{"x-message-ttl": 30000}))
	s.Exchange("r2.back", "direct", "r2")
	for _, ms := range []int{1000, 2000, 4000} {
		s.Queue(fmt.Sprintf("r2.retry.%d", ms), kind("quorum", amqp.Table{"x-message-ttl": ms, "x-dead-letter-exchange": "r2.back", "x-dead-letter-routing-key": "r2"}))
	}
	s.Queue("r3.retry.5000", wait("r3", amqp.Table{"x-message-ttl": 5000, "x-expires": 3600000}))
	s.Queue("r4.retry", wait("r4", nil)) // a TTL of each message
	// As NServiceBus and Celery do: each level dead-letters to the next.
	s.Exchange("ladder", "topic", "r1")
	s.Queue("ladder.0", kind("quorum", amqp.Table{"x-message-ttl": 1000, "x-dead-letter-exchange": "ladder"}))
	s.Exchange("ladder.1.next", "topic", "ladder.0")
	s.Queue("ladder.1", kind("quorum", amqp.Table{"x-message-ttl": 2000, "x-dead-letter-exchange": "ladder.1.next"}))
}

// Nothing is wrong where nothing is: with delay queues of all kinds, ours and others', streams, and
// a policy for every queue.
func TestASoundSetUpHasNoFinding(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := newSite(t, v, nil, "", &commandsRun{seen: map[string][]string{}})
		declared(s)
		recipes(s)
		s.Queue("log", amqp.Table{"x-queue-type": "stream"})
		client, err := redrive.NewClient(t.Context(), redrive.Config{URLs: []string{s.URL()}, Log: slog.New(slog.DiscardHandler)})
		s.must(err)
		defer client.Close()
		for _, way := range []redrive.Way{redrive.Levels(time.Second, time.Minute), redrive.ClassicLevels(time.Second), redrive.MessageTTL(), redrive.Binary(time.Second)} {
			_, err := client.NewSettler(t.Context(), redrive.Consumer{Queue: "r1", Wait: way, Policy: policy.Policy{Attempts: 2, Backoff: policy.Fixed(time.Second)}})
			s.must(err)
		}
		ch := s.connects("all", s.URL(), 1)
		s.must(ch.Qos(10, 0, false))
		work := []string{"r1", "r2", "r3", "r4"}
		for i := range 20 {
			name := fmt.Sprintf("q.%02d", i)
			s.Queue(name, safely(nil))
			work = append(work, name)
		}
		for _, q := range work {
			_, err := ch.Consume(q, "", false, false, false, false, nil)
			s.must(err)
		}
		said := ""
		brokertest.Eventually(t, "RabbitMQ reports all of it", func() bool {
			r := s.report()
			said = says(r)
			return *r.Enrolled == len(work) && said == "" || said != "" && !strings.Contains(said, "consumers")
		})
		if said != "" {
			t.Errorf("the doctor says:\n%s", said)
		}
	})
}

// Five hundred queues under one pattern that all lack the same are one finding.
func TestManyQueuesAreOneFinding(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := newSite(t, v, nil, "", &commandsRun{seen: map[string][]string{}})
		declared(s)
		ch := s.connects("declares", s.URL(), 1)
		for i := range 500 {
			_, err := ch.QueueDeclare(fmt.Sprintf("many.%03d", i), true, false, false, false, kind("classic", nil))
			s.must(err)
		}
		var r doctor.Report
		brokertest.Eventually(t, "RabbitMQ reports all of them", func() bool { r = s.report(); return *r.Queues == 500 })
		if said := says(r); strings.Count(said, "\n") != 1 || !strings.Contains(said, "warning dead-lettering : 500 queues (many.000, many.001, ") || !strings.Contains(said, "many.009 and 490 more), each: it has no dead-letter exchange") {
			t.Errorf("without a dead-letter exchange:\n%s", said)
		}
		s.Policy("all", "^many", 0, redriven)
		brokertest.Eventually(t, "RabbitMQ reports that all are enrolled", func() bool { r = s.report(); return *r.Enrolled == 500 })
		checks := map[string]int{}
		for _, f := range r.Findings {
			if f.Status != doctor.OK {
				if checks[f.Check]++; len(f.Queues) != 0 && len(f.Queues) != 500 {
					t.Errorf("%s is about %d queues", f.Check, len(f.Queues))
				}
			}
		}
		if checks["consumers"] != 1 || checks["at-least-once"] != 1 || len(says(r)) > 2000 {
			t.Errorf("enrolled:\n%s", says(r))
		}
	})
}

// Just after an enroll nothing is wrong, whatever RabbitMQ reports by then.
func TestWhatIsInProgressIsNotWrong(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := newSite(t, v, nil, `policies: [{name: p, queues: [orders], attempts: 8, backoff: {fixed: 1m}}]`, &commandsRun{seen: map[string][]string{}})
		declared(s)
		consumed := map[string]bool{}
		seen := 0
		for i := range 6 {
			name := "orders" // as one that is declared and enrolled at once
			if i > 0 {
				s.DeleteQueue(name)
				_ = s.API().DeletePolicy(context.Background(), "redrive."+name)
			}
			s.Queue(name, kind("quorum", nil))
			consumer(fmt.Sprint("worker", i), name)(s)
			consumed[name] = true
			all, err := enroll.PlanMany(t.Context(), s.API(), []string{name}, "", true)
			s.must(err)
			s.must(all[0].Err)
			s.must(all[0].Plan.Apply(t.Context(), s.API()))
			for range 4 {
				r := s.report()
				for _, f := range r.Findings {
					if f.InProgress {
						seen++
					}
					if f.Status != doctor.OK && f.Check != "rabbitmq-version" && f.Check != "consumers" && f.Check != "full-queues" {
						t.Errorf("%s %s %s: %s", f.Status, f.Check, f.Queue, f.What)
					}
				}
			}
		}
		if seen == 0 && !v.Since4() {
			t.Error("RabbitMQ 3.10 was never behind: this shows nothing")
		}
	})
}

// What a service that runs declares again within seconds is not wrong.
func TestWhatTheServiceDeclaresAgain(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		s := newSite(t, v, nil, "", &commandsRun{seen: map[string][]string{}})
		served(s)
		without(wire.ExchangeDeadLetters)(s)
		r := s.report()
		i := slices.IndexFunc(r.Findings, func(f doctor.Finding) bool { return f.Check == "dead-letter-exchange" })
		if f := r.Findings[i]; f.Status != doctor.OK || !f.InProgress || !strings.Contains(f.What, "in progress: the exchange redrive does not exist") {
			t.Errorf("it says %s: %s", f.Status, f.What)
		}
		brokertest.Eventually(t, "the service has declared it", func() bool { return !s.report().Findings[i].InProgress })
	})
}
