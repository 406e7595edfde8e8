package delay_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/delay"
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

// Check refuses a policy that a way cannot follow, with the reason.
func TestAPolicyThatAWayCannotKeepIsRefused(t *testing.T) {
	levels := made(delay.NewLevels(delay.Quorum))
	fixed := made(delay.NewFixed(delay.Quorum, 10*second))
	dynamic := made(delay.NewDynamic(100 * time.Millisecond))
	ttl, mixed := delay.NewMessageTTL(delay.Quorum, false), delay.NewMessageTTL(delay.Quorum, true)
	ladder, fine := made(delay.NewLadder(second)), made(delay.NewLadder(time.Millisecond))
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
		{delay.Plugin{}, policy.Fixed(49 * day), policy.None, ""},
		{delay.Plugin{}, policy.Fixed(49 * day), policy.Fraction(0.2), "its jitter included"},
		{delay.Plugin{}, policy.Fixed(50 * day), policy.None, "delayed-exchange waits 49d"},
		{delay.Native{}, policy.Linear(second, second, 5*second), policy.Fraction(0.5), ""},
		{delay.Native{}, policy.Fixed(second), policy.None, ""},
		{delay.Native{}, policy.List(second, 2*second, 3*second, 3*second), policy.None, ""},
		{delay.Native{}, policy.List(second, 3*second, 3*second), policy.None, "use a linear backoff"},
		{delay.Native{}, policy.Exponential(second, 2, time.Hour), policy.None, "use a linear backoff"},
		{delay.Native{}, policy.Linear(second, 2*second, time.Hour), policy.None, "use a linear backoff"},
		{delay.Report{}, policy.Exponential(second, 2, 10*365*day), policy.None, ""},
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

// What Check accepts, Ticket accepts, and no more.
func TestEveryWayHasATicketForItsLongestDelay(t *testing.T) {
	for _, way := range []delay.Way{made(delay.NewLevels(delay.Quorum)), made(delay.NewFixed(delay.Classic, second)), made(delay.NewDynamic(second)),
		delay.NewMessageTTL(delay.Quorum, true), made(delay.NewLadder(second)), delay.Plugin{}, delay.Native{}, delay.Report{}} {
		l := way.Limits()
		if ticket, err := way.Ticket("q", l.Longest); err != nil || ticket.Delay < l.Longest {
			t.Errorf("%s: %s, %v", l.Name, ticket.Delay, err)
		}
		if _, err := way.Ticket("q", l.Longest+1); err == nil && !l.Linear && !l.ServiceDecides {
			t.Errorf("%s takes more than its longest delay", l.Name)
		}
		if l.Survives == "" || l.Declares == "" || l.Longest <= 0 || (l.Levels == nil) != (l.Step > 0 || l.Linear) {
			t.Errorf("%s does not say what it is: %+v", l.Name, l)
		}
	}
}

// Levels that a policy cannot reach are not declared; those that its consumers may ask for are.
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
		way := delay.For(&p, made(delay.NewLevels(delay.Quorum, all...)))
		l, queues := way.Limits(), way.Topology("q").Queues // two of them are no level's
		if l.Longest != tt.want || l.Levels[0] != second || len(queues) != len(l.Levels)+2 {
			t.Errorf("%d attempts, %s, up to %s asked for: %v of %v", tt.attempts, tt.backoff, tt.asked, l.Levels, queues)
		}
	}
}

func TestNativeNeedsRabbitMQ43(t *testing.T) {
	for version, refused := range map[string]bool{"3.10.8": true, "3.13.7": true, "4.0.0": true, "4.2.9": true, "4.3.0": false, "4.3.6": false,
		"4.3.0-rc.1": false, "4.10.0": false, "5.0.0-rc.1": false, "10.0.0": false, "something else": false, "": false} {
		if err := (delay.Native{}).Limits().CheckVersion(version); (err != nil) != refused {
			t.Errorf("native on %s: %v", version, err)
		}
		if err := (delay.Plugin{}).Limits().CheckVersion(version); err != nil {
			t.Errorf("delayed exchange on %s: %v", version, err) // its plugin is asked for by declaring
		}
	}
}
