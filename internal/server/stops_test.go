package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/storetest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

// A message that was retried late says what stopped the retries of its queue meanwhile, also after a restart. What a
// caller may not see of errors is masked there too.
func TestALateRetrySaysWhatStoppedIt(t *testing.T) {
	ctx, at := t.Context(), func(minute int) time.Time {
		return time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC).Add(time.Duration(minute) * time.Minute)
	}
	kept, s := memstore.New(), newStops()
	late := storetest.Waiting("orders", 0, "")
	late.FailedAt, late.Due = at(-1), at(0)
	expect.NoError(t, kept.Add(ctx, []*store.Record{late}))
	claims, err := kept.Claim(ctx, store.Lane{Queue: "orders"}, at(0), 1, 1)
	expect.NoError(t, err)
	expect.Err(t, expect.ErrOf(kept.Finish(ctx, []store.Outcome{{Claim: claims[0], At: at(60)}})), nil, "finishing")

	say := func(minute int, queue string, kind retry.Kind, text string) {
		s.event(retry.Event{At: at(minute), Queue: queue, Kind: kind, Why: text, Error: text})
	}
	say(-9, "orders", retry.NoConsumer, "before it was due")
	say(-8, "orders", retry.ConsumerBack, "")
	say(9, "orders", retry.Failed, "Ann is out")
	say(10, "orders", retry.Opened, "9 of 10 failed")
	say(11, "orders", retry.Failed, "another")
	say(12, "orders", retry.HalfOpened, "")
	say(13, "orders", retry.Opened, "a probe failed")
	say(20, "orders", retry.Ramping, "")
	say(21, "orders", retry.Closed, "")
	say(22, "orders/x", retry.NoConsumer, "of another queue")
	say(23, "orders/x", retry.ConsumerBack, "")
	s.publish("orders", errors.New("the queue is full"), at(30))
	s.publish("orders", errors.New("it is still full"), at(31))
	s.publish("orders", nil, at(32))
	say(50, "orders", retry.NoConsumer, "the queue has no consumers")
	say(61, "orders", retry.Opened, "after it was retried")

	rules := mask.New([]mask.Entry{{Patterns: []string{"/Ann/"}}}, mask.DefaultBodies())
	shown := func(role auth.Role, stops func(string) []inspect.Stop) string {
		in := inspect.New(inspect.Config{Store: kept, Stops: stops, Mask: func() *mask.Rules { return rules }})
		d, err := in.Message(ctx, auth.Caller{Name: "ann", Role: role}, late.ID.String())
		expect.NoError(t, err)
		var all []string
		for _, h := range d.Timeline[0].LateBy {
			all = append(all, fmt.Sprintf("%s %s", h.Since.UTC().Format("04"), h.Why))
		}
		return strings.Join(all, "; ")
	}
	const want = "50 the queue has no consumers; 30 retries failed: the queue is full; 10 breaker open: 9 of 10 failed; its latest error: Ann is out"
	expect.Equal(t, shown(auth.Admin, s.of), want, "before they are written")
	s.write(ctx, kept, false)
	expect.Equal(t, shown(auth.Admin, s.of), want, "written, but for what is not over")
	expect.Equal(t, strings.Contains(shown(auth.Viewer, s.of), "Ann"), false, "a viewer sees what is masked")
	s.write(ctx, kept, true)
	expect.Equal(t, shown(auth.Admin, nil), want, "after a restart")

	count := func() (n int) {
		expect.NoError(t, kept.Entries(ctx, "stop/", "", func(store.Entry) (bool, error) { n++; return true, nil }))
		return n
	}
	for i := range 30 {
		say(100+2*i, "orders", retry.NoConsumer, "")
		say(101+2*i, "orders", retry.ConsumerBack, "")
		s.write(ctx, kept, false)
	}
	expect.Equal(t, count(), inspect.StopsKept+1, "are kept of both queues")
	for _, days := range []int{29, 31} {
		want := map[int]int{29: inspect.StopsKept + 1}[days]
		expect.NoError(t, inspect.ForgetStops(ctx, kept, at(200).Add(time.Duration(days)*24*time.Hour)))
		expect.Equal(t, count(), want, "are kept after %d days", days)
	}
}
