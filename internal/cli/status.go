package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/policy"
)

func (p *program) status() *cobra.Command {
	var alive bool
	c := p.withClient(&cobra.Command{
		Use:     "status",
		Short:   "Show the service: connection, and per queue the waiting, retried and parked messages",
		Example: "  redrive status --watch\n  redrive status -o json",
		Long: `--alive is for health checks of containers: it shows nothing, needs no sign-in, and exits
with 0 when the service answers, ready or not, and with 7 when none does. With https:// on
this machine it does not verify the certificate.`,
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		if alive {
			return client.Alive(ctx)
		}
		st, err := client.Overview(ctx)
		if err != nil {
			return err
		}
		return list(p, st, st.Queues, func(q inspect.Queue) string { return q.Name },
			func(w io.Writer) { status(w, st, time.Now()) })
	})
	c.Flags().BoolVar(&alive, "alive", false, "only find out whether the service answers")
	return p.watched(p.withOutput(c))
}

func status(w io.Writer, st inspect.Overview, now time.Time) {
	health(w, st, now)
	if len(st.Replicas) > 0 {
		replicas(w, st.Replicas, now)
	}
	unread := func(c condition.Condition) bool { return c.Kind == condition.Unread }
	if len(st.Queues) > 0 {
		failing(w, st, now)
	} else if !slices.ContainsFunc(st.Conditions, unread) {
		fmt.Fprintln(w, "no message has failed yet")
	}
}

// maxPaused is how many paused queues status names.
const maxPaused = 3

func health(w io.Writer, st inspect.Overview, now time.Time) {
	prose(w, fmt.Sprintf("redrive %s, up %s, RabbitMQ at %s", st.Version,
		policy.FormatDuration(now.Sub(st.Since).Round(time.Second)), st.Broker))
	switch {
	case !st.Ready && len(st.Conditions) == 0:
		fmt.Fprintln(w, "not ready")
	case st.Ready:
		prose(w, strings.TrimSuffix("ready: "+st.Verdict, ": ")) // an earlier service says none
	}
	for _, c := range st.Conditions {
		line := c.String()
		if !st.Ready && c.NotReady {
			line = "not ready: " + line
		}
		prose(w, line)
	}
	paused := 0
	for _, q := range st.Queues {
		if q.Pause == nil {
			continue
		}
		if paused++; paused <= maxPaused {
			prose(w, fmt.Sprintf("queue %s: %s", q.Name, retries(q, now)))
		}
	}
	if more := paused - maxPaused; more > 0 {
		fmt.Fprintf(w, "and %d more paused: redrive queues\n", more)
	}
	fmt.Fprintf(w, "%s waiting: %s\n", count(st.Waiting), st.Due())
	for _, notice := range st.Notices {
		prose(w, "notice: "+notice)
	}
}

func replicas(w io.Writer, all []inspect.Replica, now time.Time) {
	fmt.Fprintln(w, "\nREPLICA\tADDRESS\tVERSION\tUP\tLAST BEAT\tLEADS\tSTATE")
	for _, r := range all {
		leads, state := "-", "ready"
		if r.Leads {
			leads = "leads"
		}
		switch {
		case r.Silent(now):
			state = "not heard of"
		case !r.Ready:
			state = strings.Join(append([]string{"not ready"},
				condition.Lines(r.Conditions[:min(1, len(r.Conditions))])...), ": ")
		case len(r.Conditions) > 0:
			state = "ready; " + r.Conditions[0].String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s ago\t%s\t%s\n", cell(r.ID), cell(r.Address), cell(r.Version),
			policy.FormatDuration(now.Sub(r.Since).Round(time.Second)),
			policy.FormatDuration(max(0, now.Sub(r.Beat)).Round(100*time.Millisecond)), leads, cell(state))
	}
}

// elsewhere reports whether messages of a queue wait in RabbitMQ.
func elsewhere(q inspect.Queue) bool { return q.Way != "" && q.Way != "disk" && q.Way != "redis" }

// nextDue returns the time, or what holds the message back.
func nextDue(q inspect.Queue) any {
	if held := q.Held(); held != "" && q.NextDue != nil {
		return held
	}
	return inspect.Ahead{Time: q.NextDue}
}

