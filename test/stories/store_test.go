package stories_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/redisnode"
	"github.com/redrive-mq/redrive/wire"
)

// The service keeps its messages in Redis: they come back with their delay, are parked,
// outlive a restart of the service on another machine (with nothing but Redis in
// common), and are replayed.
func TestTheServiceOnRedis(t *testing.T) {
	redisnode.Each(t, func(t *testing.T, o redisnode.Options) {
		redis := redisnode.New(t, o)
		var stores atomic.Int64 // side by side
		brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
			prefix := fmt.Sprint("story", stores.Add(1))
			onRedis := func() *service {
				c := configured(t, v, threeAttempts, t.TempDir())
				c.Store.Redis.URL, c.Store.Redis.Prefix = redis.URL(), prefix
				return run(t, c).ready(t)
			}
			deadLettered(v, "orders", "quorum")
			orders := v.ConsumeMany("orders")
			s := onRedis()
			v.Publish("", "orders", amqp.Publishing{Body: []byte("a")})
			failed := reject(t, orders.Next())
			d := orders.Next()
			if early := failed.Add(200 * time.Millisecond); time.Now().Before(early) {
				t.Errorf("it came %s early", time.Until(early))
			}
			reject(t, d)
			reject(t, orders.Next())
			parked := s.WaitParked(t, 1)[0]
			must(t, s.Stop())
			s = onRedis()
			if again := s.WaitParked(t, 1)[0]; again.ID != parked.ID || again.Attempt != 3 {
				t.Errorf("after the restart it is %+v, was %+v", again, parked)
			}
			expect.Equal(t, s.Replay(t, "id:"+parked.ID), 1, "were replayed")
			orders.Ack()
			s.wait(t, retry.Retried)
		})
	})
}

// From disk to Redis and back, as the guide says: what waits is retried with the attempts it had, and
// what fails meanwhile is in the new store.
func TestAStoreIsMovedToRedisAndBack(t *testing.T) {
	redis := redisnode.New(t, redisnode.Options{})
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ctx := context.Background()
		deadLettered(v, "orders", "quorum")
		onDisk := configured(t, v, threeAttempts, t.TempDir())
		onRedis, again := *onDisk, *onDisk
		onRedis.Store.Redis = config.Redis{URL: redis.URL(), Prefix: v.Name, Durability: "cached"}
		again.Store.Disk = t.TempDir() + "/again"
		orders := v.ConsumeMany("orders")
		var want []string
		fails := func() {
			for range 20 {
				want = append(want, fmt.Sprint(len(want)))
				v.Publish("", "orders", amqp.Publishing{Body: []byte(want[len(want)-1])})
				reject(t, orders.Next())
			}
		}
		s := run(t, onDisk).ready(t)
		must(t, s.Client.PauseQueue(ctx, "orders", "they wait to be moved"))
		fails()
		for _, move := range [][2]*config.Config{{onDisk, &onRedis}, {&onRedis, &again}} {
			brokertest.Eventually(t, "all wait", func() bool { return s.kept(t, "orders").Waiting == int64(len(want)) })
			must(t, s.Stop())
			s = run(t, move[1]).ready(t)
			must(t, s.Client.PauseQueue(ctx, "orders", "they wait to be moved"))
			apart := *move[0]
			apart.Broker.URL = "amqp://127.0.0.1:1/" + v.Name
			old := run(t, &apart)
			fails()
			for _, already := range []bool{false, true} {
				var lines bytes.Buffer
				n, err := old.Client.Export(ctx, "state:waiting OR state:parked", "jsonl", &lines)
				must(t, err)
				im, err := s.Client.Import(ctx, &lines, actions.ImportOptions{AsIs: true})
				if err != nil || n != int64(len(want)-20) || already != (im.Count == 0) || im.Count+im.Already != n {
					t.Errorf("of %d: %+v, %v", n, im, err)
				}
			}
			must(t, old.Stop())
		}
		must(t, s.Client.ResumeQueue(ctx, "orders", ""))
		var got []string
		for range want {
			d := orders.Next()
			expect.Equal(t, d.Headers[wire.HeaderAttempt], any(int64(1)), "it came back as attempt")
			got = append(got, string(d.Body))
			must(t, d.Ack(false))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("came back: %v", got)
		}
	})
}
