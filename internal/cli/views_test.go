package cli

import (
	"bytes"
	stdcmp "cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/doctor"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/inspect/inspecttest"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/simulate"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// A command that is done reports it: what the service says to that is a line, where one is expected to answer.
func TestWhatIsDoneIsReported(t *testing.T) {
	var got []string
	var away error
	status := http.StatusNoContent
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		expect.NoError(t, err)
		got = append(got, fmt.Sprintf("%s %s %s %.120s", r.Method, r.URL.Path, r.Header.Get("Authorization"), body))
		w.WriteHeader(status)
	}))
	defer service.Close()
	report := func(named bool, queues ...string) string {
		var out bytes.Buffer
		p := &program{err: &out, address: service.URL, named: named, getenv: func(name string) string {
			return map[string]string{"REDRIVE_TOKEN": "secret"}[name]
		}}
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // by Ctrl-C, after some were done
		p.report(ctx, actions.Enroll, queues, func(ctx context.Context) (actions.Place, error) {
			return actions.Place{Cluster: "rabbit@here", VHost: "/"}, stdcmp.Or(ctx.Err(), away)
		})
		return out.String()
	}
	expect.Equal(t, report(true, "a", "b"), "", "it prints")
	expect.Equal(t, strings.Join(got, "\n"),
		`POST /api/v1/audit Bearer secret {"action":"enroll","queues":["a","b"],"cluster":"rabbit@here","vhost":"/"}`, "it sends")
	away = errors.New("RabbitMQ is gone")
	expect.Contains(t, report(true, "a"), "where it was done is not known", "not in the audit log: RabbitMQ is gone")
	away = nil
	report(true)
	expect.Equal(t, len(got), 1, "with nothing done it has asked … times")
	report(true, slices.Repeat([]string{"a"}, actions.MaxReported+1)...)
	expect.Equal(t, len(got), 3, "with many queues it has asked … times")
	for _, status = range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusBadGateway} {
		expect.Equal(t, report(false, "a"), "", "it prints for %d where no address is given", status)
		if said := report(true, "a"); !strings.HasPrefix(said, "It is done, but not in the audit log: ") || strings.Count(said, "\n") != 1 {
			t.Errorf("%d: it says %q", status, said)
		}
	}
	service.Close()
	expect.Equal(t, report(false, "a"), "", "it prints for no service where no address is given")
	if said := report(true, "a"); !strings.Contains(said, "no service answers") || strings.Count(said, "\n") != 1 {
		t.Errorf("without a service it says %q", said)
	}
}

// fill puts a stranger's texts into all that holds text, and something into the rest.
func fill(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(stranger(t, "text"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int64:
		v.SetInt(rapid.Int64Range(0, 1e6).Draw(t, "number"))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(t, "there") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(rapid.Int64Range(0, 2e9).Draw(t, "time"), 0).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	}
}

func filled[T any](t *rapid.T) (v T) {
	fill(t, reflect.ValueOf(&v).Elem())
	return v
}

// views draws each table with what strangers say, and returns how many lines it should have; 0: any number.
var views = map[string]func(*rapid.T, io.Writer, time.Time) (lines int){
	"preview": shown(func(w io.Writer, p operations.Plan, now time.Time) {
		d := action{canary: 10, rate: 50}
		preview(w, p, d.starts(&p, false), now)
	}),
	"message":    shown(detail),
	"queue":      shown(queueDetail),
	"ledger":     shown(ledger),
	"ended":      shown(func(w io.Writer, o operations.Operation, _ time.Time) { ended(w, o, o.Leads) }),
	"messages":   drawn(inspect.MessageColumns),
	"groups":     drawn(inspect.GroupColumns),
	"queues":     drawn(queueColumns(time.Now())),
	"operations": drawn(operations.Columns),
	"audit":      drawn(auditColumns),
	"tail":       shown(failed),
	"status": func(t *rapid.T, w io.Writer, now time.Time) int {
		st := filled[inspect.Overview](t)
		// The service, two conditions, two notices, what waits; replicas and queues, with their heads.
		lines := 1 + 2 + 2 + 1 + 4 + 4
		if st.Ready {
			lines++
		}
		if st.MoreQueues > 0 {
			lines += 2
		}
		for i := range st.Queues {
			st.Queues[i].Way = rapid.SampledFrom([]string{"", "disk", "redis", "levels"}).Draw(t, "way")
		}
		if slices.ContainsFunc(st.Queues, func(q inspect.Queue) bool { return q.Way == "levels" }) {
			lines += 2 // that RabbitMQ's are not counted
		}
		if n := len(slices.DeleteFunc(slices.Clone(st.Queues), func(q inspect.Queue) bool { return q.Pause == nil })); n > 0 {
			lines += min(n, 4) // the first three, and how many more
		}
		status(w, st, now)
		return lines
	},
	"progress": func(t *rapid.T, w io.Writer, _ time.Time) int {
		(&meter{w: w}).operation(filled[operations.Operation](t))
		return 1
	},
	"formats": func(t *rapid.T, w io.Writer, _ time.Time) int {
		format := rapid.SampledFrom([]string{"json", "jsonl", "yaml", "csv", "name"}).Draw(t, "format")
		all := filled[[]inspect.Group](t)
		must(t, list(&program{out: w, format: format}, all, all, func(g inspect.Group) string { return g.Queue }, nil))
		return 0
	},
	"bar": func(t *rapid.T, w io.Writer, _ time.Time) int {
		var b bytes.Buffer
		(&meter{w: &b, draws: true}).operation(filled[operations.Operation](t))
		must(t, errOf(io.WriteString(w, strings.TrimPrefix(b.String(), "\r"))))
		return 0
	},
	"export": func(t *rapid.T, w io.Writer, _ time.Time) int {
		h := &lineWriter{to: func(line []byte) error { return errOf(io.WriteString(w, harmless(string(line)))) }}
		for _, piece := range rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "pieces") {
			must(t, errOf(h.Write(piece)))
		}
		return 0
	},
}

func shown[T any](view func(io.Writer, T, time.Time)) func(*rapid.T, io.Writer, time.Time) int {
	return func(t *rapid.T, w io.Writer, now time.Time) int {
		view(w, filled[T](t), now)
		return 0
	}
}

func drawn[T any](columns []column[T]) func(*rapid.T, io.Writer, time.Time) int {
	return func(t *rapid.T, w io.Writer, now time.Time) int {
		all := filled[[]T](t)
		rows(w, columns, all, now)
		return 1 + len(all)
	}
}

// No view does anything to a terminal but show itself, and no text forges a line.
func TestNoViewSpeaksToTheTerminal(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, draw := range views {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				lines := 0
				out := text(func(w io.Writer) { lines = draw(t, w, now) })
				if !utf8.ValidString(out) {
					t.Fatalf("not UTF-8: %q", out)
				}
				if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
					t.Fatalf("a terminal obeys %q", out[i:])
				}
				if n := strings.Count(out, "\n"); lines > 0 && n != lines {
					t.Fatalf("%d lines, want %d, in %q", n, lines, out)
				}
			})
		})
	}
}

// What is written as YAML is read by others as what it was.
func TestYAMLMeansTheSameAsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := map[string]any{stranger(t, "name"): filled[[]inspect.Group](t), "empty": []any{}, "none": map[string]any{}, "yes": "no", "n": nil, "deep": [][]int{{1, 2}, {}}, "wide": "\U000e0001\U0001f600"}
		text, err := yamlOf(v)
		must(t, err)
		var got, want any
		if err := yaml.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		asJSON, _ := json.Marshal(got)
		_ = json.Unmarshal(asJSON, &got)
		asJSON, _ = json.Marshal(v)
		_ = json.Unmarshal(asJSON, &want)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%s\nin\n%s", d, text)
		}
	})
}

// JSON that is made harmless means what it meant.
func TestHarmlessJSONMeansTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := strings.ToValidUTF8(stranger(t, "text"), "\ufffd")
		out, err := jsonOf(want, "")
		var got string
		if err == nil {
			err = json.Unmarshal([]byte(out), &got)
		}
		if err != nil || got != want {
			t.Fatalf("%q became %q (%v)", want, got, err)
		}
	})
}