func failing(w io.Writer, st inspect.Overview, now time.Time) {
	fmt.Fprintln(w)
	columns := []column[inspect.Queue]{
		{Head: "Queue", Field: "Name"}, {Field: "Policy", Narrow: 3}, {Head: "Waits in", Field: "Way", Narrow: 4},
		{Head: "Waiting", Value: func(q inspect.Queue) any {
			if elsewhere(q) {
				return count(q.Waiting) + " + RabbitMQ's"
			}
			return q.Waiting
		}},
		{Head: "Next due", Value: nextDue},
		{Field: "Parked"}, {Head: "Failed/min", Field: "Failed", Narrow: 2},
		{Head: "Retried/min", Field: "Retried", Narrow: 6}, {Head: "Parked/min", Field: "ParkedIn", Narrow: 7},
	}
	if slices.ContainsFunc(st.Queues, func(q inspect.Queue) bool { return q.HeldBack() }) {
		columns = append(columns, column[inspect.Queue]{Head: "Retries", Narrow: inspect.Below,
			Value: func(q inspect.Queue) any {
				if q.HeldBack() {
					return retries(q, now)
				}
				return asUsual
			}})
	}
	rows(w, columns, st.Queues, now)
	if st.MoreQueues > 0 {
		fmt.Fprintf(w, "\nand %d more: redrive queues\n", st.MoreQueues)
	}
	if slices.ContainsFunc(st.Queues, elsewhere) {
		fmt.Fprintln(w)
		prose(w, "Messages that wait in RabbitMQ are not counted here; its queues redrive.delay.* and "+
			"redrive.lane.* show them, but with delayed-exchange.")
	}
}

func (p *program) messagesTail() *cobra.Command {
	var most int
	c := p.withQuery(&cobra.Command{
		Use:   "tail [QUERY]",
		Short: "Show messages as they fail, until Ctrl-C",
		Long: `It shows those that are waiting or parked within a second after. It searches only when the
service reports a failure.`,
		Example: "  redrive messages tail 'queue:orders.*' -o jsonl",
	}, func(ctx context.Context, client httpapi.Client, query string) error {
		if _, err := client.Messages(ctx, query, "", 1); err != nil { // a query that makes no sense
			return err
		}
		if most == 0 {
			most = math.MaxInt
		}
		t := tail{program: p, client: client, query: query, left: most, seen: map[failure]bool{}}
		return t.run(ctx)
	})
	c.Flags().IntVar(&most, "count", 0, "stop after this many; 0: never")
	return p.withFormats(c, "table", "jsonl", "name")
}

// failure identifies one of a message.
type failure struct {
	key     string
	attempt int
	failed  time.Time
}

// slack is how long after a later failure a search may still find an earlier one.
const slack = 10 * time.Second

type tail struct {
	*program
	client httpapi.Client
	query  string
	left   int
	since  time.Time
	seen   map[failure]bool // since then
	begun  bool             // the table's head was written
}

var errEnough = errors.New("as many as were asked for")

func (t *tail) run(ctx context.Context) error {
	for answered := time.Now(); ; {
		err := t.client.Live(ctx, func(tick operations.Tick) error {
			first := t.since.IsZero()
			if answered = time.Now(); first {
				t.since = tick.At
				fmt.Fprintln(t.err, "watching; Ctrl-C ends it")
			}
			if first || tick.Failed == 0 {
				return nil
			}
			return t.poll(ctx)
		})
		if errors.Is(err, httpapi.ErrUnreachable) && time.Since(answered) <= noAnswerFor {
			select { // the stream ends now and then, and the service may start again
			case <-ctx.Done():
			case <-time.After(lastPoll):
			}
			if err = nil; !t.since.IsZero() {
				err = t.poll(ctx) // what failed meanwhile
			}
			if ctx.Err() == nil && (err == nil || errors.Is(err, httpapi.ErrUnreachable)) {
				continue
			}
		}
		if ctx.Err() != nil || errors.Is(err, errEnough) {
			return nil
		}
		return err
	}
}

func (t *tail) poll(ctx context.Context) error {
	q := "failed:>=" + t.since.UTC().Format(time.RFC3339Nano)
	if t.query != "" {
		q = "(" + t.query + ") " + q
	}
	page, err := fetchMessages(ctx, t.client, q, "", math.MaxInt)
	if err != nil {
		return err
	}
	var fresh []inspect.Message
	newest := t.since
	for _, m := range page.Messages {
		if f := (failure{m.Key, m.Attempt, m.Failed}); !t.seen[f] {
			t.seen[f] = true
			fresh = append(fresh, m)
		}
		if m.Failed.After(newest) {
			newest = m.Failed
		}
	}
	if since := newest.Add(-slack); since.After(t.since) {
		t.since = since
	}
	maps.DeleteFunc(t.seen, func(f failure, _ bool) bool { return f.failed.Before(t.since) })
	slices.SortStableFunc(fresh, func(a, b inspect.Message) int { return a.Failed.Compare(b.Failed) })
	fresh = fresh[:min(len(fresh), t.left)]
	t.left -= len(fresh)
	if len(fresh) > 0 {
		err = t.show(fresh)
	}
	if err == nil && t.left == 0 {
		return errEnough
	}
	return err
}

func (t *tail) show(fresh []inspect.Message) error {
	if t.format != "table" {
		return list(t.program, fresh, fresh, messageID, nil)
	}
	w := t.tableOn(t.out)
	if !t.begun {
		t.begun = true
		fmt.Fprintf(w, "%-8s  %-36s  QUEUE\n", "AT (UTC)", "ID")
	}
	failed(w, fresh, time.Now())
	return w.Flush()
}

