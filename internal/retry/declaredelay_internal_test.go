package retry

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

// declarer is a connection that counts what is declared on it.
type declarer struct {
	silentBroker
	err      error
	declared int
}

func (d *declarer) Ready() bool { return true }

func (d *declarer) Declare(context.Context, delay.Topology) error { d.declared++; return d.err }

// What cannot be declared is tried again after 15 s, and what can expire is declared again when
// that is due; all else is declared once.
func TestWhenATopologyIsDeclaredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, refused := &declarer{silentBroker: silentBroker{&binding{}}}, errors.New("refused")
		d := NewDelayQueues(b, func() policy.Set { return nil }, 0, func(string, error) {})
		for _, c := range []struct {
			after    time.Duration
			within   time.Duration
			err      error // what RabbitMQ would answer
			want     error
			declared int
		}{
			{0, 0, refused, refused, 1},
			{time.Second, 0, nil, refused, 1},
			{tryAgainAfter - time.Second - 1, time.Second, nil, refused, 1},
			{1, 0, refused, refused, 2},
			{tryAgainAfter, 0, nil, nil, 3},
			{time.Second, 0, refused, nil, 3},
			{time.Hour, 0, refused, nil, 3},
			{0, time.Hour + time.Second, refused, nil, 3},
			{0, time.Hour, nil, nil, 4},
			{2 * time.Second, time.Second, nil, nil, 5},
			{time.Second, time.Second, nil, nil, 5},
			{1, time.Second, nil, nil, 6},
		} {
			time.Sleep(c.after)
			b.err = c.err
			if err := d.declare(t.Context(), "key", func() delay.Topology { return delay.Topology{} }, c.within); !errors.Is(err, c.want) || b.declared != c.declared {
				t.Errorf("%s later, within %s: %v, declared %d times; want %v, %d", c.after, c.within, err, b.declared, c.want, c.declared)
			}
		}
		d.Wait()
	})
}

// When a queue was lost, what it needs is declared again, and nothing else.
func TestOnlyALostQueueIsDeclaredAgain(t *testing.T) {
	d := NewDelayQueues(&declarer{silentBroker: silentBroker{&binding{}}}, func() policy.Set { return nil }, 0, func(string, error) {})
	defer d.Wait()
	lost, other := wayOfQueue{queue: "q"}, wayOfQueue{queue: "r"}
	for _, key := range []any{lost, other, "q", ""} {
		d.declared[key] = declaration{}
	}
	d.MarkLost("q")
	d.forgetLost()
	var left []any
	for _, key := range []any{lost, other, "q", ""} {
		if _, declared := d.declared[key]; declared {
			left = append(left, key)
		}
	}
	if !slices.Equal(left, []any{other, "q", ""}) || len(d.lostQueues) != 0 {
		t.Errorf("declared are %v, lost %v", left, d.lostQueues)
	}
}

// What a ticket needs is declared again when half of the time is over in which RabbitMQ has to
// confirm: it may expire before the confirm otherwise.
func TestWhatATicketNeedsIsDeclaredAgainInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &declarer{silentBroker: silentBroker{&binding{}}}
		d := NewDelayQueues(b, func() policy.Set { return policy.Set{{Name: "p", Queues: []string{"*"}}} }, 0, func(string, error) {})
		defer d.Wait()
		way, err := ttlqueue.NewLevels(ttlqueue.Quorum)
		if err != nil {
			t.Fatal(err)
		}
		m := &delayedMessage{way: way, rec: &store.Record{Queue: "q", Proven: true}}
		ticket := &delay.Ticket{Exchange: "x", DeclareFirst: &delay.Topology{}, ConfirmWithin: 10 * time.Second}
		for _, c := range []struct {
			after    time.Duration
			declared int // the first time also what the way needs
		}{{0, 2}, {5 * time.Second, 2}, {1, 3}, {5 * time.Second, 3}, {1, 4}} {
			time.Sleep(c.after)
			if err := d.prepare(t.Context(), m, ticket); err != nil || b.declared != c.declared {
				t.Errorf("%s later: declared %d times, %v; want %d", c.after, b.declared, err, c.declared)
			}
		}
	})
}