func TestCSVHasNoFormulas(t *testing.T) {
	var out bytes.Buffer
	all := []inspect.Queue{{Name: "=HYPERLINK(1)", Policy: "@x"}}
	must(t, listColumns(&program{out: &out, format: "csv"}, all, all, queueColumns(time.Now())))
	head, row, _ := strings.Cut(out.String(), "\n")
	if !strings.HasPrefix(head, "queue,policy,way,waiting,") || !strings.HasPrefix(row, "'=HYPERLINK(1),'@x,") {
		t.Errorf("%s\n%s", head, row)
	}
	names, cells := inspect.CSV[inspect.Message]()
	at, size := slices.Index(names, "size"), 12
	expect.Equal(t, cells(inspect.Message{Size: &size})[at]+cells(inspect.Message{})[at], "12", "a size that is known, and one that is not")
	// What RabbitMQ says of a queue is there, as in the table.
	columns, queue := inspect.CSV[inspect.Queue]()
	for i, at := range []*inspect.AtBroker{nil, {Exists: true, Kind: "quorum", Consumers: 2, Ready: 5}} {
		cells := queue(inspect.Queue{Name: "orders", Broker: at})
		for name, want := range map[string]string{"queue": "orders", "kind": []string{"", "quorum"}[i], "consumers": []string{"", "2"}[i]} {
			expect.Equal(t, cells[slices.Index(columns, name)], want, "%s", name)
		}
	}
}

// A list without rows says so, beside the data.
func TestNothingFoundIsSaid(t *testing.T) {
	for query, want := range map[string]string{
		"": "There is nothing to show.\n", "state:parked": "Nothing matches \"state:parked\".\n",
		"list": "Nothing matches \"list\". A word without a field is searched for in bodies and errors.\n",
	} {
		var errOut bytes.Buffer
		var out strings.Builder
		p := &program{out: &out, err: &errOut, format: "table", query: query}
		must(t, listColumns(p, nil, []inspect.Queue(nil), queueColumns(time.Now())))
		expect.Equal(t, out.String(), "", "on standard output, the query %q", query)
		expect.Equal(t, errOut.String(), want, "the query %q", query)
		p.format = "csv"
		must(t, listColumns(p, nil, []inspect.Queue(nil), queueColumns(time.Now())))
		expect.Equal(t, errOut.String(), want, "as CSV, the query %q", query)
	}
}

func TestTimesAsPeopleSayThem(t *testing.T) {
	for text, ok := range map[string]bool{"in 10m": true, "in 2d": true, "2026-11-21T18:30:00Z": true, "2026-11-21T18:30:00+02:00": true,
		"10m": false, "in -5m": false, "in 0s": false, "tomorrow": false, "2026-11-21 18:30": false} {
		if got, err := parseWhen(text); (err == nil) != ok || ok && got == nil {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestNumbersOfThings(t *testing.T) {
	for n, want := range map[int64]string{0: "0 messages", 1: "1 message", 999: "999 messages", 1204: "1,204 messages", 1234567: "1,234,567 messages"} {
		expect.Equal(t, messages(n), want, "%d", n)
	}
}

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
		"orders":                        "orders",
		"":                              "-",
		"заказы 注文 é":                   "заказы 注文 é",
		"a\tb\r\nc\n":                   "a b ⏎ c",
		"\x1b[31mred":                   "�[31mred",
		"\xff":                          "�",
		strings.Repeat("注", maxOnRow+1): strings.Repeat("注", maxOnRow-1) + "…",
	} {
		expect.Equal(t, cell(in), want, "cell(%q)", in)
	}
}

// A message that was due just now is due now, not in a negative time; of a late one it is said how late.
func TestDueTimesAreForPeople(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for late, want := range map[time.Duration]string{
		-time.Hour: "1h ago", -4 * time.Second: "now", 0: "now",
		1500 * time.Millisecond: "in 1.5s", 90 * time.Minute: "in 1h 30m",
	} {
		due := now.Add(late)
		out := text(func(w io.Writer) {
			rows(w, inspect.MessageColumns, []inspect.Message{{ID: "x", State: "waiting", Due: &due},
				{ID: "y", State: "waiting", Due: &due, Held: "breaker open"}}, now)
		})
		expect.Equal(t, strings.Count(out, "  "+want+"  "), 2, "when they are due")
		expect.Contains(t, out, "what holds one back", "  HELD BACK  ", "  breaker open  ")
		none := text(func(w io.Writer) { rows(w, inspect.MessageColumns, []inspect.Message{{ID: "x"}}, now) })
		expect.Equal(t, strings.Contains(none, "HELD BACK"), false, "where none is held back, the column")
		none = text(func(w io.Writer) {
			detail(w, inspect.Detail{Message: inspect.Message{State: "parked"}, HeldBy: []inspect.Hold{{Why: "paused by ana"}}}, now)
		})
		expect.Contains(t, strings.Join(strings.Fields(none), " "), "a parked one", "A replay waits paused by ana")
		if !strings.Contains(out, "  "+want+"  ") {
			t.Errorf("due in %s: %q is not in\n%s", late, want, out)
		}
	}
}

// status says "not ready" when the service says so, and not for what is wrong with single
// queues.
func TestStatusSaysReadyAsTheServiceDoes(t *testing.T) {
	intake := condition.Condition{Kind: condition.Intake, Text: "not connected", NotReady: true}
	queue := condition.Condition{Kind: condition.Unreachable, Queue: "orders", Text: "no such queue"}
	for _, c := range []struct {
		ready bool
		holds []condition.Condition
		want  string
	}{
		{true, nil, "ready: nothing is wrong\n"},
		{true, []condition.Condition{queue}, "ready: 1 thing is wrong\nqueue orders: no such queue\n"},
		{false, []condition.Condition{intake}, "not ready: intake: not connected\n"},
		{false, []condition.Condition{intake, queue}, "not ready: intake: not connected\nqueue orders: no such queue\n"},
		{false, nil, "not ready\n"}, // to callers without permission to know why
	} {
		var b strings.Builder
		r := inspect.Replica{ID: "one", Beat: time.Now(), Ready: c.ready, Conditions: c.holds}
		verdict := []string{"nothing is wrong", "1 thing is wrong", "2 things are wrong"}[len(c.holds)]
		status(&b, inspect.Overview{Since: time.Now(), Ready: c.ready, Verdict: verdict, Conditions: c.holds, Replicas: []inspect.Replica{r}},
			time.Now())
		_, said, _ := strings.Cut(b.String(), "\n")
		if !strings.HasPrefix(said, c.want) || strings.Count(b.String(), "not ready") != map[bool]int{true: 0, false: 2}[c.ready] {
			t.Errorf("ready %v, %q: it says %q, want %q", c.ready, c.holds, said, c.want)
		}
	}
}

func fitted(width int, text string) string {
	var b bytes.Buffer
	w := &tableWriter{to: &b, width: width}
	_, _ = w.Write([]byte(text))
	_ = w.Flush()
	return b.String()
}

const (
	longName = "shop.warehouse.orders.created.by.the.partner.in.the.north.retry"
	oneID    = "0198f0a0-0000-7000-8000-000000000001"
)

var wideTable = "title of the table, which is no row\nID\tQUEUE\tSTATE\tWHY\n" +
	oneID + "\t" + longName + "\tparked\t" + strings.Repeat("the card was declined ", 6) + "\nx\torders\twaiting\t-\n\nafter\n"

func TestATableFitsTheTerminal(t *testing.T) {
	if out := fitted(0, wideTable); !strings.Contains(out, longName) || strings.Contains(out, "…") {
		t.Errorf("without a terminal it is cut:\n%s", out)
	}
	for _, width := range []int{100, 120, 200} {
		out := fitted(width, wideTable)
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, " \n")); n > width {
				t.Errorf("a line has %d characters, more than %d:\n%s", n, width, line)
			}
		}
		if !strings.Contains(out, oneID) || !strings.Contains(out, "STATE") || !strings.Contains(out, "parked ") || !strings.HasSuffix(out, "\nafter\n") {
			t.Errorf("at %d, what must stay is cut:\n%s", width, out)
		}
	}
	// Of any column, whatever its heading.
	if out := fitted(60, "OUTCOME\tNEW\n"+strings.Repeat("done ", 20)+"\t"+oneID+"\n"); !strings.Contains(out, oneID) || !strings.Contains(out, "…") {
		t.Error(out)
	}
	// Too narrow for ids, names of ordinary length and headings: they stay.
	if out := fitted(20, wideTable); !strings.Contains(out, oneID) || !strings.Contains(out, longName[:maxQueue-1]+"…") {
		t.Error(out)
	}
}