// failed writes messages as they arrive, in columns of a fixed width, with longer texts below; into a file or pipe, a
// line each.
func failed(w io.Writer, all []inspect.Message, now time.Time) {
	for _, m := range all {
		row := fmt.Sprintf("%s  %-36s  %s", m.Failed.UTC().Format(time.TimeOnly), plain(m.ID), cell(m.Queue))
		what, why := fmt.Sprintf("attempt %d, ", m.Attempt), m.Reason
		switch {
		case m.Due != nil:
			what += strings.TrimSuffix("due "+untilText(m.Due, now)+", "+m.Held, ", ")
		default:
			what += strings.TrimSuffix(m.State+", "+m.ParkedFor, ", ")
		}
		if m.Error != "" {
			why += ": " + m.Error
		}
		what = cell(what + "; why: " + why)
		width := room(w, 0)
		if width == 0 {
			fmt.Fprintln(w, row+"  "+what)
			continue
		}
		fmt.Fprintln(w, cut(row, width))
		for _, line := range wrapped(what, room(w, len(noteIndent))) {
			fmt.Fprintln(w, noteIndent+line)
		}
	}
}

func (p *program) notify() *cobra.Command {
	return commandGroup(&cobra.Command{
		Use:   "notify",
		Short: "Try the notifications",
		Long:  "The config file has their routes, under notify: see docs/how-to/notifications.md.",
	}, p.notifyTest())
}

type routeTest struct {
	Route  string `json:"route"`
	Event  string `json:"event"`
	Result string `json:"result"` // sent or failed
	Error  string `json:"error,omitempty"`
}

func (p *program) notifyTest() *cobra.Command {
	var event string
	c := &cobra.Command{
		Use:   "test [ROUTE]",
		Short: "Send a test message by each route, or by one, and show the result",
		Long: `The message says that it is a test. It is sent from this machine, whatever the route's
events, queues and quiet hours; no service has to run.

Exit codes: 0 all were sent, 3 some, 1 none; 6 there is no such route, or no route.`,
		Example: "  redrive notify test --config redrive.yaml\n  redrive notify test pager --event intake_stopped " +
			"--config redrive.yaml",
		RunE: func(c *cobra.Command, args []string) error {
			if !slices.Contains(notify.KindNames(), event) {
				return fmt.Errorf("--event %q: expected %s: %w", event, strings.Join(notify.KindNames(), ", "),
					errUsage)
			}
			cfg, err := p.load()
			if err != nil {
				return err
			}
			routes, err := routesNamed(cfg.Notify.Routes, args)
			if err != nil {
				return err
			}
			all, failed := sendTests(c.Context(), &cfg.Notify, routes, notify.Kind(event))
			columns := []column[routeTest]{{Field: "Route"}, {Field: "Result"}, {Field: "Error", Narrow: inspect.Below}}
			if err := listColumns(p, all, all, columns); err != nil || failed == 0 {
				return err
			}
			code := ExitPartly
			if failed == len(all) {
				code = ExitError
			}
			return exitErrorf(code, "%d of %d routes failed", failed, len(all))
		},
	}
	p.withConfig(c, "the config file (YAML)")
	c.Flags().StringVar(&event, "event", "parked", "the event of the message: "+strings.Join(notify.KindNames(), ", "))
	return p.withOutput(withVHost(c))
}

// routesNamed returns the routes to test: the one that the argument names, or all.
func routesNamed(all []notify.Route, args []string) ([]notify.Route, error) {
	none := hint.Errorf("see notify.routes in redrive.example.yaml", "the config has no routes, so nothing is sent")
	if len(args) > 0 {
		all = slices.DeleteFunc(slices.Clone(all), func(r notify.Route) bool { return r.Name != args[0] })
		none = hint.Errorf("see notify.routes", "the config has no route %q", args[0])
	}
	if len(all) == 0 {
		return nil, exitErrorf(ExitNotFound, "%w", none)
	}
	return all, nil
}

// sendTests sends a test message by each route, all at once, and counts those that failed.
func sendTests(
	ctx context.Context, cfg *notify.Settings, routes []notify.Route, event notify.Kind,
) (all []routeTest, failed int) {
	all = make([]routeTest, len(routes))
	var sending sync.WaitGroup
	for i := range routes {
		sending.Go(func() {
			all[i] = routeTest{Route: routes[i].Name, Event: string(event), Result: "sent"}
			if err := notify.Test(ctx, cfg, &routes[i], event); err != nil {
				all[i].Result, all[i].Error = "failed", err.Error()
			}
		})
	}
	sending.Wait()
	for _, t := range all {
		if t.Error != "" {
			failed++
		}
	}
	return all, failed
}
