package stories_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/redisnode"
)

// The service keeps its messages in Redis: they come back with their delay, are parked,
// outlive a restart of the service on another machine (with nothing but Redis in
// common), and are replayed.
func TestTheServiceOnRedis(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		redis := redisnode.New(t, o)
		var stores atomic.Int64 // side by side
		brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
			prefix := fmt.Sprint("story", stores.Add(1))
			onRedis := func() *service {
				c := configured(t, v, threeAttempts, t.TempDir())
				c.Store.Redis.URL, c.Store.Redis.Prefix = redis.URL(), prefix
				return run(t, c).ready(t)
			}
			deadLettered(v, "orders", "quorum")
			ch, orders := v.Channel(), consume(t, v, "orders")
			s := onRedis()
			publish(t, ch, "", "orders", amqp.Publishing{Body: []byte("a")})
			failed := reject(t, orders.next())
			d := orders.next()
			if early := failed.Add(200 * time.Millisecond); time.Now().Before(early) {
				t.Errorf("it came %s early", time.Until(early))
			}
			reject(t, d)
			reject(t, orders.next())
			parked := s.WaitParked(t, 1)[0]
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			s = onRedis()
			if again := s.WaitParked(t, 1)[0]; again.ID != parked.ID || again.Attempt != 3 {
				t.Errorf("after the restart it is %+v, was %+v", again, parked)
			}
			if n := s.Replay(t, "id:"+parked.ID); n != 1 {
				t.Fatalf("replayed %d", n)
			}
			if err := orders.next().Ack(false); err != nil {
				t.Fatal(err)
			}
			s.wait(t, retry.Retried)
		})
	})
}