// At 80 columns no line is longer, ids and names of queues are whole, long text is below its row, and what is left
// out is said.
func TestTablesAreReadableAt80Columns(t *testing.T) {
	now := time.Now()
	due, longAgo := now.Add(time.Hour), now.Add(-22*time.Hour-59*time.Minute-9*time.Second)
	why, size := strings.Repeat("the card was declined ", 6), 1204
	queue := inspect.Queue{Name: "shop.warehouse.orders", Policy: "warehouse", Way: "disk", Waiting: 12, Parked: 1204, NextDue: &due, Oldest: &now}
	for name, c := range map[string]struct {
		draw  func(io.Writer)
		wants []string
	}{
		"messages": {func(w io.Writer) {
			rows(w, inspect.MessageColumns, []inspect.Message{{ID: oneID, Queue: queue.Name, State: "waiting",
				Attempt: 3, Due: &due, Reason: "rejected", Size: &size, Error: why}}, now)
		}, []string{"^ID +QUEUE +STATE +WHEN$", "^" + oneID + " +" + queue.Name + " +waiting +in 1h$", "^    why: the card was declined ", "^    card was declined the card was declined the card was declined $",
			"^Left out: SIZE, REASON, ATTEMPT; --wide shows all.$"}},
		"paused": {func(w io.Writer) {
			paused := queue
			paused.Pause = &inspect.QueuePause{By: "dana", Since: now, Reason: "a leak"}
			paused.Throttle = &inspect.ThrottleView{State: "open", Why: "9 of 10 failed"}
			health(w, inspect.Overview{Ready: true, Since: now, Queues: []inspect.Queue{paused, queue, paused, paused, paused}}, now)
		}, []string{"(?s)^queue shop.warehouse.orders: paused now by dana: a leak; its breaker is open: 9\\nof 10 failed; no",
			"^and 1 more paused: redrive queues$"}},
		"status": {func(w io.Writer) { status(w, inspect.Overview{Since: now, Queues: []inspect.Queue{queue}}, now) },
			[]string{"^QUEUE +POLICY +WAITING +NEXT DUE +PARKED +FAILED/MIN$", "^Left out: PARKED/MIN, RETRIED/MIN, WAITS IN; "}},
		"queues": {func(w io.Writer) { rows(w, queueColumns(now), []inspect.Queue{queue}, now) },
			[]string{"^QUEUE +CONSUMERS +READY +WAITING +PARKED +NEXT DUE +POLICY$", "warehouse\nLeft out: KIND, DISCARDED, UNACKED;"}},
		"groups": {func(w io.Writer) {
			rows(w, inspect.GroupColumns, []inspect.Group{{ID: "5a1f0c2b9e3d4a76", Queue: queue.Name, Error: why, First: now, Last: now,
				Hours: []int64{0, 0, 0, 1, 1200}, Note: "ticket 4711",
				GroupState: inspect.GroupState{State: inspect.Acknowledged, StateNote: "by Ann"}}}, now)
		}, []string{"^ID +QUEUE +WAITING +PARKED +LAST +NOTE$", "^5a1f0c2b9e3d4a76 +" + queue.Name + " +0 +0 +now +ticket 4711$",
			"(?s)\n    what: the card.*\n    failed: 1,201 in 24 h, new; since 20[^\n]+UTC\n" +
				"    state: acknowledged; by Ann\n$"}},
		"an error in several queues": {func(w io.Writer) {
			rows(w, inspect.GroupColumns, []inspect.Group{{ID: "5a1f0c2b9e3d4a76", ErrorID: "5a1f0c2b9e3d4a77",
				Queue: queue.Name, Same: make([]string, 12),
				Error: why, First: now, Last: now, States: map[string]int{inspect.Open: 12,
					inspect.Ignored: 1}, GroupState: inspect.GroupState{State: inspect.Open}}}, now)
		}, []string{"^ID +QUEUE +WAITING +PARKED +LAST$", "^5a1f0c2b9e3d4a77 +" + queue.Name + " and 12 more +0 +0 +now$",
			"\n    state: open in 12, ignored in 1\n$"}},
		"ledger": {func(w io.Writer) {
			rows(w, inspect.LedgerColumns, []inspect.LedgerLine{{Queue: queue.Name, In: 1e6}}, now)
		}, []string{"^QUEUE +IN .*UNACCOUNTED$"}},
		"operations": {func(w io.Writer) {
			rows(w, operations.Columns, []operations.Operation{{Plan: operations.Plan{ID: oneID, Query: why}, State: "finished"}}, now)
		}, []string{"^" + oneID, "^    on: the card"}},
		"audit": {func(w io.Writer) {
			rows(w, auditColumns, []audit.Entry{{At: now, Who: "dana", Did: "operation.start", Outcome: "done", On: why}}, now)
		}, []string{"^AT +WHO .*OUTCOME", " dana .*start operation +0 +begun$", "^    on: the card"}},
		"paused queues": {func(w io.Writer) {
			paused := queue
			paused.Pause = &inspect.QueuePause{By: "dana", Since: now}
			paused.NextDue, paused.Throttle = &now, &inspect.ThrottleView{State: "half-open", Why: "up to 3 probes are sent"}
			rows(w, queueColumns(now), []inspect.Queue{paused}, now)
			paused.Pause, paused.Throttle = nil, &inspect.ThrottleView{State: "open", Why: "9 of 10 failed", Until: &longAgo}
			rows(w, queueColumns(longAgo.Add(-13*time.Second)), []inspect.Queue{paused}, now)
		}, []string{"^    retries: paused now by dana; its breaker is half-open; no probe is sent\n    while it is paused$",
			"^    retries: breaker open: 9 of 10 failed; next probe in 13s$", " paused +warehouse$", " breaker open$"}},
		"parked messages": {func(w io.Writer) {
			rows(w, inspect.MessageColumns, []inspect.Message{{ID: oneID, Queue: queue.Name, State: "parked", Attempt: 3,
				Error: "no stock", ParkedFor: "it failed 3 times", ParkedAt: &longAgo}}, now)
		}, []string{"^ID +QUEUE +STATE +WHEN$", "^" + oneID + " +" + queue.Name + " +parked +23h ago$", "^    why: no stock; it failed 3 times$",
			"^Left out: SIZE, ATTEMPT; "}},
		"headers": {func(w io.Writer) {
			detail(w, inspect.Detail{Message: inspect.Message{ID: oneID}, Headers: []inspect.Header{{Name: "x-forwarded-original-routing-key-of-shop", Type: "string", From: "RabbitMQ", Value: why}}}, now)
		}, []string{"^x-forwarded-original-routing-key-of-shop  string  RabbitMQ  the card was$", "^ {60}declined the card$"}},
		"failures": {func(w io.Writer) {
			detail(w, inspect.Detail{Message: inspect.Message{ID: oneID, Queue: queue.Name, Error: why}, Timeline: []inspect.Step{
				{Attempt: 1, Failed: now, Reason: "rejected", Error: why, Delay: "10s", Ended: &now, Ending: "retried", Why: why}}}, now)
		}, []string{"^Error +the card was declined [a-z ]+$", "^ {14}the card was", "^    ended: retried ", "^    why: the card was", "^    the card was", "^    was declined"}},
	} {
		var b strings.Builder
		w := &tableWriter{to: &b, width: 80}
		c.draw(w)
		must(t, w.Flush())
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, " \n")); n > 80 {
				t.Errorf("%s: a line has %d characters: %s", name, n, line)
			}
		}
		for _, want := range append(c.wants, "(?s)"+queue.Name+"|"+oneID+"|dana") {
			if !regexp.MustCompile("(?m)" + want).MatchString(b.String()) {
				t.Errorf("%s: %q is not in\n%s", name, want, b.String())
			}
		}
		if whole := text(c.draw); strings.Contains(whole, "Left out") || strings.Contains(whole, "…") {
			t.Errorf("%s: without a terminal it is cut:\n%s", name, whole)
		}
	}
}

// No line of a simulation is wider than the terminal.
func TestASimulationFits80Columns(t *testing.T) {
	p := policy.Default()
	p.Name = "orders"
	r, err := simulate.Run(t.Context(), simulate.Options{Policy: p, Outage: time.Minute, Rate: 2,
		Rules: throttle.Rules{Rate: 200, InFlight: 10000}})
	must(t, err)
	var b strings.Builder
	w := &tableWriter{to: &b, width: 80}
	simulation(w, r)
	must(t, w.Flush())
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(line); n > 81 {
			t.Errorf("a line has %d characters: %s", n, line)
		}
	}
	expect.Contains(t, strings.Join(strings.Fields(b.String()), " "), "it shows", "policy orders · exponential from 1s",
		"10000 in flight WAY RETRIES", "RETRIES reach the upstream while it is down;")
}

