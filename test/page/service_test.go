package page_test

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// service is a whole Redrive on a real broker, with messages in its store from
// before it was started.
type service struct {
	t      *testing.T
	vhost  *brokertest.VHost
	ch     *amqp.Channel
	config *config.Config
	parked []*store.Record // of orders.capture, oldest first
	base   string
	stop   func()
}

// newService starts one on the newest broker there is.
func newService(t *testing.T) *service {
	t.Helper()
	brokers := brokertest.All(t)
	s := &service{t: t, vhost: brokertest.NewVHost(t, brokers[len(brokers)-1]), config: config.Default()}
	s.ch = s.vhost.Channel()
	for _, q := range []string{"orders.capture", "mail.send", "webhooks"} {
		s.vhost.Queue(q, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"})
	}
	s.config.Broker = config.Broker{URL: s.vhost.ServiceURL(policies()), Management: s.vhost.Management}
	s.config.Store.Disk, s.config.Listen = filepath.Join(t.TempDir(), "store"), "127.0.0.1:0"
	s.config.Policies, s.config.Decode, s.config.Throttle = policies(), protobuf(t), map[string]throttle.Rules{}
	for _, p := range s.config.Policies {
		s.config.Throttle[p.Name] = throttle.Rules{NoConsumer: throttle.RetryWithoutConsumers} // the tests read with basic.get
	}

	disk, err := diskstore.Open(s.config.Store.Disk, diskstore.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := 60; i >= 0; i -= 6 {
		s.parked = append(s.parked, message(i, store.Parked, now))
	}
	waiting := message(2, store.Waiting, now)
	waiting.Due = now.Add(time.Hour)
	if err := disk.Add(t.Context(), append([]*store.Record{waiting}, s.parked...)); err != nil {
		t.Fatal(err)
	}
	if err := disk.Close(); err != nil {
		t.Fatal(err)
	}
	s.start()
	return s
}

// start runs it; it ends with the test at the latest.
func (s *service) start() {
	s.t.Helper()
	a := servertest.Run(s.t, s.config)
	s.stop = func() {
		if err := a.Stop(); err != nil {
			s.t.Errorf("the service ended with: %v", err)
		}
	}
	s.config.Listen = a.Addr() // also after a restart
	s.base = "http://" + a.Addr()
	a.Ready(s.t)
}

// fail publishes a message that its consumer rejects.
func (s *service) fail(queue, body string) {
	s.t.Helper()
	err := s.ch.PublishWithContext(s.t.Context(), "", queue, true, false, amqp.Publishing{Body: []byte(body), ContentType: "application/json"})
	if err != nil {
		s.t.Fatal(err)
	}
	d := s.take(queue)
	if string(d.Body) != body {
		s.t.Fatalf("in the queue %s is %.100q, and not what was published there", queue, d.Body)
	}
	if err := d.Reject(false); err != nil {
		s.t.Fatal(err)
	}
}

// take waits for the next message of a queue.
func (s *service) take(queue string) (d amqp.Delivery) {
	s.t.Helper()
	brokertest.Eventually(s.t, "there is a message in "+queue, func() bool {
		var ok bool
		var err error
		if d, ok, err = s.ch.Get(queue, false); err != nil {
			s.t.Fatal(err)
		}
		return ok
	})
	return d
}

// arrives takes a message that is expected, and is done with it.
func (s *service) arrives(queue string) amqp.Delivery {
	s.t.Helper()
	d := s.take(queue)
	if err := d.Ack(false); err != nil {
		s.t.Fatal(err)
	}
	return d
}
