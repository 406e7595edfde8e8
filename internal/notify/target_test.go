package notify

import (
	"testing"
	"testing/synctest"
	"time"
)

// A route for a queue receives events of its forward targets too, also after a restart, and of
// no other queue's, whatever that is called.
func TestARouteForAQueueIsToldOfItsForwardTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(_ *Settings, r *Route) { r.Queues = []string{"orders"} })
		d.set(Condition{Kind: ForwardStopped, Queue: "orders", Target: "queue dead", Text: "full"},
			Condition{Kind: ForwardStopped, Queue: "mail", Target: "queue dead", Text: "full"},
			Condition{Kind: ForwardStopped, Queue: "orders to queue dead", Target: "queue more", Text: "full"})
		d.after(t, time.Minute, "10s orders to queue dead: messages are not forwarded: full")
		d.stop()
		d.open(t)
		d.after(t, 2*time.Minute) // told before the restart
		d.set()
		d.after(t, time.Minute, "3m25s resolved: orders to queue dead: messages are forwarded again")
	})
}