// rules try shows at 80 columns what the rules would decide, and how many messages that would change.
func TestRulesAreTriedReadably(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new.yaml")
	must(t, os.WriteFile(file, []byte(`policies:
  - {name: new, queues: [orders], attempts: 3, retention: 30d, rules: [
      {name: bad data, when: 'error:stock', then: discard},
      {when: 'error:bank', then: {attempts: 9, backoff: {fixed: 30s}}, notify: urgent}]}`), 0o600))
	cfg, err := config.Load(file, func(string) string { return "" })
	must(t, err)
	tried, err := newTrial(cfg)
	must(t, err)
	for _, r := range []*store.Record{
		{Queue: "orders", State: store.Parked, Error: "no stock", Failures: 3},
		{Queue: "orders", State: store.Waiting, Error: "no stock", Failures: 1},
		{Queue: "orders", State: store.Waiting, Error: "the bank is down", Failures: 1},
		{Queue: "orders", State: store.Parked, Error: "no price", Failures: 3},
		{Queue: "orders", State: store.Parked, Error: "the bank", Failures: 1, ParkedFor: "its consumer parked it: gone"},
	} {
		r.Reason, r.ID, r.Due, r.FailedAt = "rejected", uuid.MustParse(oneID), time.Now(), time.Now()
		tried.try(t.Context(), r)
	}
	var b strings.Builder
	w := &tableWriter{to: &b, width: 80}
	tried.table(w)
	must(t, w.Flush())
	expect.Equal(t, strings.ReplaceAll(b.String(), oneID, "ID"), `POLICY  RULE          MESSAGES  THEN
new     bad data      2         discard
    when: error:stock
    changes: 1 from parked to discard, 1 from waiting to discard
    such as: ID
new     2             1         retry, fixed at 30s, 9 attempts (notify: urgent)
    when: error:bank
    such as: ID
new     none decides  2         as the policy says
    such as: ID
new     (retention)   0         discard
    when: parked for longer than 30d

Of 5 messages, 2 would be decided otherwise. Once in the service's config file,
the rules hold for failures from then on; it needs no restart.
`, "it shows")
}

// At every width long text is shown whole, beside its row or below it, and short text beside it.
func TestLongTextIsWholeAtEachWidth(t *testing.T) {
	now := time.Now()
	for _, why := range []string{"no stock", "the card was declined by the bank", strings.Repeat("the card was declined ", 6) + "again"} {
		for name, draw := range map[string]func(io.Writer){
			"messages": drawing(inspect.MessageColumns, inspect.Message{ID: oneID, Queue: "orders", State: "parked", Error: why}),
			"operations": drawing(operations.Columns, operations.Operation{Plan: operations.Plan{ID: oneID,
				Verb: actions.Replay, Query: "queue:orders"},
				State: "stopped", StartedBy: "dana", Why: why}),
			"failures": drawing(stepColumns, inspect.Step{Attempt: 1, Failed: now, Reason: "rejected", Delay: "10s", Why: why}),
			"audit": drawing(auditColumns, audit.Entry{At: now, Who: "dana", Did: "operation.start",
				Outcome: "done", On: "queue:orders state:parked", Why: why}),
			"outcomes":    drawing(outcomeColumns, actions.Outcome{ID: oneID, Queue: "orders", Outcome: "skipped", Why: why}),
			"dead letter": drawing(deadLetterColumns, operations.DeadLetterQueue{Queue: "orders.dlq", Why: why}),
			"samples": func(w io.Writer) {
				preview(w, operations.Plan{Samples: []inspect.Message{{ID: oneID, Error: why}}}, "", now)
			},
		} {
			for width := 80; width <= 240; width += 20 {
				var b strings.Builder
				w := &tableWriter{to: &b, width: width}
				draw(w)
				must(t, w.Flush())
				if said := strings.Join(strings.Fields(b.String()), " "); !strings.Contains(said, why) || strings.Contains(said, "…") {
					t.Errorf("%s at %d do not say %q:\n%s", name, width, why, &b)
				}
				if beside := !strings.Contains(b.String(), "\n    why: "); why == "no stock" && width > 160 && !beside {
					t.Errorf("%s at %d have it below:\n%s", name, width, &b)
				}
			}
		}
	}
}

// Where a body is hidden, the reason stands in its place.
func TestAHiddenBodySaysWhy(t *testing.T) {
	var b bytes.Buffer
	must(t, (&program{out: &b}).steps(&decode.Result{Format: "hidden", Masked: "Hidden: your role does not see this body"}))
	expect.Equal(t, strings.TrimSpace(b.String()), "Hidden: your role does not see this body", "the body")
	err := (&program{out: &b}).decodedBody(&decode.Result{Format: "hidden", Masked: "Hidden: your role does not see this body"})
	expect.Equal(t, fmt.Sprint(codeOf(err), ": ", err), "4: Hidden: your role does not see this body; --unmask --reason WHY shows it "+
		"to roles in auth.show", "--body decoded")
}

// After an adoption the next commands are there.
func TestAnAdoptionSaysWhatIsNext(t *testing.T) {
	op := operations.Operation{Plan: operations.Plan{Verb: actions.Adopt, From: "orders_error", Count: 7}, Done: 7}
	const back = "send them back: redrive replay 'state:parked adopted:\"orders_error\"' --dry-run\n"
	expect.Contains(t, text(func(w io.Writer) { ended(w, op, nil) }), "the end", "\nwhat failed: redrive groups\n"+back)
	op.WorkQueues, op.Leads = []string{"mail", "orders", "gone"}, []string{"orders", "bills"}
	client := answering(func(r *http.Request) (any, error) {
		name := path.Base(r.URL.Path)
		return inspect.QueueDetail{Queue: inspect.Queue{Name: name, Parked: int64(len(name) % 4 * len(op.Leads)),
			Policy: map[string]string{"mail": "p"}[name]}}, nil
	}).client()
	unnamed := (&program{}).unnamed(t.Context(), client, op)
	expect.Contains(t, text(func(w io.Writer) { ended(w, op, unnamed) }), "the end where no policy names the queue",
		"\nbefore a replay: no policy names orders, bills; add what you want back to the queues of a policy in the service's config\n"+back)
}

// Rows that arrive one by one fit the terminal too, in columns that do not move.
func TestTailFitsTheTerminal(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	due, why := now.Add(time.Minute), strings.Repeat("the card was declined ", 6)+"again"
	shown := func(width int, all ...inspect.Message) string {
		var b strings.Builder
		w := &tableWriter{to: &b, width: width}
		failed(w, all, now)
		must(t, w.Flush())
		return b.String()
	}
	waiting := inspect.Message{ID: oneID, Queue: "orders", Attempt: 3, State: "waiting", Failed: now, Due: &due,
		Reason: "rejected", Error: why}
	for line := range strings.Lines(shown(80, waiting, inspect.Message{ID: oneID, Queue: longName, Error: longName + why})) {
		if n := utf8.RuneCountInString(line); n > 81 {
			t.Errorf("a line has %d characters: %s", n, line)
		}
	}
	row := "22:13:20  " + oneID + "  orders\n    attempt 3, "
	expect.Equal(t, shown(0, waiting), strings.Replace(row, "\n  ", "", 1)+"due in 1m; why: rejected: "+why+"\n", "where no person looks")
	if got := strings.Join(strings.Fields(shown(80, waiting)), " "); !strings.HasSuffix(got,
		"orders attempt 3, due in 1m; why: rejected: "+why) {
		t.Errorf("at 80 it shows %s", got)
	}
	waiting.Held = "breaker open"
	expect.Equal(t, strings.HasPrefix(shown(80, waiting), row+"due in 1m, breaker open; why: "), true, "it says what holds it back")
	parked := inspect.Message{ID: oneID, Queue: "orders", Attempt: 3, State: "parked", ParkedFor: "no policy",
		Failed: now, Reason: "expired"}
	expect.Equal(t, shown(80, parked), row+"parked, no policy; why: expired\n", "a parked one")
}

func drawing[T any](columns []column[T], one T) func(io.Writer) {
	return func(w io.Writer) { rows(w, columns, []T{one}, time.Now()) }
}

// A message's page shows a stack trace as it was written, and a list in one line.
func TestAStackTraceKeepsItsLines(t *testing.T) {
	trace := "java.lang.IllegalStateException: no stock\r\n\tat shop.Orders.take(Orders.java:17)\n\n\tat shop.Main\x1b[2J\n"
	m := inspect.Message{ID: oneID, Error: trace}
	shown := text(func(w io.Writer) {
		detail(w, inspect.Detail{Message: m, Timeline: []inspect.Step{{Attempt: 1, Error: trace}}}, time.Now())
	})
	for _, indent := range []string{"Error         ", "    "} {
		blank := strings.Repeat(" ", len(indent))
		want := "\n" + indent + "java.lang.IllegalStateException: no stock\n" + blank + "    at shop.Orders.take(Orders.java:17)\n" +
			blank + "\n" + blank + "    at shop.Main\ufffd[2J\n"
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not in\n%s", want, shown)
		}
	}
	listed := text(func(w io.Writer) { rows(w, inspect.MessageColumns, []inspect.Message{m}, time.Now()) })
	if !strings.Contains(listed, ": no stock ⏎  at shop.Orders.take(Orders.java:17) ⏎  ⏎  at shop.Main\ufffd[2J\n") {
		t.Error(listed)
	}
}

