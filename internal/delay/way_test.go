package delay_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/delay/binary"
	"github.com/redrive-mq/redrive/internal/delay/native"
	"github.com/redrive-mq/redrive/internal/delay/plugin"
	"github.com/redrive-mq/redrive/internal/delay/report"
	"github.com/redrive-mq/redrive/internal/delay/ttlqueue"
	"github.com/redrive-mq/redrive/policy"
)

const (
	second = time.Second
	day    = 24 * time.Hour
)

func made[W delay.Way](w W, err error) delay.Way {
	if err != nil {
		panic(err)
	}
	return w
}

// A policy that a way cannot keep is refused, with the reason.
func TestAPolicyThatAWayCannotKeepIsRefused(t *testing.T) {
	levels := made(ttlqueue.NewLevels(ttlqueue.Quorum))
	fixed := made(ttlqueue.NewFixed(ttlqueue.Quorum, 10*second))
	dynamic := made(ttlqueue.NewDynamic(100 * time.Millisecond))
	ttl, mixed := ttlqueue.NewMessageTTL(ttlqueue.Quorum, false), ttlqueue.NewMessageTTL(ttlqueue.Quorum, true)
	ladder, fine := made(binary.New(second)), made(binary.New(time.Millisecond))
	for _, tt := range []struct {
		way     delay.Way
		backoff policy.Backoff
		jitter  policy.Jitter
		refused string // "": it is taken
	}{
		{levels, policy.Exponential(second, 2, time.Hour), policy.None, ""},
		{levels, policy.Fixed(time.Hour + 1), policy.None, "waits 1h"},
		{levels, policy.Fixed(time.Hour), policy.Full, ""},
		{levels, policy.Fixed(time.Hour), policy.Fraction(1), ""}, // it never reaches the level
		{fixed, policy.Fixed(10 * second), policy.None, ""},
		{fixed, policy.Exponential(2*second, 2, 16*second), policy.None, "fixed waits 10s at most"},
		{dynamic, policy.Fixed(5 * 365 * day), policy.None, ""},
		{dynamic, policy.Fixed(6 * 365 * day), policy.None, "at most"},
		{ttl, policy.Fixed(time.Hour), policy.Fraction(0.5), ""},
		{ttl, policy.Exponential(second, 2, time.Hour), policy.None, "wait behind those with the long one"},
		{ttl, policy.List(2*second, second), policy.None, "wait behind those with the long one"},
		{ttl, policy.List(second, second, second), policy.None, ""},
		{mixed, policy.Exponential(second, 2, time.Hour), policy.None, ""},
		{ladder, policy.Fixed(8 * 365 * day), policy.None, ""},
		{ladder, policy.Fixed(8 * 365 * day), policy.Fraction(0.5), "its jitter included"},
		{ladder, policy.Fixed(9 * 365 * day), policy.None, "binary waits"},
		{fine, policy.Fixed(4 * day), policy.None, "binary waits 3d"},
		{plugin.Way{}, policy.Fixed(49 * day), policy.None, ""},
		{plugin.Way{}, policy.Fixed(49 * day), policy.Fraction(0.2), "its jitter included"},
		{plugin.Way{}, policy.Fixed(50 * day), policy.None, "delayed-exchange waits 49d"},
		{native.Way{}, policy.Linear(second, second, 5*second), policy.Fraction(0.5), ""},
		{native.Way{}, policy.Fixed(second), policy.None, ""},
		{native.Way{}, policy.List(second, 2*second, 3*second, 3*second), policy.None, ""},
		{native.Way{}, policy.List(second, 3*second, 3*second), policy.None, "use a linear backoff"},
		{native.Way{}, policy.Exponential(second, 2, time.Hour), policy.None, "use a linear backoff"},
		{native.Way{}, policy.Linear(second, 2*second, time.Hour), policy.None, "use a linear backoff"},
		{report.Way{}, policy.Exponential(second, 2, 10*365*day), policy.None, ""},
	} {
		p := policy.Policy{Name: "p", Queues: []string{"q"}, Attempts: 5, Backoff: tt.backoff, Jitter: tt.jitter}
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		l := tt.way.Limits()
		switch err := l.Check(&p); {
		case tt.refused == "" && err != nil:
			t.Errorf("%s, waits %v: %v", l.Name, p.Waits(), err)
		case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused) || !strings.Contains(err.Error(), `policy "p"`)):
			t.Errorf("%s, waits %v: %v, want %q", l.Name, p.Waits(), err, tt.refused)
		}
	}
}

