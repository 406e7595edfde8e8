package inspect_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/memstore"
	"github.com/redrive-mq/redrive/internal/throttle"
)

// A rate that has just been used up is no news of a queue with nothing due.
func TestALimitIsShownWhileMessagesAreDue(t *testing.T) {
	for why, want := range map[throttle.WaitReason]string{throttle.WhyRate: "limited by rate", throttle.WhyInFlight: "limited by in_flight", "": ""} {
		if got := (&inspect.ThrottleView{State: "closed", LimitedBy: why}).LimitText(); got != want {
			t.Errorf("%q: %q, want %q", why, got, want)
		}
	}
	for due, want := range map[time.Duration]throttle.WaitReason{-time.Second: throttle.WhyRate, time.Hour: ""} {
		s := memstore.New()
		r := record("orders", store.Waiting, "x")
		r.Due = time.Now().Add(due)
		if err := s.Add(ctx, []*store.Record{r}); err != nil {
			t.Fatal(err)
		}
		d := newDesk(s)
		d.throttle = &inspect.ThrottleView{State: "closed", LimitedBy: throttle.WhyRate}
		page, err := d.Queues(ctx, operator, inspect.QueueQuery{})
		all := page.Queues
		if err != nil || len(all) != 1 || all[0].Throttle.LimitedBy != want {
			t.Errorf("due in %s: %+v, %v, want limited by %q", due, all, err, want)
		}
	}
}

func TestAThrottleInWords(t *testing.T) {
	for _, c := range []struct {
		throttle *inspect.ThrottleView
		want     string
		keeps    bool
	}{
		{nil, "", false},
		{&inspect.ThrottleView{State: "closed"}, "", false},
		{&inspect.ThrottleView{State: "open", Why: "9 of 10 failed"}, "breaker open: 9 of 10 failed", true},
		{&inspect.ThrottleView{State: "ramp"}, "breaker ramp", true},
		{&inspect.ThrottleView{State: "closed", NoConsumer: &time.Time{}}, "paused: no consumers", true},
		{&inspect.ThrottleView{State: "open", Forced: &inspect.Forced{To: "open", By: "dana"}}, "breaker set to open by dana", true},
		{&inspect.ThrottleView{State: "closed", Forced: &inspect.Forced{To: "closed", By: "dana"}}, "breaker set to closed by dana", false},
	} {
		if got := c.throttle.Text(); got != c.want || c.throttle.KeepsBack() != c.keeps {
			t.Errorf("%+v: %q, want %q; keeps messages back: %t", c.throttle, got, c.want, !c.keeps)
		}
	}
}

// The API's document names each limit that people can be shown.
func TestEachLimitIsInTheDocument(t *testing.T) {
	var limits []string
	for _, why := range throttle.WaitReasons {
		if why.IsLimit() {
			limits = append(limits, string(why))
		}
	}
	field, _ := reflect.TypeFor[inspect.ThrottleView]().FieldByName("LimitedBy")
	if enum := field.Tag.Get("enum"); enum != strings.Join(limits, ",") {
		t.Errorf("the enum of LimitedBy is %q, and the limits are %q", enum, limits)
	}
}