func TestAMessageSaysWhatHoldsItBack(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	shown := text(func(w io.Writer) {
		detail(w, inspect.Detail{Message: inspect.Message{State: "waiting", Held: "breaker open"},
			HeldBy: []inspect.Hold{{Why: "breaker open", Since: &at, Until: &at}, {Why: "paused by ana"}}, GroupNotes: []string{"call Ann"},
			Timeline: []inspect.Step{{Ended: &at, Ending: "retried", Late: "2h", LateBy: []inspect.Hold{{Why: "paused by bo", Since: &at}}}}}, at)
	})
	retried := text(func(w io.Writer) {
		detail(w, inspect.Detail{Message: inspect.Message{State: inspect.Retried}, Away: "is away"}, at)
	})
	replayed := text(func(w io.Writer) {
		detail(w, inspect.Detail{Message: inspect.Message{Replays: 1, Attempt: 1, FirstFailed: at}, Timeline: []inspect.Step{
			{Failed: at, Attempt: 1, Replayed: true}, {Attempt: 1}}}, at)
	})
	if !strings.Contains(replayed, "Failures      2, 1 since its replay\n") {
		t.Error(replayed)
	}
	if !strings.Contains(retried, "Body          is away\n") || strings.Contains(retried, "Size") || strings.Contains(retried, "Failures") {
		t.Error(retried)
	}
	for _, want := range []string{"State              waiting; held back: breaker open", "Note on its error  call Ann",
		"Held back by       breaker open (since ", "paused by ana", ", next probe ", ", 2h after it was due; paused by bo (since "} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not in\n%s", want, shown)
		}
	}
}

func TestQueuesShowsEachWaitReason(t *testing.T) {
	shown := map[throttle.WaitReason]string{
		throttle.WhyPerson: "paused", throttle.WhyBreaker: "breaker open: 9 of 10 failed", throttle.WhyNoConsumer: "paused: no consumers",
		throttle.WhyUnreachable: "no: the queue is full",
	}
	now := time.Now()
	for _, why := range throttle.WaitReasons {
		var out strings.Builder
		rows(&out, queueColumns(now), []inspect.Queue{inspecttest.WaitingQueue(why, now)}, now)
		want := shown[why]
		if why.IsLimit() {
			want = "yes, limited by " + string(why)
		}
		if want == "" || !strings.Contains(out.String(), "\t"+want) {
			t.Errorf("%s: %q is not in\n%s", why, want, out.String())
		}
		said := text(func(w io.Writer) {
			status(w, inspect.Overview{Queues: []inspect.Queue{{Name: "mail"}, inspecttest.WaitingQueue(why, now)}}, now)
		})
		if strings.Contains(said, "  "+want) == why.IsLimit() || strings.Contains(said, "RETRIES\n") == why.IsLimit() {
			t.Errorf("%s: status shows\n%s", why, said)
		}
	}
}

// What only the management API knows is not shown as none, and a breaker that a person has closed keeps
// nothing back.
func TestQueuesShowsWhatIsKnown(t *testing.T) {
	unacked := 7
	forced := func(to string) inspect.Queue {
		return inspect.Queue{Policy: "all", Throttle: &inspect.ThrottleView{State: to, Forced: &inspect.Forced{To: to, By: "dana"}}}
	}
	for want, q := range map[string]inspect.Queue{
		"\tquorum\t2\t5\t7\t":                  {Broker: &inspect.AtBroker{Exists: true, Kind: "quorum", Consumers: 2, Ready: 5, Unacked: &unacked}},
		"\t?\t2\t5\t?\t":                       {Broker: &inspect.AtBroker{Exists: true, Consumers: 2, Ready: 5}},
		"\tnot there\t-\t-\t-\t":               {Broker: &inspect.AtBroker{}},
		"\t?\t?\t?\t?\t":                       {},
		"\tyes, breaker set to closed by dana": forced("closed"),
		"\tbreaker set to open by dana":        forced("open"),
	} {
		var out strings.Builder
		q.Name = "orders"
		if rows(&out, queueColumns(time.Now()), []inspect.Queue{q}, time.Now()); !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// One queue is shown with what is wrong, why its policy applies, its errors, and what is due next.
func TestAQueueIsShownWhole(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	due := now.Add(time.Minute)
	q := inspect.QueueDetail{
		Queue: inspect.Queue{Name: "orders eu", Policy: "all", Parked: 1204, Failed: 7, NextDue: &due},
		Conditions: []condition.Condition{
			{Kind: condition.Unreachable, Queue: "orders eu", Text: "the queue is full", Since: now.Add(-time.Hour)}},
		Pattern: "orders *",
		InForce: &inspect.PolicyInForce{Name: "all", Attempts: 5, Backoff: "10s", Jitter: "none", Way: "disk", Exhausted: "park",
			Settings: []policy.Setting{{Key: "max_age", Value: "2h"}}},
		Groups: []inspect.Group{{ID: "5a1f0c2b9e3d4a76", Queue: "orders eu", Parked: 900, Error: "card declined"}}, GroupCount: 12,
		Next: []inspect.Message{{ID: oneID, Queue: "orders eu", State: "waiting", Due: &due, Error: "no stock"}},
	}
	shown := text(func(w io.Writer) { queueDetail(w, q, now) })
	for _, want := range []string{
		`^Queue +orders eu$`, `^Parked +1,204$`, `^Next due +in 1m$`,
		`^Wrong now +queue orders eu: the queue is full \(since 2023-11-14 21:13:20 UTC\)$`,
		`^Last minute +7 failed, 0 retried, 0 parked$`, `^Policy +all$`, `^Applies because +orders \* matches the queue$`,
		`^Backoff +10s, jitter none$`, `^Limits +none: retried as soon as due$`, `^max_age +2h$`,
		`^ID +WAITING +PARKED +LAST +WHAT +FAILED +STATE +NOTE$`, `^5a1f0c2b9e3d4a76 +0 +900 .* card declined`,
		`^and 11 more: redrive groups 'queue:"orders eu"'$`, `^Due next:$`, `^` + oneID + ` +\? +in 1m .* no stock$`,
	} {
		if !regexp.MustCompile("(?m)" + want).MatchString(shown) {
			t.Errorf("%q is not in\n%s", want, shown)
		}
	}
	q.InForce, q.Policy = nil, ""
	expect.Contains(t, text(func(w io.Writer) { queueDetail(w, q, now) }), "one without a policy", "Retries      no: no policy names it\n",
		"No policy    what fails is parked, and a replay is refused: add it to the queues of a policy\n")
	q.Alone = true
	shown = text(func(w io.Writer) { queueDetail(w, q, now) })
	expect.Contains(t, shown, "one that RabbitMQ retries", "Retries      by RabbitMQ alone, ")
	expect.Equal(t, strings.Contains(shown, "No policy"), false, "it says that messages are parked")
	q.Alone, q.NotEnrolled = false, "not enrolled, what consumers reject is gone"
	shown = text(func(w io.Writer) { queueDetail(w, q, now) })
	expect.Contains(t, shown, "one that is not enrolled", "no: not enrolled, what consumers reject is gone; redrive enroll 'orders eu'\n")
	expect.Contains(t, shown, "one that is not enrolled", "No policy    a replay is refused: ")
}

// One group is shown with its newest error as it came.
func TestAGroupIsShownWhole(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	g := inspect.GroupDetail{
		Group: inspect.Group{ID: "5a1f0c2b9e3d4a76", Queue: "orders", Parked: 1204, Error: "card # declined", First: at, Last: at,
			GroupState: inspect.GroupState{State: inspect.Open, StateWas: inspect.Resolved, StateBy: "ann", StateAt: &at, StateNote: "ticket 7"}},
		Newest: &inspect.Message{Key: oneID + ".7", Error: "card 4711 declined"}, Oldest: &inspect.Message{Key: oneID + ".2"},
		Types: []inspect.Share{{Value: "Paid", Count: 900}, {Value: "Sent", Count: 100}}, Looked: 1000, Bounded: true,
	}
	shown := text(func(w io.Writer) { groupDetail(w, g) })
	parked := "'state:parked group:5a1f0c2b9e3d4a76'"
	for _, want := range []string{
		`^Parked +1,204$`, `^First +2023-11-14 22:13:20 UTC$`, `^Newest error +card 4711 declined$`, `^Grouped as +card # declined$`,
		`^State +resolved, reopened: open$`, `^Set by +ann$`, `^Ticket +ticket 7$`, `^Types +Paid × 900, Sent × 100$`, `^Oldest +redrive messages show ` + oneID + `\.2$`, `^Looked at +the newest 1,000, for what follows$`,
		`^Messages +redrive messages list group:5a1f0c2b9e3d4a76$`, `^Then replay +redrive replay ` + parked + ` --canary 1$`,
	} {
		if !regexp.MustCompile("(?m)" + want).MatchString(shown) {
			t.Errorf("%q is not in\n%s", want, shown)
		}
	}
}

func diagnosed(width int, colour bool, findings ...doctor.Finding) string {
	var b strings.Builder
	r := doctor.Report{Status: doctor.OK, Broker: "amqp://x/", VHost: "/", Version: "4.3.6", Findings: findings}
	for _, f := range findings {
		if f.Status != doctor.OK {
			r.Status = f.Status
		}
	}
	(&diagnosis{&b, width, colour, map[string]bool{}}).write(r)
	return b.String()
}

func TestDiagnoses(t *testing.T) {
	if got, want := diagnosed(0, false, doctor.Finding{Check: "clock", Status: doctor.OK}), "RabbitMQ 4.3.6 at amqp://x/, virtual host \"/\"\nok all 1 check\n"; got != want {
		t.Errorf("when all is well it says %q", got)
	}
	var all []doctor.Finding
	for i := range 9 {
		all = append(all, doctor.Finding{Check: "consumers", Status: doctor.Warning, Queue: fmt.Sprint("q", i), What: "none\x1b[2J", Why: "Because.", Remedy: "Start:", Commands: []string{fmt.Sprint("redrive pause q", i)}})
	}
	all = append(all, doctor.Finding{Check: "lifetime", Status: doctor.Wrong, Queue: "q8", What: "gone"},
		doctor.Finding{Check: "alarms", Status: doctor.Unknown, What: "not looked at", Why: "no tag"}, doctor.Finding{Check: "disk-room", Status: doctor.Unknown, What: "not looked at", Why: "no tag"})
	got := diagnosed(0, false, all...)
	for _, want := range []string{
		"\n8 queues: q0, q1, q2, q3, q4 and 3 more\n  warning  consumers  none\ufffd[2J\n           Because.\n           Start:\n           $ redrive pause q0\n           $ redrive pause q1\n",
		"           $ redrive pause q7\n\nqueue q8\n",
		"\nqueue q8\n  wrong    lifetime   gone\n  warning  consumers  none\ufffd[2J\n           Start:\n", // the reason was said
		"\nnot checked, or only in part\n  unknown  alarms, disk-room\n           no tag\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, got)
		}
	}
	if got := diagnosed(0, true, all...); !strings.Contains(got, "\x1b[31;1mwrong  \x1b[0m  lifetime   gone\n") || strings.Contains(got, "[2J\x1b") {
		t.Errorf("in colour: %q", got)
	}
	// One command enrolls all queues with the same fault, and is not wrapped. Other faults have commands of their own.
	all = nil
	for _, q := range []string{"a b", "orders", "mail"} {
		all = append(all, doctor.Finding{Check: "dead-lettering", Status: doctor.Wrong, Queue: q, What: strings.Repeat("it has none ", 9), Commands: []string{"redrive enroll --config x.yaml " + doctor.Quote(q)}})
	}
	all[2].Remedy = "Ask."
	got = diagnosed(60, false, all...)
	for _, want := range []string{"\n2 queues: a b, orders\n  wrong    dead-lettering  it has none", "\n           none it has none", "\n           $ redrive enroll --config x.yaml 'a b' orders\n\nqueue mail\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, got)
		}
	}
	for line := range strings.Lines(got) {
		if !strings.Contains(line, "$ ") && utf8.RuneCountInString(line) > 61 {
			t.Errorf("of more than 60 columns: %s", line)
		}
	}
}

