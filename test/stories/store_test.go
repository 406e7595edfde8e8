package stories_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/cli"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/migrate"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/testenv/brokertest"
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
			if n := s.Replay(t, "id:"+parked.ID); n != 1 {
				t.Fatalf("replayed %d", n)
			}
			orders.Ack()
			s.wait(t, retry.Retried)
		})
	})
}

// From disk to Redis and back: what a person has paused stays paused, what waits is retried with
// the attempts it had, and no service uses a store that was moved away.
func TestAServiceIsMigratedToRedisAndBack(t *testing.T) {
	redis := redisnode.New(t, redisnode.Options{})
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		ctx := context.Background()
		deadLettered(v, "orders", "quorum")
		onDisk := configured(t, v, threeAttempts, t.TempDir())
		onRedis := *onDisk
		onRedis.Store.Disk = t.TempDir()
		onRedis.Store.Redis = config.Redis{URL: redis.URL(), Prefix: v.Name, Durability: "cached"}
		again := *onDisk
		again.Store.Disk = t.TempDir() + "/again"
		files := t.TempDir()
		place := func(c *config.Config) string {
			if c.Store.Redis.URL == "" {
				return "disk:" + c.Store.Disk
			}
			file := files + "/redis.yaml"
			must(t, os.WriteFile(file, fmt.Appendf(nil, "store: {redis: {url: %q, prefix: %s, durability: cached}}", c.Store.Redis.URL, c.Store.Redis.Prefix), 0o600))
			return "config:" + file
		}
		migrates := func(from, to *config.Config) {
			t.Helper()
			var out, said bytes.Buffer
			if code := cli.Run(ctx, []string{"migrate", "--from", place(from), "--to", place(to), "--yes"}, &out, &said, cli.Build{Version: "test"}); code != 0 {
				t.Fatalf("it ended with %d: %s%s", code, &out, &said)
			}
			if _, err := server.New(from, server.Options{}); !errors.Is(err, migrate.ErrMoved) {
				t.Errorf("a service on the old store: %v", err)
			}
		}
		s := run(t, onDisk).ready(t)
		must(t, s.Client.PauseQueue(ctx, "orders", "the database is down"))
		orders := v.ConsumeMany("orders")
		var want []string
		for i := range 50 {
			want = append(want, fmt.Sprint(i))
			v.Publish("", "orders", amqp.Publishing{Body: []byte(want[i])})
			reject(t, orders.Next())
		}
		brokertest.Eventually(t, "all wait", func() bool { return s.kept(t, "orders").Waiting == 50 })
		for _, move := range [][2]*config.Config{{onDisk, &onRedis}, {&onRedis, &again}} {
			must(t, s.Stop())
			migrates(move[0], move[1])
			s = run(t, move[1]).ready(t)
			if q := s.kept(t, "orders"); q.Waiting != 50 || q.Pause == nil || q.Pause.Reason != "the database is down" {
				t.Errorf("after it: %+v", q)
			}
		}
		must(t, s.Client.ResumeQueue(ctx, "orders", ""))
		var got []string
		for range want {
			d := orders.Next()
			if d.Headers[wire.HeaderAttempt] != int64(1) {
				t.Errorf("it came back as attempt %v", d.Headers[wire.HeaderAttempt])
			}
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
