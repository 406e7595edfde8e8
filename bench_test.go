package redrive_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// BenchmarkSuccess is the success path against a bare amqp091-go loop with the same
// prefetch, each acknowledging every message by itself. The messages are in the
// queue before the clock starts:
//
//	go run ./test/brokers go test -run '^$' -bench Success -benchtime 100000x .
func BenchmarkSuccess(b *testing.B) {
	const prefetch = 100
	bare := func(b *testing.B, v *brokertest.VHost, handled func()) (stop func()) {
		conn, err := amqp.Dial(v.URL())
		must(b, err)
		ch, err := conn.Channel()
		must(b, err)
		must(b, ch.Qos(prefetch, 0, false))
		in, err := ch.Consume("orders", "", false, false, false, false, nil)
		must(b, err)
		go func() {
			for d := range in {
				handled()
				if d.Ack(false) != nil {
					return
				}
			}
		}()
		return func() { conn.Close() }
	}
	library := func(b *testing.B, v *brokertest.VHost, handled func()) (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			ended <- redrive.Consume(ctx, redrive.Config{URLs: []string{v.URL()}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))},
				redrive.Consumer{Queue: "orders", Policy: fast(3), Wait: redrive.Levels(), Prefetch: prefetch,
					Handler: func(context.Context, *redrive.Message) error { handled(); return nil }})
		}()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				b.Error(err)
			}
		}
	}
	for _, broker := range brokertest.All(b) {
		for _, kind := range []string{"classic", "quorum"} {
			for _, way := range []struct {
				name string
				run  func(*testing.B, *brokertest.VHost, func()) func()
			}{{"bare", bare}, {"redrive", library}} {
				b.Run(fmt.Sprint(broker.Version, "/", kind, "/", way.name), func(b *testing.B) {
					v := brokertest.NewVHost(b, broker)
					v.Queue("orders", amqp.Table{"x-queue-type": kind})
					fill(b, v, b.N+1)
					b.ReportAllocs()
					n, done := 0, make(chan struct{})
					stop := way.run(b, v, func() {
						if n++; n == 1 {
							b.ResetTimer() // it is connected
						}
						if n == b.N+1 {
							close(done)
						}
					})
					<-done
					b.StopTimer()
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
					stop()
				})
			}
		}
	}
}

// fill publishes n messages, confirmed.
func fill(b *testing.B, v *brokertest.VHost, n int) {
	ch := v.Channel()
	defer ch.Close()
	must(b, ch.Confirm(false))
	var window []*amqp.DeferredConfirmation
	for i := range n {
		c, err := ch.PublishWithDeferredConfirm("", "orders", true, false, amqp.Publishing{Body: make([]byte, 256), Headers: amqp.Table{"n": int64(i)}, DeliveryMode: amqp.Persistent})
		must(b, err)
		if window = append(window, c); len(window) == 1000 || i == n-1 {
			for _, c := range window {
				if !c.Wait() {
					b.Fatal("RabbitMQ did not confirm a message of the benchmark's own")
				}
			}
			window = window[:0]
		}
	}
}