// The reference mentions each command, and has the exit codes as --help has them.
func TestThePageOfTheCommandLineMentionsEachCommand(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/cli.md")
	must(t, err)
	for _, c := range Commands().Commands() {
		name := c.Name()
		if c.IsAdditionalHelpTopicCommand() {
			name = "help " + name
		}
		if !strings.Contains(string(page), "redrive "+name) {
			t.Errorf("it does not mention redrive %s", name)
		}
	}
	if !strings.Contains(string(page), "\n```\n"+exitCodes+"\n```\n") {
		t.Errorf("it does not have\n%s", exitCodes)
	}
}

// Each of several errors has its hint below it, and neither obeys a terminal's control.
// Of the help, only commands to copy are longer than a line, and nothing is lost.
func TestTheHelpFits80Columns(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		text := helpText(c, 80)
		for line := range strings.Lines(text) {
			if utf8.RuneCountInString(line) > 81 && !strings.Contains(line, "redrive ") {
				t.Errorf("%s: %s", c.CommandPath(), line)
			}
		}
		expect.Equal(t, strings.Join(strings.Fields(text), ""), strings.Join(strings.Fields(helpText(c, 0)), ""), "%s", c.CommandPath())
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	walk(Commands())
}

// The terminal explains queries as the page does, and each command that takes one leads there.
func TestQueriesAreExplained(t *testing.T) {
	root := Commands()
	topic, _, err := root.Find([]string{"query"})
	must(t, err)
	for _, of := range query.Help() {
		if !strings.Contains(topic.Long, "\n  "+of[0]+" ") || !strings.Contains(topic.Long, "  "+of[1]) {
			t.Errorf("%q is not in\n%s", of, topic.Long)
		}
		must(t, errOf(query.Parse(of[0])))
	}
	if strings.Contains(helpText(topic, 0), "Usage:") {
		t.Error("it says how it is run")
	}
	for _, name := range []string{"messages list", "messages tail", "replay", "groups", "export"} {
		c, _, err := root.Find(strings.Fields(name))
		must(t, err)
		if !strings.Contains(helpText(c, 0), "\nHow queries are written: redrive help query\n") {
			t.Errorf("%s does not lead there", name)
		}
	}
}

func TestHintsAreOnLinesOfTheirOwn(t *testing.T) {
	var b bytes.Buffer
	p := &program{err: &b}
	p.printError(fmt.Errorf("start: %w", hint.Errorf("stop the other\x1b[2J one", "the folder is in use")))
	p.printError(errors.Join(hint.Errorf("set a", "a is missing"), errors.New("b is missing"), hint.Errorf("set c", "c is missing")))
	p.printError(fmt.Errorf("both: %w", errors.Join(errors.New("a\nb"), nil)))
	const want = "redrive: start: the folder is in use\n  hint: stop the other\ufffd[2J one\n" +
		"redrive: a is missing\n  hint: set a\nredrive: b is missing\nredrive: c is missing\n  hint: set c\nredrive: both: a\nredrive: b\n"
	if got := b.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	b.Reset()
	w := &tableWriter{to: &b, width: 40}
	p.err = w
	p.printError(hint.Errorf("stop the other one, or name another folder", "the folder of the service is in use"))
	must(t, w.Flush())
	expect.Equal(t, b.String(), "redrive: the folder of the service is in\n         use\n"+
		"  hint: stop the other one, or name\n        another folder\n",
		"at 40 columns")
}

func TestAVersionComesFromTheReleaseOrFromWhatGoRecords(t *testing.T) {
	recorded := &debug.BuildInfo{Main: debug.Module{Version: "v1.4.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc123"}, {Key: "vcs.time", Value: "2026-11-01T10:00:00Z"}}}
	folder := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	release := Build{Version: "1.4.0", Commit: "def456", Date: "2026-11-02T10:00:00Z"}
	for name, c := range map[string]struct {
		set  Build
		info *debug.BuildInfo
		want Build
	}{
		"release":                 {release, recorded, release},
		"go install":              {Build{}, recorded, Build{Version: "v1.4.0", Commit: "abc123", Date: "2026-11-01T10:00:00Z"}},
		"go build without commit": {Build{}, folder, Build{Version: "dev"}},
		"nothing recorded":        {Build{}, nil, Build{Version: "dev"}},
	} {
		c.want.Go, c.want.System = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
		expect.Equal(t, c.set.complete(c.info), c.want, "%s", name)
	}
}

