package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/doctor"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// The checks are made when somebody looks, at most once in ten minutes, and an error keeps what was found.
func TestCheckupsAreMadeWhenSomebodyLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := 0
		var fails error
		c := &checkup{wanted: make(chan struct{}, 1), examine: func(context.Context) (doctor.Report, error) {
			made++
			return doctor.Report{Looked: map[string]bool{"a": true, "b": true}, Findings: []doctor.Finding{{Queue: "b",
				Status: doctor.Wrong, What: "bad"},
				{Queue: "a", Status: doctor.OK}, {Queue: "a", Status: doctor.Unknown}, {Status: doctor.Wrong},
				{Check: doctor.Forgotten, Queues: []string{"c", "a"}, Status: doctor.Warning, What: "messages: c (8), a (9)",
					Remedy: "Start it. -o json lists them all."}}}, fails
		}}
		go c.run(t.Context())
		for _, step := range []struct {
			after time.Duration
			looks int
			err   error
			made  int
			ago   string // when the last was made
		}{
			{time.Hour, 0, nil, 0, ""}, {time.Second, 9, nil, 1, ""}, {9 * time.Minute, 9, nil, 1, "9m0s"},
			{time.Hour, 1, errors.New("away"), 2, "1h9m0s"}, {time.Second, 1, nil, 2, "1h9m1s"},
			{time.Minute, 1, nil, 3, "1s"}, {time.Second, 1, nil, 3, "2s"},
		} {
			time.Sleep(step.after)
			fails = step.err
			ago := ""
			for range step.looks {
				is := c.latest("a")
				expect.Equal(t, is.Checking, step.ago == "" || strings.HasPrefix(step.ago, "1h"), "it is being checked")
				if is.At != nil {
					ago = time.Since(*is.At).String()
					var queues []string
					for _, f := range is.Findings {
						queues = append(queues, f.Queue)
					}
					expect.Equal(t, strings.Join(queues, " "), "a b c", "the queues with findings")
					expect.Equal(t, is.Findings[0].What+": "+is.Findings[0].Remedy, "messages: Start it.", "what one of several is told")
					expect.Equal(t, strings.Join(is.Forgotten, " "), "c a", "the forgotten queues")
				}
			}
			synctest.Wait()
			expect.Equal(t, fmt.Sprint(made, " ", ago), fmt.Sprint(step.made, " ", step.ago),
				"checkups, and the age of the last")
		}
		// A queue that the checkup missed causes another, at most once a minute.
		for i, after := range []time.Duration{time.Second, time.Minute, time.Second} {
			time.Sleep(after)
			expect.Equal(t, c.latest("new").Checking, true, "the new queue is being checked")
			synctest.Wait()
			expect.Equal(t, made, []int{3, 4, 4}[i], "checkups")
		}
		expect.Equal(t, c.latest("").Checking, false, "the others are being checked again")
	})
}

// A queue that is not set up rightly is found in RabbitMQ, with the command that repairs it.
func TestWhatDoctorFindsAboutAQueueInRabbitMQ(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
		c := testConfig(t)
		c.Broker.URL, c.Broker.Management = v.URL(), v.Management
		s := opened(t, c).vhosts[0]
		report, err := s.checkup.examine(t.Context())
		must(t, err)
		s.checkup.examine = func(context.Context) (doctor.Report, error) { return report, nil }
		go s.checkup.run(t.Context())
		var is inspect.QueueDetail
		expect.Eventually(t, "the queue is checked", func() bool {
			is, err = s.inspect.Queue(t.Context(), boss, "orders")
			must(t, err)
			return is.Checkup.At != nil
		})
		found := ""
		for _, f := range is.Checkup.Findings {
			found += f.Check + " $ " + strings.Join(f.Commands, "; ") + "\n"
		}
		expect.Contains(t, found, "what is found", "at-least-once $ redrive enroll --at-least-once orders\n")
	})
}
