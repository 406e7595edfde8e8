package delay

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// Thousands of delays share few queues, and none comes early or much later.
func TestDynamicRounding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, err := NewDynamic(time.Duration(rapid.Int64Range(1, 5000).Draw(t, "step")) * time.Millisecond)
		expect.NoError(t, err)
		wait := time.Duration(rapid.Int64Range(0, int64(maxDynamic)).Draw(t, "delay") >> rapid.IntRange(0, 40).Draw(t, "shift"))
		r := d.round(wait)
		if r < wait || r < d.step {
			t.Fatalf("%s became %s", wait, r)
		}
		if r-wait >= max(d.step, wait/10) && wait > 0 {
			t.Fatalf("%s became %s, which is more than a step and two digits away", wait, r)
		}
		if d.round(r) != r {
			t.Fatalf("%s becomes %s, and that %s", wait, r, d.round(r))
		}
		ticket, err := d.Ticket("q", wait)
		if err != nil || ticket.Delay != r {
			t.Fatalf("the ticket has the delay %s, %v", ticket.Delay, err)
		}
		if ttl, expires := ticket.DeclareFirst.Queues[0].Args["x-message-ttl"], ticket.DeclareFirst.Queues[0].Args["x-expires"].(int64); ttl != r.Milliseconds() ||
			expires < (ticket.ConfirmWithin+r).Milliseconds() {
			t.Fatalf("the queue has TTL %v and expiry %v for %s", ttl, expires, r)
		}
	})
}

// The number of queues is the documented one.
func TestDynamicMakesFewQueues(t *testing.T) {
	d, err := NewDynamic(100 * time.Millisecond)
	expect.NoError(t, err)
	names := map[string]bool{}
	for wait := time.Duration(0); wait <= time.Hour; wait += 7 * time.Millisecond { // half a million
		ticket, err := d.Ticket("q", wait)
		expect.NoError(t, err)
		names[ticket.Exchange] = true
	}
	if len(names) != d.count(time.Hour) || len(names) > 310 {
		t.Errorf("%d queues, and the limits say %d", len(names), d.count(time.Hour))
	}
	if !strings.Contains(d.Limits().Declares, "at most 306 for delays up to an hour") {
		t.Errorf("the limits say: %s", d.Limits().Declares)
	}
	if n := d.count(maxDynamic); n > 800 {
		t.Errorf("%d queues for all delays there are", n)
	}
}

func TestDelaysHaveNamesOfTheirOwn(t *testing.T) {
	wait := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(1, policy.LongestDelay.Milliseconds()>>rapid.IntRange(0, 35).Draw(t, "shift")).Draw(t, "ms")) * time.Millisecond
	})
	rapid.Check(t, func(t *rapid.T) {
		a := wait.Draw(t, "a")
		if d, err := time.ParseDuration(label(a)); err != nil || d != a {
			t.Fatalf("%s is called %q, which says %s, %v", a, label(a), d, err)
		}
	})
}

func TestLevelsRoundUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var levels []time.Duration
		for _, n := range rapid.SliceOfN(rapid.Int64Range(1, 100_000), 1, 8).Draw(t, "levels") {
			levels = append(levels, time.Duration(n)*time.Millisecond)
		}
		l, err := NewLevels(Quorum, levels...)
		expect.NoError(t, err)
		wait := time.Duration(rapid.Int64Range(0, int64(100*time.Second)).Draw(t, "delay"))
		least := time.Duration(-1) // the shortest level that is no shorter
		for _, level := range levels {
			if level >= wait && (least < 0 || level < least) {
				least = level
			}
		}
		ticket, err := l.Ticket("q", wait)
		if (err != nil) != (least < 0) || err == nil && ticket.Delay != least {
			t.Fatalf("%s with levels %v: %s, %v", wait, levels, ticket.Delay, err)
		}
	})
}

func TestMessageTTLRoundsToMilliseconds(t *testing.T) {
	for _, tt := range []struct {
		wait time.Duration
		want string
	}{{0, "0"}, {1, "1"}, {time.Millisecond, "1"}, {time.Millisecond + 1, "2"}, {policy.LongestDelay, "315360000000"}} {
		ticket, err := NewMessageTTL(Quorum, false).Ticket("q", tt.wait)
		if err != nil || ticket.Expiration != tt.want || ticket.Delay < tt.wait {
			t.Errorf("%d ns: %+v, %v", tt.wait, ticket, err)
		}
	}
}

// No two work queues share a delay queue, whatever they are called.
func TestMessageTTLQueuesHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]string{}
	long := strings.Repeat("x", 255)
	for _, work := range []string{"q", "quorum.q", "classic.q", "sha256.q", long, long[1:], long[:254] + "y"} {
		for _, kind := range []QueueType{Quorum, Classic} {
			name := NewMessageTTL(kind, false).queue(work)
			if len(name) > 255 {
				t.Errorf("%s: %d bytes", work, len(name))
			}
			if was, there := seen[name]; there {
				t.Errorf("%s of %s and %s share %s", kind, work, was, name)
			}
			seen[name] = string(kind) + " of " + work
		}
	}
	// A work queue cannot choose the hash of another.
	hashed := strings.TrimPrefix(NewMessageTTL(Quorum, false).queue(long), "redrive.delay.message-ttl.quorum.")
	if NewMessageTTL(Quorum, false).queue(hashed) == NewMessageTTL(Quorum, false).queue(long) {
		t.Error("a queue named like a hash shares the delay queue of the hashed one")
	}
}

func TestImpossibleWaysAreRefused(t *testing.T) {
	for _, d := range []time.Duration{0, -1, 1, time.Millisecond + 1, policy.LongestDelay + time.Millisecond} {
		if _, err := NewLadder(d); err == nil {
			t.Errorf("a unit of %s was taken", d)
		}
		if _, err := NewLevels(Quorum, time.Second, d); err == nil {
			t.Errorf("a level of %s was taken", d)
		}
		if _, err := NewFixed(Quorum, d); err == nil {
			t.Errorf("a fixed delay of %s was taken", d)
		}
		if _, err := NewDynamic(d); err == nil && d < policy.LongestDelay {
			t.Errorf("a step of %s was taken", d)
		}
	}
	if _, err := NewLadder(time.Second + time.Millisecond); err == nil {
		t.Error("a unit of more than a second was taken")
	}
	if l, err := NewLevels(Quorum, 2*time.Second, time.Second, 2*time.Second); err != nil || len(l.Limits().Levels) != 2 || l.Limits().Levels[0] != time.Second {
		t.Errorf("levels in disorder: %v, %v", l, err)
	}
}