// What Check accepts, Ticket accepts.
func TestEveryWayHasATicketForItsLongestDelay(t *testing.T) {
	for _, way := range []delay.Way{made(ttlqueue.NewLevels(ttlqueue.Quorum)), made(ttlqueue.NewFixed(ttlqueue.Classic, second)), made(ttlqueue.NewDynamic(second)),
		ttlqueue.NewMessageTTL(ttlqueue.Quorum, true), made(binary.New(second)), plugin.Way{}, native.Way{}, report.Way{}} {
		l := way.Limits()
		if ticket, err := way.Ticket("q", l.Longest); err != nil || ticket.Delay < l.Longest {
			t.Errorf("%s: %s, %v", l.Name, ticket.Delay, err)
		}
		if l.Survives == "" || l.Declares == "" || l.Longest <= 0 || (l.Levels == nil) != (l.Step > 0 || l.Linear) {
			t.Errorf("%s does not say what it is: %+v", l.Name, l)
		}
	}
}

// What a policy cannot reach is not declared; what its consumers may ask for is.
func TestAWayHasTheLevelsThatItsPolicyReaches(t *testing.T) {
	for _, tt := range []struct {
		attempts int
		backoff  policy.Backoff
		asked    time.Duration // MaxRetryAfter
		want     time.Duration // the longest level
	}{
		{8, policy.Exponential(second, 2, time.Hour), 0, time.Minute + 4*second},
		{4, policy.Exponential(second, 2, time.Hour), 0, 4 * second},
		{4, policy.Exponential(second, 2, time.Hour), 5 * second, 8 * second},
		{4, policy.List(3*second, second), second, 4 * second},
		{2, policy.Fixed(3 * time.Hour), 0, 4096 * 4 * second},
		{1, policy.Fixed(time.Hour), 0, second},
	} {
		var all []time.Duration
		for n := range 15 {
			all = append(all, second<<n)
		}
		p := policy.Policy{Name: "p", Queues: []string{"q"}, Attempts: tt.attempts, Backoff: tt.backoff, MaxRetryAfter: tt.asked}
		way := delay.For(&p, made(ttlqueue.NewLevels(ttlqueue.Quorum, all...)))
		l, queues := way.Limits(), way.Topology("q").Queues // two of them are no level's
		if l.Longest != tt.want || l.Levels[0] != second || len(queues) != len(l.Levels)+2 {
			t.Errorf("%d attempts, %s, up to %s asked for: %v of %v", tt.attempts, tt.backoff, tt.asked, l.Levels, queues)
		}
	}
}

func TestNativeNeedsRabbitMQ43(t *testing.T) {
	for version, refused := range map[string]bool{"3.10.8": true, "3.13.7": true, "4.0.0": true, "4.2.9": true, "4.3.0": false, "4.3.6": false,
		"4.10.0": false, "5.0.0-rc.1": false, "something else": false} {
		if err := (native.Way{}).Limits().CheckVersion(version); (err != nil) != refused {
			t.Errorf("native on %s: %v", version, err)
		}
		if err := (plugin.Way{}).Limits().CheckVersion(version); err != nil {
			t.Errorf("delayed exchange on %s: %v", version, err) // its plugin is asked for by declaring
		}
	}
}
