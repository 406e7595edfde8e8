package cli

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/internal/inspect"
)

// stranger draws what a stranger may put into a text: all of Unicode, bytes that
// are none, and what terminals obey.
func stranger(t *rapid.T, label string) string {
	return rapid.OneOf(rapid.String(), rapid.StringN(0, 300, -1),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"", "\x1b[2J", "\u009b31m", "\x1b]0;t\a", "\r\n", "\t", "\v\f\b\x7f", "\u202eb", "\u200b", "\u2028", "\xff\xfe", "e\u0301", "界", "-"})).Draw(t, label)
}

func text(table func(w io.Writer)) string {
	var b bytes.Buffer
	w := &tableWriter{to: &b}
	table(w)
	_ = w.Flush()
	return b.String()
}

// checkTerminal fails when text does anything but show itself, or has other than
// the lines it should.
func checkTerminal(t *rapid.T, text string, lines int) {
	if !utf8.ValidString(text) {
		t.Fatalf("not UTF-8: %q", text)
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Fatalf("a terminal obeys %q", text[i:])
	}
	if got := strings.Count(text, "\n"); got != lines {
		t.Fatalf("%d lines, want %d: a text forged a line in %q", got, lines, text)
	}
}

func TestAMessageCannotSpeakToTheTerminal(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	rapid.Check(t, func(t *rapid.T) {
		var page inspect.Page
		for range rapid.IntRange(1, 4).Draw(t, "messages") {
			m := inspect.Message{ID: "0198f0a0-0000-7000-8000-000000000001", State: "parked", Queue: stranger(t, "queue"), Reason: stranger(t, "reason"),
				ParkedFor: stranger(t, "parked for"), Error: stranger(t, "error"), Exchange: stranger(t, "exchange"), Policy: stranger(t, "policy")}
			page.Messages = append(page.Messages, m)
		}
		out := text(func(w io.Writer) { table(w, page, now) })
		checkTerminal(t, out, 1+len(page.Messages))
		for line := range strings.Lines(out) {
			// Two spaces between columns: three of texts, and the fixed ones.
			if n := utf8.RuneCountInString(line); n > 36+6+7+3+4+3*longestOnRow+2*7+1 {
				t.Fatalf("a line of %d characters: %q", n, line)
			}
		}
	})
}

func TestAStatusCannotSpeakToTheTerminal(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	rapid.Check(t, func(t *rapid.T) {
		st := inspect.Overview{Version: stranger(t, "version"), Broker: stranger(t, "broker"), Since: now}
		for range rapid.IntRange(0, 3).Draw(t, "reasons") {
			st.Health.Reasons = append(st.Health.Reasons, inspect.HealthReason{State: inspect.Wrong, Queue: stranger(t, "its queue"), Text: stranger(t, "reason"), Since: &now})
		}
		st.Health = inspect.HealthOf(st.Health.Reasons)
		st.Ready = st.Health.State == inspect.Well
		elsewhere := false
		for range rapid.IntRange(0, 3).Draw(t, "queues") {
			way := rapid.SampledFrom([]string{"", "disk", "levels"}).Draw(t, "way")
			elsewhere = elsewhere || way == "levels"
			st.Queues = append(st.Queues, inspect.Queue{Name: stranger(t, "queue"), Policy: stranger(t, "policy"), Way: way, NextDue: &now, Oldest: &now})
		}
		for range rapid.IntRange(0, 3).Draw(t, "replicas") {
			st.Replicas = append(st.Replicas, inspect.Replica{ID: stranger(t, "id"), Address: stranger(t, "address"), Version: stranger(t, "version"),
				Since: now, Beat: now, Problems: []string{stranger(t, "its problem")}})
		}
		lines := 2 + len(st.Health.Reasons) + 1
		if len(st.Replicas) > 0 {
			lines += 3 + len(st.Replicas) // a line before, the head, a line after
		}
		if len(st.Queues) > 0 {
			lines += 1 + len(st.Queues) // the empty line and the head
		}
		if elsewhere {
			lines += 2 // that RabbitMQ's are not counted
		}
		checkTerminal(t, text(func(w io.Writer) { status(w, st, now) }), lines)
	})
}

func TestASilentReplicaIsNotCalledReady(t *testing.T) {
	now := time.Now()
	replica := func(id string, ago time.Duration) inspect.Replica {
		return inspect.Replica{ID: id, Since: now.Add(-time.Hour), Beat: now.Add(-ago), Ready: true}
	}
	st := inspect.Overview{Since: now, Replicas: []inspect.Replica{replica("one", time.Second), replica("two", 3*time.Second)}}
	shown := text(func(w io.Writer) { status(w, st, now) })
	if !regexp.MustCompile(`(?m)^one .* ready$`).MatchString(shown) || !regexp.MustCompile(`(?m)^two .* not heard of$`).MatchString(shown) {
		t.Errorf("it shows\n%s", shown)
	}
}

// Printable text of any script is shown as it is.
func TestCellsKeepWhatIsHarmless(t *testing.T) {
	for in, want := range map[string]string{
		"orders":                            "orders",
		"":                                  "-",
		"заказы 注文 é":                       "заказы 注文 é",
		"a\tb\nc":                           "a�b�c",
		"\x1b[31mred":                       "�[31mred",
		"\xff":                              "�",
		strings.Repeat("注", longestOnRow+1): strings.Repeat("注", longestOnRow-1) + "…",
	} {
		if got := cell(in); got != want {
			t.Errorf("cell(%q) is %q, want %q", in, got, want)
		}
	}
}

// A message that was due in the past is due now, not in a negative time.
func TestDueTimesAreForPeople(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for late, want := range map[time.Duration]string{
		-time.Hour: "now", 0: "now", 1500 * time.Millisecond: "in 1.5s", 90 * time.Minute: "in 1h 30m",
	} {
		due := now.Add(late)
		out := text(func(w io.Writer) {
			table(w, inspect.Page{Messages: []inspect.Message{{ID: "x", State: "waiting", Due: &due}}}, now)
		})
		if !strings.Contains(out, "  "+want+"  ") {
			t.Errorf("due in %s: %q is not in\n%s", late, want, out)
		}
	}
}

// status says "not ready" when the service says so, and what is wrong as the page does.
func TestStatusSaysWhatIsWrong(t *testing.T) {
	since := time.Unix(1_700_000_000, 0)
	now := since.Add(3 * time.Minute)
	open := inspect.HealthReason{State: inspect.Wrong, Kind: "breaker", Queue: "orders", Text: "breaker open: 9 of 10 failed again", Since: &since}
	parked := inspect.HealthReason{State: inspect.Attention, Kind: "parked", Text: "834 messages are parked"}
	for _, c := range []struct {
		ready   bool
		reasons []inspect.HealthReason
		want    string
	}{
		{true, nil, "ready: nothing is wrong\n"},
		{true, []inspect.HealthReason{parked}, "ready: needs attention\nattention: 834 messages are parked\n"},
		{true, []inspect.HealthReason{parked, open}, "ready: something is wrong\nwrong: queue orders: breaker open: 9 of 10 failed again (3m ago)\nattention: 834 messages are parked\n"},
		{false, []inspect.HealthReason{{State: inspect.Wrong, Text: "intake: not connected"}}, "not ready: something is wrong\nwrong: intake: not connected\n"},
	} {
		said := text(func(w io.Writer) {
			health(w, inspect.Overview{Since: since, Ready: c.ready, Health: inspect.HealthOf(c.reasons)}, now)
		})
		if _, said, _ = strings.Cut(said, "\n"); said != c.want {
			t.Errorf("it says %q, want %q", said, c.want)
		}
	}
}