func TestMemoryOfTheCgroup(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"container":      {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "134217728\n"}, 128 << 20},
		"no limit":       {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"unit":           {map[string]string{"proc/self/cgroup": "0::/system.slice/redrive.service\n", "sys/fs/cgroup/system.slice/redrive.service/memory.max": "67108864\n"}, 64 << 20},
		"slice of units": {map[string]string{"proc/self/cgroup": "0::/a.slice/redrive.service\n", "sys/fs/cgroup/a.slice/memory.max": "1000\n", "sys/fs/cgroup/a.slice/redrive.service/memory.max": "2000\n"}, 1000},
		"large slice":    {map[string]string{"proc/self/cgroup": "0::/a.slice/redrive.service\n", "sys/fs/cgroup/a.slice/memory.max": "3000\n", "sys/fs/cgroup/a.slice/redrive.service/memory.max": "2000\n"}, 2000},
		"version 1":      {map[string]string{"proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "5000\n"}, 5000},
		"no cgroups":     {nil, 0},
	} {
		files := fstest.MapFS{}
		for path, text := range c.files {
			files[path] = &fstest.MapFile{Data: []byte(text)}
		}
		expect.Equal(t, cgroupMemory(files), c.want, "%s", name)
	}
}

// A script learns from the exit code whether all of an operation's messages were processed.
func TestTheExitCodeOfAnOperation(t *testing.T) {
	ended := time.Now()
	for _, c := range []struct {
		state                 string
		done, skipped, failed int64 // of 3
		want                  int
	}{
		{operations.Finished, 3, 0, 0, ExitOK},
		{operations.Finished, 2, 1, 0, ExitPartly},
		{operations.Finished, 2, 0, 1, ExitPartly},
		{operations.Finished, 0, 3, 0, ExitError},
		{operations.Canceled, 1, 0, 0, ExitPartly},
		{operations.Canceled, 0, 0, 0, ExitError},
		{operations.Stopped, 1, 0, 2, ExitPartly},
	} {
		op := operations.Operation{Plan: operations.Plan{ID: "x", Count: 3}, State: c.state,
			Done: c.done, SkippedN: c.skipped, Failed: c.failed, Ended: &ended}
		p := &program{out: new(bytes.Buffer), err: new(bytes.Buffer), getenv: func(string) string { return "" }}
		if err := p.toTheEnd(t.Context(), httpapi.Client{}, op); codeOf(err) != c.want {
			t.Errorf("%+v: %d (%v), want %d", c, codeOf(err), err, c.want)
		}
	}
}

// Who replays messages learns how many failed again, and can wait until that is known.
func TestAReplayIsFollowedUntilItIsKnownWhatFailedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		replay := func() operations.Operation {
			now := time.Now()
			op := operations.Operation{
				Plan:  operations.Plan{ID: "x", Verb: actions.Replay, Count: 10},
				State: operations.Finished, Done: 10, Ended: &begun,
				Replayed: &operations.Replayed{
					Sent: 10, FailedAgain: 4, NotSeenSince: 6, OtherErrors: 1,
					Errors: []operations.AgainError{{Queue: "orders", Error: "no stock\x1b[2J of #", Count: 3}},
				},
			}
			if now.Sub(begun) > time.Minute {
				op.Replayed.Until = &now
			}
			return op
		}
		client := answering(func(*http.Request) (any, error) { return replay(), nil }).client()
		for _, settled := range []bool{false, true} {
			var out, err bytes.Buffer
			p := &program{out: &out, err: &err, settled: settled, getenv: func(string) string { return "" }}
			must(t, p.toTheEnd(t.Context(), client, replay()))
			if took := time.Since(begun); took > time.Minute != settled {
				t.Errorf("with --settled=%t it took %s", settled, took)
			}
			wants := []string{
				"10 messages were retried\n", "  3 failed again in orders: no stock",
				"  1 failed again with other errors\n",
				"sent 10: failed again 4, not seen since 6; still here 0\n",
			}
			if !settled {
				wants = append(wants, "so far sent", "counting what fails again continues: redrive ops watch x --settled\n")
			}
			for _, want := range wants {
				if !strings.Contains(out.String(), want) {
					t.Errorf("with --settled=%t it does not say %q: %s", settled, want, out.String())
				}
			}
			if settled && strings.Contains(out.String(), "so far") || strings.Contains(out.String(), "\x1b") {
				t.Errorf("it says %q", out.String())
			}
			if want := `"replayed":{"sent":10,"failed_again":4,`; !strings.Contains(err.String(), want) {
				t.Errorf("while it is watched it does not say %q: %s", want, err.String())
			}
		}
	})
}

// The counts at the end of a replay are read after it, unless that takes long.
func TestTheEndOfAReplayIsShownAsItIs(t *testing.T) {
	for _, c := range []struct {
		state     string
		sentAfter time.Duration
		want      string
		least     time.Duration
	}{
		{operations.Finished, time.Second, "10 messages were retried\nso far sent 10: failed again 0", time.Second},
		{operations.Finished, time.Hour, "10 messages will be retried\nso far sent 3: failed again 0", countedFor},
		{operations.Stopped, time.Second, "10 messages were retried\nso far sent 10: failed again 10", countedFor},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			now := func() operations.Operation {
				op := operations.Operation{Plan: operations.Plan{ID: "x", Verb: actions.Replay, Count: 10}, State: c.state,
					Done: 10, Ended: &begun, Replayed: &operations.Replayed{Sent: 3, StillHere: 7}}
				if time.Since(begun) >= c.sentAfter {
					op.Replayed = &operations.Replayed{Sent: 10}
				}
				if c.state == operations.Stopped && time.Since(begun) >= 2*c.sentAfter {
					op.Replayed.FailedAgain = 10
				}
				return op
			}
			var out bytes.Buffer
			p := &program{out: &out, err: io.Discard, getenv: func(string) string { return "" }}
			_ = p.toTheEnd(t.Context(), answering(func(*http.Request) (any, error) { return now(), nil }).client(), now())
			if took := time.Since(begun); !strings.Contains(out.String(), c.want) || took < c.least || took > c.least+2*time.Second {
				t.Errorf("%+v: after %s: %s", c, took, &out)
			}
		})
	}
}

// answering is a service without a network: what it returns is sent as JSON, an error breaks the connection.
type answering func(*http.Request) (any, error)

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	v, err := a(r)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(v)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(data)), Request: r}, err
}

func (a answering) client() httpapi.Client {
	return httpapi.Client{Addr: "127.0.0.1:1", HTTP: &http.Client{Transport: a}}
}

// A dry run of named messages warns as that of a query does, each thing once.
func TestADryRunOfNamedMessagesWarns(t *testing.T) {
	client := answering(func(*http.Request) (any, error) {
		return actions.Acted{Done: 1, Outcomes: []actions.Outcome{{ID: "x", Outcome: actions.Done}},
			Warnings: []string{"nothing consumes from the queue \x1b[2J"}}, nil
	}).client()
	var out bytes.Buffer
	p := &program{out: &out, err: io.Discard, getenv: func(string) string { return "" }}
	ids := slices.Repeat([]string{"x"}, idsPerRequest+1)
	must(t, p.actOnIDs(t.Context(), client, &action{verb: actions.Replay, dry: true, expect: -1},
		actions.Act{Verb: actions.Replay, IDs: ids, DryRun: true}))
	if strings.Count(out.String(), "nothing consumes") != 1 || strings.Contains(out.String(), "\x1b") ||
		!strings.Contains(out.String(), "Before you start:\n  nothing consumes") {
		t.Errorf("%q", out.String())
	}
}

// A script that asks whether an operation could start reads the answer from the exit code.
func TestADryRunOfWhatCannotStartIsRefused(t *testing.T) {
	for _, c := range []struct {
		count   int64
		blocked []string
		want    int
	}{
		{3, nil, ExitOK}, {3, []string{"the queue \"orders\" does not exist"}, ExitPrecondition},
		{0, []string{"there is nothing to replay"}, ExitOK},
	} {
		client := answering(func(*http.Request) (any, error) {
			return operations.Plan{Verb: actions.Replay, Count: c.count, Blocked: c.blocked}, nil
		}).client()
		var out bytes.Buffer
		p := &program{out: &out, err: io.Discard, format: "table", getenv: func(string) string { return "" }}
		err := p.operate(t.Context(), client, &action{verb: actions.Replay, dry: true, expect: -1},
			operations.PlanRequest{Verb: actions.Replay, Query: "queue:orders"})
		expect.Equal(t, strings.Contains(out.String(), "annot start"), c.want != ExitOK, "it says that it cannot start")
		if codeOf(err) != c.want || err != nil && !strings.Contains(err.Error(), "cannot start: "+c.blocked[0]) {
			t.Errorf("%d messages, %q: exit %d: %v", c.count, c.blocked, codeOf(err), err)
		}
	}
}

