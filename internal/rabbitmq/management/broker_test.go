package management_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// Each part of the service's rights is needed: without it something that it does
// when it starts, or when it returns a message, is refused. That they are enough,
// test/stories and test/faults show, whose service has no others.
func TestTheServiceNeedsEach(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		all := management.ServiceRights(brokertest.Works("orders"))
		once := func() error {
			// A connection of its own: RabbitMQ remembers rights of a channel.
			l, err := broker.NewProbe(context.Background(), broker.Config{URL: v.URLAs(v.ServiceUser(), "s3cret"), Name: "test"})
			if err != nil {
				return err
			}
			defer l.Close()
			return errors.Join(l.DeclareAll(), l.BindRetryExchange("orders"))
		}
		starts := func() (err error) { // a busy RabbitMQ may say 541 to a new quorum queue
			brokertest.Eventually(t, "RabbitMQ declares or refuses", func() bool {
				err = once()
				return err == nil || errors.Is(err, wire.ErrForbidden)
			})
			return err
		}
		v.ServiceURL(brokertest.Works("orders"))
		if err := starts(); err != nil {
			t.Fatalf("with all: %v", err)
		}
		for _, c := range []struct {
			what   string
			change func(*management.Rights)
		}{
			{"configure on redrive", func(r *management.Rights) { r.Configure = `^redrive\..*$` }},
			{"configure on redrive.*", func(r *management.Rights) { r.Configure = `^redrive$` }},
			{"write on redrive.*", func(r *management.Rights) { r.Write = `^orders$` }},
			{"write on the work queue", func(r *management.Rights) { r.Write = `^redrive\..*$` }},
			{"read on redrive", func(r *management.Rights) { r.Read = `^redrive\..*$` }},
			{"read on redrive.*", func(r *management.Rights) { r.Read = `^redrive$` }},
		} {
			less := all
			c.change(&less)
			v.Give(v.ServiceUser(), less)
			expect.Err(t, starts(), wire.ErrForbidden, "without %s", c.what)
		}
	})
}

// made declares what the service does.
func made(t *testing.T, v *brokertest.VHost) {
	t.Helper()
	brokertest.Eventually(t, "all is declared", func() bool {
		l, err := broker.NewProbe(context.Background(), broker.Config{URL: v.URL(), Name: "test"})
		expect.NoError(t, err)
		defer l.Close()
		return l.DeclareAll() == nil
	})
}

// user makes one with the rights of a role.
func user(v *brokertest.VHost, r management.Rights) (url string) {
	name := "user-" + uuid.NewString()
	v.User(name, "s3cret")
	v.Give(name, r)
	return v.URLAs(name, "s3cret")
}

// open has a consumer's settings find, or declare, what it needs.
func open(ctx context.Context, config redrive.Config, k redrive.Consumer) error {
	client, err := redrive.NewClient(ctx, config)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.NewSettler(ctx, k)
	return err
}

// again runs a consumer of the library until a message that failed once has come back.
func again(t *testing.T, v *brokertest.VHost, config redrive.Config, wait redrive.Way) {
	t.Helper()
	config.Log = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	v.Publish("", "orders", amqp.Publishing{DeliveryMode: 2, Body: []byte("1")})
	came := 0
	k := redrive.Consumer{Queue: "orders", Policy: policy.Policy{Attempts: 3, Backoff: policy.Fixed(100 * time.Millisecond)}, Wait: wait}
	k.Handler = func(_ context.Context, m *redrive.Message) error {
		if came++; came == 1 {
			return errors.New("down")
		}
		cancel()
		return nil
	}
	if err := redrive.Consume(ctx, config, k); err != nil || came != 2 {
		t.Errorf("it came %d times: %v", came, err)
	}
}

func TestTheLibrarysConsumers(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		r := management.GoConsumerRights("orders")
		for _, way := range []redrive.Way{redrive.Levels(100 * time.Millisecond), redrive.Dynamic(), redrive.Binary(100 * time.Millisecond), redrive.MessageTTL()} {
			again(t, v, redrive.Config{URLs: []string{user(v, r)}}, way)
		}
		// As the note says of Config.Verify.
		_, note, _ := strings.Cut(r.Notes[0], "configure ")
		var less management.Rights
		less.Configure, note, _ = strings.Cut(note, ", write ")
		less.Write, note, _ = strings.Cut(note, ", read ")
		less.Read = strings.TrimSuffix(note, ".")
		again(t, v, redrive.Config{URLs: []string{user(v, less)}, Verify: true}, redrive.Levels(100*time.Millisecond))

		// What the service declares is there; it is not, so its queue keeps reports.
		made(t, v)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			config := redrive.Config{URLs: []string{user(v, management.GoReporterRights("orders"))}, Verify: true, Log: slog.New(slog.DiscardHandler)}
			ended <- redrive.Consume(ctx, config, redrive.Consumer{Queue: "orders", Wait: redrive.Service(), Handler: func(_ context.Context, m *redrive.Message) error {
				if string(m.Body) == "park" {
					return redrive.Park(errors.New("never"))
				}
				return errors.New("down")
			}})
		}()
		for _, body := range []string{"1", "park"} {
			v.Publish("", "orders", amqp.Publishing{DeliveryMode: 2, Body: []byte(body)})
		}
		brokertest.Eventually(t, "one is reported", func() bool { return v.Depth(wire.QueueIntake) == 1 })
		brokertest.Eventually(t, "one is parked", func() bool { return v.Depth(wire.QueueParked) == 1 })
		cancel()
		expect.NoError(t, <-ended)
	})
}

