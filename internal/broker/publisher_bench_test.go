package broker_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// BenchmarkSend publishes as the scheduler does: batches of one queue each, several of them
// under way at once.
//
//	go run ./test/brokers go test -run '^$' -bench Send -benchtime 200000x ./internal/broker
func BenchmarkSend(b *testing.B) {
	for _, rabbitmq := range brokertest.All(b) {
		for _, kind := range []string{"classic", "quorum"} {
			for _, c := range []struct{ queues, batch, underWay int }{{1, 512, 5}, {1, 16, 1}, {8, 256, 10}, {200, 4, 100}} {
				b.Run(fmt.Sprintf("%s/%s/%d queues by %d", rabbitmq.Version, kind, c.queues, c.batch), func(b *testing.B) {
					v := brokertest.NewVHost(b, rabbitmq)
					p := broker.NewPublisher(broker.Config{URL: v.URL(), Log: slog.New(slog.DiscardHandler)})
					ctx, cancel := context.WithCancel(b.Context())
					ended := make(chan error, 1)
					go func() { ended <- p.Run(ctx) }()
					for i := range c.queues {
						v.Queue(fmt.Sprint("q", i), amqp.Table{"x-queue-type": kind})
						if err := p.BindRetryExchange(ctx, fmt.Sprint("q", i)); err != nil {
							b.Fatal(err)
						}
					}
					underWay := make(chan struct{}, c.underWay)
					b.ResetTimer()
					for n, left := 0, b.N; left > 0; n++ {
						out := make([]wire.Outgoing, min(c.batch, left))
						for i := range out {
							out[i] = message(wire.RetryExchange(fmt.Sprint("q", n%c.queues)), "key", "", nil)
							out[i].Message.Body = make([]byte, 1024)
						}
						left -= len(out)
						underWay <- struct{}{}
						wait := p.Send(ctx, out)
						go func() {
							for _, err := range wait(ctx) {
								if err != nil {
									b.Error(err)
								}
							}
							<-underWay
						}()
					}
					for range c.underWay {
						underWay <- struct{}{}
					}
					b.StopTimer()
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
					cancel()
					if err := <-ended; err != nil {
						b.Error(err)
					}
				})
			}
		}
	}
}