// Before they say yes, people see how an operation will run. One message needs no yes.
func TestAPlanSaysHowItWillGo(t *testing.T) {
	for _, c := range []struct {
		d    action
		n    int64
		want string
	}{
		{action{dry: true}, 0, "Replay 0 messages of orders."},
		{action{}, 18, "Replay 18 messages of orders? Nothing is done yet."},
		{action{}, 1, "Replay 1 message of orders."},
		{action{dry: true}, 1, "Replay 1 message of orders? Nothing is done yet."},
		{action{canary: 10, canaryWait: "12s", rate: 0.5}, 18,
			"Replay 18 messages of orders? Nothing is done yet. The first 10 go and are watched for 12s; the other 8 follow only if none of them fails again. At most 0.5/s: about 36s for 18."},
		{action{rate: 50}, 9000, "Replay 9,000 messages of orders? Nothing is done yet. At most 50/s: about 3m for 9,000."},
		{action{rate: 50}, 2, "Replay 2 messages of orders? Nothing is done yet. At most 50/s: about 1s for 2."},
		{action{rate: 3}, 10_000, "Replay 10,000 messages of orders? Nothing is done yet. At most 3/s: about 56m for 10,000."},
		{action{rate: 1e-300}, 2, "Replay 2 messages of orders? Nothing is done yet. At most 0." + strings.Repeat("0",
			299) + "1/s: about 53375d 23h for 2."},
	} {
		plan := operations.Plan{Verb: actions.Replay, Count: c.n, Queues: []operations.PlanQueue{{Queue: "orders"}}}
		expect.Equal(t, c.d.starts(&plan, false), c.want, "of %d messages", c.n)
		if yes := c.d.starts(&plan, true); !c.d.dry {
			expect.Equal(t, yes, strings.Replace(c.want, "? Nothing is done yet.", ".", 1), "with --yes")
		}
	}
}

// An operation says how far its canary is, on a terminal and where it is shown.
func TestTheStateOfACanary(t *testing.T) {
	op := operations.Operation{Plan: operations.Plan{ID: "x", Count: 30}, State: operations.Watching, Done: 5,
		CanarySize: 5, CanarySent: 3, Why: "queue \"orders\": paused by ann"}
	const bar = "█████░░░░░░░░░░░░░░░░░░░░░░░░░ 5 of 30, canary: "
	expect.Equal(t, barOf(op, 0), bar+`3 of 5 sent: queue "orders": paused by ann`, "the bar")
	op.CanarySent, op.Why, op.CanaryUntil, op.Left = 5, "", new(time.Time), "12s"
	expect.Equal(t, barOf(op, 0), bar+"5 of 5 sent, watched, 12s left", "the bar")
	op.Count, op.Replayed, op.Why = 120_000, &operations.Replayed{FailedAgain: 3}, "the canary is held: "+strings.Repeat("x", 80)
	expect.Equal(t, progressOf(op, 79),
		"░░░░░░░░░░ 5 of 120,000, canary: 5 of 5 sent, watched, 12s left, 3 failed again", "at 80 columns")
	var line strings.Builder
	(&meter{w: &line, draws: true, width: 80}).operation(op)
	expect.Equal(t, utf8.RuneCountInString(line.String()), len("\r")+79, "a line that can be overwritten has … characters")
	op.Why, op.Count, op.Replayed = "", 30, nil
	var out strings.Builder
	op.Query, op.About = "group:5a1f0c2b9e3d4a76", "no stock of #"
	op.StartedBy, op.Replayed = "ann", &operations.Replayed{}
	shown := operationShown{Operation: op}
	narrow := &tableWriter{to: &out, width: 60}
	shown.table(narrow)
	must(t, narrow.Flush())
	expect.Contains(t, out.String(), "at 60 columns", "\nFailed again  0\n", "\nBy            ann\n")
	out.Reset()
	shown.table(&out)
	expect.Contains(t, out.String(), "it is shown as", "\n"+barOf(op, 0)+"\n", "no stock of #", "\nquery: group:5a1f0c2b9e3d4a76\n")
}

// A service that starts again continues its operations, so they are followed on; one that is gone is not waited for.
func TestAnOperationIsFollowedOverARestart(t *testing.T) {
	for down, ends := range map[time.Duration]bool{30 * time.Second: true, time.Hour: false} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			client := answering(func(*http.Request) (any, error) {
				ended := time.Now()
				if ended.Sub(begun) < down {
					return nil, errors.New("connection refused")
				}
				return operations.Operation{State: operations.Finished, Ended: &ended}, nil
			}).client()
			p := &program{err: new(bytes.Buffer), getenv: func(string) string { return "" }}
			op, err := p.follow(t.Context(), client, operations.Operation{Plan: operations.Plan{ID: "x"}, State: operations.Running})
			if (err == nil) != ends || (op.Ended != nil) != ends || time.Since(begun) > 2*time.Minute {
				t.Errorf("down for %s: %s after %s, %v", down, op.State, time.Since(begun), err)
			}
		})
	}
}

// A failure that is found later than a newer one is shown too, and each once.
func TestTailShowsFailuresThatAreFoundLate(t *testing.T) {
	var kept []inspect.Message
	begun := time.Now().UTC().Truncate(time.Second)
	client := answering(func(r *http.Request) (any, error) {
		since, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(r.URL.Query().Get("q"), "failed:>="))
		page := inspect.Page{}
		for _, m := range kept {
			if !m.Failed.Before(since) {
				page.Messages = append(page.Messages, m)
			}
		}
		return page, err
	}).client()
	var out bytes.Buffer
	tail := tail{program: &program{out: &out, format: "name"}, client: client, left: math.MaxInt, since: begun, seen: map[failure]bool{}}
	for _, after := range []int{30, 25, 60} { // seconds
		id := fmt.Sprint("after", after)
		kept = append(kept, inspect.Message{ID: id, Key: id, Failed: begun.Add(time.Duration(after) * time.Second)})
		must(t, tail.poll(t.Context()))
	}
	if out.String() != "after30\nafter25\nafter60\n" {
		t.Errorf("%q", &out)
	}
}

func TestWatchShowsItAgainUntilItIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var out, errOut bytes.Buffer
		p := &program{out: &out, err: &errOut}
		begun, times := time.Now(), 0
		err := p.repeat(ctx, 2*time.Second, func() error {
			times++
			switch times {
			case 2:
				return errors.New("no service answers")
			case 4:
				stop()
			}
			fmt.Fprintln(&out, times)
			return nil
		})
		if err != nil || out.String() != "1\n3\n4\n" || !strings.Contains(errOut.String(), "no service answers") {
			t.Errorf("%v, %q, %q", err, &out, &errOut)
		}
		expect.Equal(t, time.Since(begun), 6*time.Second, "it took")
		want := errors.New("unknown queue")
		if err := p.repeat(t.Context(), time.Hour, func() error { return want }); !errors.Is(err, want) {
			t.Errorf("when the first answer is an error, it ends with %v", err)
		}
	})
}

// --watch ends with the operation, and continues where the ledger is off.
func TestWatchEndsWithTheOperation(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	asked := map[string]int{}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Base(r.URL.Path)
		asked[name]++
		var answer any
		switch name {
		case "x":
			op := operations.Operation{Plan: operations.Plan{ID: "x"}, State: operations.Running}
			if asked[name] == 2 {
				op.State, op.Ended = operations.Finished, new(time.Time)
			}
			answer = op
		case "ledger":
			if asked[name] == 2 {
				stop()
			}
			answer = inspect.Ledger{Queues: []inspect.LedgerLine{{Queue: "orders", Off: 1}}}
		default:
			answer = operations.Outcomes{Outcomes: []actions.Outcome{{ID: "x", Outcome: actions.Done,
				Became: actions.FailedAgain}}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer service.Close()
	var out bytes.Buffer
	run := func(args ...string) int {
		args = append(args, "--watch=100ms", "--address", service.Listener.Addr().String())
		return Run(ctx, args, &out, io.Discard, Build{})
	}
	if code := run("ops", "show", "x"); code != ExitOK || asked["x"] != 2 {
		t.Errorf("ops show: exit code %d, asked %d times", code, asked["x"])
	}
	if !strings.Contains(out.String(), "failed again") {
		t.Errorf("it does not say what became of the message: %s", &out)
	}
	if code := run("ledger"); code != ExitOK || asked["ledger"] != 2 {
		t.Errorf("ledger: exit code %d, asked %d times", code, asked["ledger"])
	}
}

var must, errOf = expect.NoError, expect.ErrOf