// Config.Verify finds a missing right before a message fails: on RabbitMQ 3.10 and up to
// 4.2 nothing but a publish asks for it.
func TestVerifySeesAMissingRight(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		v.Queue("orders", amqp.Table{"x-queue-type": "quorum"})
		made(t, v)
		config := redrive.Config{URLs: []string{v.URL()}, Log: slog.New(slog.DiscardHandler)}
		declarer := redrive.Consumer{Queue: "orders", Policy: policy.Policy{Attempts: 2, Backoff: policy.Fixed(time.Second)}, Wait: redrive.Levels(time.Second)}
		expect.NoError(t, open(t.Context(), config, declarer))
		starts := func(wait redrive.Way, r management.Rights) error {
			verifying, k := config, declarer
			verifying.URLs, verifying.Verify, k.Wait = []string{user(v, r)}, true, wait
			return open(t.Context(), verifying, k)
		}
		read := "^orders$"
		for _, c := range []struct {
			lacks, write string
			wait         redrive.Way
		}{
			{"", `^redrive\.(due|parked|lane(\..*)?|delay\..*)$`, declarer.Wait},
			{"redrive.delay.1s", `^redrive\.(due|parked|lane(\..*)?)$`, declarer.Wait},
			{"redrive.parked", `^redrive\.(due|lane(\..*)?|delay\..*)$`, declarer.Wait},
			{"", `^redrive\.(failures|parked)$`, redrive.Service()},
			{"redrive.failures", `^redrive\.parked$`, redrive.Service()},
			{"redrive.parked", `^redrive\.failures$`, redrive.Service()},
		} {
			switch err := starts(c.wait, management.Rights{Configure: "^$", Write: c.write, Read: read}); {
			case c.lacks == "" && err != nil:
				t.Errorf("with all: %v", err)
			case c.lacks != "" && (!errors.Is(err, wire.ErrForbidden) || !strings.Contains(err.Error(), c.lacks)):
				t.Errorf("without write on %s: %v", c.lacks, err)
			}
		}
		for _, q := range []string{"redrive.delay.1s", wire.QueueParked, wire.LaneQueue("orders"), wire.QueueIntake} {
			expect.Equal(t, v.Depth(q), 0, "looking left … messages in %s", q)
		}
	})
}

func TestReportersAndDeclarers(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		made(t, v)
		declares, err := v.DialURL(user(v, management.DeclarerRights("orders.*"))).Channel()
		expect.NoError(t, err)
		if _, err := declares.QueueDeclare("orders.eu", true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "redrive"}); err != nil {
			t.Errorf("declaring: %v", err)
		}
		reports := user(v, management.ReporterRights("orders.*"))
		ch, err := v.DialURL(reports).Channel()
		expect.NoError(t, err)
		expect.Err(t, expect.ErrOf(ch.Consume("orders.eu", "", false, false, false, false, nil)), nil, "consuming")
		publish := func(key string) error {
			ch, err := v.DialURL(reports).Channel()
			if err != nil {
				return err
			}
			if err := ch.Confirm(false); err != nil {
				return err
			}
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			d, err := ch.PublishWithDeferredConfirm(wire.ExchangeFailures, key, true, false, amqp.Publishing{})
			if err != nil {
				return err
			}
			select {
			case e := <-closed:
				return e
			case <-d.Done():
				return nil
			}
		}
		expect.Err(t, publish("orders.eu"), nil, "reporting")
		var refused *amqp.Error
		if err := publish("mail"); !errors.As(err, &refused) || refused.Code != amqp.AccessRefused {
			t.Errorf("reporting for another queue: %v", err)
		}
	})
}

// Definitions of all roles are taken by RabbitMQ as they are, once the exchange of
// a topic permission exists, which RabbitMQ 4.3 asks for.
func TestDefinitions(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		made(t, v)
		var granted, topics []map[string]any
		for _, r := range management.AllRights(brokertest.Works("orders.*")) {
			name := r.Role + "-" + uuid.NewString()
			v.User(name, "s3cret")
			granted = append(granted, map[string]any{"user": name, "vhost": v.Name, "configure": r.Configure, "write": r.Write, "read": r.Read})
			for _, topic := range r.Topics {
				topics = append(topics, map[string]any{"user": name, "vhost": v.Name, "exchange": topic.Exchange, "write": topic.Write, "read": topic.Read})
			}
		}
		v.Must(http.MethodPost, "definitions", map[string]any{"permissions": granted, "topic_permissions": topics})
	})
}
