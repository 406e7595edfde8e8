package move_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/internal/rabbitmq/move"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// childEnv makes the test's binary a move of its own: AMQP URL, management URL,
// virtual host and after how many steps it kills itself.
const childEnv = "REDRIVE_TEST_MOVE"

func child() int {
	args := strings.Fields(os.Getenv(childEnv))
	api, err := management.New(args[1], args[2])
	if err != nil {
		panic(err)
	}
	left, err := strconv.Atoi(args[3])
	if err != nil {
		panic(err)
	}
	step := func() {
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	m := &move.Move{From: "old", To: "new", Quiet: time.Second, API: api, Broker: broker.Config{URL: args[0], Name: "move"},
		Report: func(s string) { fmt.Println(s); step() }, Progress: func(int) { step() }}
	if err := m.Run(context.Background()); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// start starts a move that kills itself after so many steps; 0: not.
func start(t *testing.T, v *brokertest.VHost, steps int) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %d", childEnv, v.URL(), v.Management, v.Name, steps))
	c.Stdout = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// ended waits for a move, and tells whether it was done, rather than killed.
func ended(t *testing.T, c *exec.Cmd) bool {
	t.Helper()
	err := c.Wait()
	if status := c.ProcessState.Sys().(syscall.WaitStatus); err != nil && status.Signal() != syscall.SIGKILL {
		t.Fatalf("the move ended: %v", err)
	}
	return err == nil
}

// killed moves old while it is published to, by moves that are killed: kill starts
// one after the other until one is done, and tells how many were not. Each message
// is there then, at most a window of them twice for each kill.
func killed(t *testing.T, kill func(*testing.T, *brokertest.VHost) int) {
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				if v.Since4() != (kind == "quorum") && !brokertest.Long() {
					return // classic on 3.10 and quorum on 4.3 are enough for each change
				}
				old(v, kind)
				l := newLedger(t, v)
				l.disorder = kind == "quorum"
				l.publish("direct", "old", 300)
				stop := l.publishOn()
				kills := kill(t, v)
				stop()
				l.check(kills * 32)
				t.Logf("killed %d times", kills)
			})
		})
	}
}

// Killed after each step that it says, and each batch of messages.
func TestAMoveThatIsKilledAtEachStepGoesOn(t *testing.T) {
	t.Parallel()
	killed(t, func(t *testing.T, v *brokertest.VHost) (kills int) {
		for !ended(t, start(t, v, kills+1)) {
			kills++
		}
		if kills < 5 {
			t.Errorf("it was killed %d times only", kills)
		}
		return kills
	})
}

func TestAMoveThatIsKilledAtAnyMomentLosesNothing(t *testing.T) {
	t.Parallel()
	killed(t, func(t *testing.T, v *brokertest.VHost) (kills int) {
		for range 4 {
			c := start(t, v, 0)
			time.AfterFunc(100*time.Millisecond+rand.N(1500*time.Millisecond), func() { _ = c.Process.Kill() })
			if ended(t, c) {
				return kills
			}
			kills++
		}
		if !ended(t, start(t, v, 0)) {
			t.Error("it did not end")
		}
		return kills
	})
}

// Cut at any byte, a move goes on by itself.
func TestAMoveWhoseConnectionsAreCutGoesOn(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
				if v.Since4() != (kind == "quorum") && !brokertest.Long() {
					return // classic on 3.10 and quorum on 4.3 are enough for each change
				}
				old(v, kind)
				l := newLedger(t, v)
				l.disorder = kind == "quorum"
				l.publish("direct", "old", 2000)
				proxy := brokertest.NewProxy(t, v)
				m := mover(t, v, proxy.URL)
				cuts := 0
				cut := func() {
					if cuts++; cuts <= 10 {
						proxy.CutAfter(rand.Int64N(60_000))
					}
				}
				m.Report = func(s string) { t.Log(s); cut() }
				// Not while the first connection opens: the client takes that for a wrong
				// password, and the person who starts a move learns that.
				proxy.CutAfter(8_000 + rand.Int64N(60_000))
				stop := l.publishOn()
				err := m.Run(t.Context())
				stop()
				if err != nil {
					t.Fatal(err)
				}
				l.check(proxy.Cuts() * 32)
				t.Logf("cut %d times", proxy.Cuts())
			})
		})
	}
}
