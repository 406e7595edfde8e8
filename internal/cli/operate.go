package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/doctor"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/query"
)

// operate makes a plan of what a query finds, shows it, asks, starts it and follows it.
func (p *program) operate(ctx context.Context, client httpapi.Client, d *action, r operations.PlanRequest) error {
	plan, err := client.Plan(ctx, r)
	if err != nil {
		return err
	}
	show := func(w io.Writer) { preview(w, plan, d.starts(&plan, p.yes), time.Now()) }
	planID := func(pl operations.Plan) string { return pl.ID }
	if d.dry {
		err = write(p, plan, planID, show)
	} else {
		w := p.tableOn(p.err)
		show(w)
		err = w.Flush()
	}
	if err == nil && plan.Count == 0 && r.Query != "" && !strings.ContainsAny(r.Query, `: "`) {
		fmt.Fprintf(p.err, "%.80q is taken as a query; an id has 36 characters.\n", r.Query)
	}
	switch {
	case err != nil:
		return err
	case d.expect >= 0 && plan.Count != d.expect:
		return d.unexpected(plan.Count)
	case len(plan.Blocked) > 0 && plan.Count > 0: // a dry run exits as the real one would
		return exitErrorf(ExitPrecondition, "it cannot start: %s", strings.Join(plan.Blocked, "; "))
	case d.dry:
		return nil
	case plan.Count == 0: // a script may run twice
		return write(p, plan, planID, func(w io.Writer) { fmt.Fprintf(w, "nothing to %s\n", d.verb) })
	case plan.Count > 1:
		if err := p.confirm(ctx, question(plan)); err != nil {
			return err
		}
	}
	op, err := client.Start(ctx, plan.ID, operations.Start{ExpectCount: &plan.Count, Rate: d.rate, CanarySize: d.canary,
		CanaryWait: d.canaryWait})
	if err != nil {
		return err
	}
	if d.detach {
		fmt.Fprintf(p.err, "It runs in the service:\n%s", orders(op.ID))
		return write(p, op, opID, func(w io.Writer) { fmt.Fprintln(w, plain(op.ID)) })
	}
	return p.toTheEnd(ctx, client, op)
}

func opID(o operations.Operation) string { return o.ID }

func (d *action) unexpected(n int64) error {
	return exitErrorf(ExitPrecondition, "found %s, expected %d: nothing was changed", messages(n), d.expect)
}

// toTheEnd follows an operation, and shows its result.
func (p *program) toTheEnd(ctx context.Context, client httpapi.Client, op operations.Operation) error {
	op, err := p.follow(ctx, client, op)
	if err != nil {
		fmt.Fprintf(p.err, "Operation %s is no longer watched, and continues in the service:\n%s", plain(op.ID),
			orders(op.ID))
		return err
	}
	unnamed := p.unnamed(ctx, client, op)
	if err := write(p, op, opID, func(w io.Writer) { ended(w, op, unnamed) }); err != nil {
		return err
	}
	if op.State == operations.Finished && op.Done == op.Count {
		return nil
	}
	code, is := ExitPartly, op.State
	if op.Done == 0 {
		code = ExitError
	}
	if op.Why != "" {
		is += ": " + op.Why
	}
	return exitErrorf(code, "operation %s is %s", op.ID, is)
}

// unnamed returns the work queues of an adoption that no policy names, so that a replay would be refused.
func (p *program) unnamed(ctx context.Context, client httpapi.Client, op operations.Operation) (queues []string) {
	if op.Verb != actions.Adopt || op.Done == 0 {
		return nil
	}
	for _, name := range slices.Concat(op.WorkQueues, op.Leads) {
		if q, err := client.Queue(ctx, name); err == nil && q.Parked > 0 && q.Policy == "" &&
			!slices.Contains(queues, name) {
			queues = append(queues, name)
		}
	}
	return queues
}

func ended(w io.Writer, op operations.Operation, unnamed []string) {
	if a := op.Replayed; a != nil && op.Done > 0 && a.StillHere == 0 {
		fmt.Fprintln(w, plural(op.Done, "message was", "messages were"), "retried")
	} else {
		fmt.Fprintln(w, doneText(op.Verb, op.Done, op.At))
	}
	if op.SkippedN > 0 {
		fmt.Fprintln(w, plural(op.SkippedN, "message was", "messages were"), "not there any more when their turn came")
	}
	if op.Failed > 0 {
		fmt.Fprintln(w, plural(op.Failed, "message failed", "messages failed"))
	}
	if op.Replayed != nil && op.Done > 0 {
		replayed(w, op.Replayed)
	}
	if left := op.Count - op.Done - op.SkippedN - op.Failed; left > 0 {
		fmt.Fprintln(w, plural(left, "message is left as it was", "messages are left as they were"))
	}
	if op.Replayed != nil && op.Replayed.Until == nil && op.Done > 0 {
		fmt.Fprintf(w, "counting what fails again continues: redrive ops watch %s --settled\n", plain(op.ID))
	}
	if op.Verb == actions.Adopt && op.Done > 0 {
		fmt.Fprintln(w, "what failed: redrive groups")
		if len(unnamed) > 0 {
			prose(w, "before a replay: no policy names "+strings.Join(unnamed, ", ")+"; add what you want back to the "+
				"queues of a policy in the service's config")
		}
		fmt.Fprintf(w, "send them back: redrive replay %s --dry-run\n",
			plain(doctor.Quote("state:parked adopted:"+query.Quote(op.From))))
	}
	if op.HasRest() {
		fmt.Fprintf(w, "replay the rest: redrive replay --rest-of %s\n", plain(op.ID))
	}
	if op.Discards() {
		fmt.Fprintf(w, "take it back: redrive restore --discarded-by %s\n", plain(op.ID))
	}
	if op.SkippedN+op.Failed > 0 {
		fmt.Fprintf(w, "which, and why: redrive ops show %s\n", plain(op.ID))
	}
}

func replayed(w io.Writer, a *operations.Replayed) {
	if a.Until == nil {
		fmt.Fprint(w, "so far ")
	}
	fmt.Fprintf(w, "sent %s: failed again %s, not seen since %s; still here %s\n",
		count(a.Sent), count(a.FailedAgain), count(a.NotSeenSince), count(a.StillHere))
	for _, e := range a.Errors {
		fmt.Fprintf(w, "  %s failed again in %s: %s\n", count(e.Count), plain(e.Queue), cell(cmp.Or(e.Error, e.Reason)))
	}
	if a.OtherErrors > 0 {
		fmt.Fprintf(w, "  %s failed again with other errors\n", count(a.OtherErrors))
	}
}

// orders returns the commands for an operation that runs.
func orders(id string) string {
	return fmt.Sprintf("  redrive ops watch %[1]s\n  redrive ops cancel %[1]s\n", plain(id))
}

// confirm asks a person, unless --yes was given.
func (p *program) confirm(ctx context.Context, question string) error {
	if p.yes {
		return nil
	}
	return p.prompt(ctx, question)
}

// prompt asks a person; an error without a terminal.
func (p *program) prompt(ctx context.Context, question string) error {
	if !isTerminal(p.in) {
		return fmt.Errorf("this is not a terminal, so it cannot ask: give --yes or --dry-run: %w", errUsage)
	}
	fmt.Fprintf(p.err, "%s [y/N] ", plain(question))
	answer := make(chan string, 1)
	// Reading cannot be cancelled: after Ctrl-C the process exits while this goroutine reads.
	go func() {
		line, _ := bufio.NewReader(p.in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(p.err)
	}
	return errors.New("nothing was changed")
}

// starts says what an operation will do, and how.
func (d *action) starts(p *operations.Plan, yes bool) string {
	text := question(*p)
	if p.Count == 0 || !d.dry && (yes || p.Count == 1) {
		text = strings.TrimSuffix(text, "?") + "."
	} else {
		text += " Nothing is done yet."
	}
	if d.canary > 0 && int64(d.canary) < p.Count {
		text += fmt.Sprintf(" The first %s go and are watched for %s; the other %s follow only if none of them fails "+
			"again.", count(d.canary), cmp.Or(d.canaryWait, "1m"), count(p.Count-int64(d.canary)))
	}
	if d.rate > 0 {
		text += fmt.Sprintf(" At most %s/s: about %s for %s.", strconv.FormatFloat(d.rate, 'f', -1, 64),
			p.Takes(d.rate), count(p.Count))
	}
	return text
}

func question(p operations.Plan) string {
	q := p.Verb.Title() + " " + messages(p.Count)
	if p.From != "" {
		return q + " from " + p.From + "?"
	}
	if len(p.Queues) > 1 {
		q += " of " + count(len(p.Queues)) + " queues"
	} else if len(p.Queues) == 1 {
		q += " of " + p.Queues[0].Queue
	}
	if p.At != nil {
		q += " at " + timeText(p.At)
	}
	if p.To != "" {
		q += " to " + p.To
	}
	return q + "?"
}

// preview writes starts, and then the plan as the page shows it.
func preview(w io.Writer, p operations.Plan, starts string, now time.Time) {
	prose(w, starts)
	if p.RestOf != "" {
		fmt.Fprintf(w, "What operation %s did not reach.\n", plain(p.RestOf))
	}
	if p.DiscardedBy != "" {
		fmt.Fprintf(w, "What operation %s discarded.\n", plain(p.DiscardedBy))
	}
	if p.Query != "" {
		prose(w, p.Subject())
	}
	if len(p.Leads) > 0 {
		fmt.Fprintf(w, "Dead letters of: %s\n", plain(strings.Join(p.Leads, ", ")))
	}
	if p.Count > 0 && p.Oldest != nil {
		prose(w, fmt.Sprintf("They failed between %s and %s; messages that fail later are not included.",
			timeText(p.Oldest), timeText(p.Newest)))
	}
	if p.Count > 0 {
		fmt.Fprintln(w, "\nQUEUE\tMESSAGES\tAT RABBITMQ\tCONSUMERS\tREADY")
		for _, q := range p.Queues {
			there, consumers, ready := "there", count(q.Consumers), count(q.Ready)
			switch {
			case !q.Known:
				there, consumers, ready = "not known", "?", "?"
			case !q.Exists:
				there, consumers = "not there", "none"
			case q.Consumers == 0:
				consumers = "none"
			}
			if q.Paused {
				there += ", paused"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cell(q.Queue), count(q.Count), there, consumers, ready)
		}
	}
	if len(p.Skipped) > 0 {
		fmt.Fprintln(w, "\nLeft out:")
		for _, s := range p.Skipped {
			prose(w, "  "+count(s.Count)+" "+s.Why)
		}
	}
	if s := p.Sampled; s != nil {
		fmt.Fprintf(w, "\nThe first %s, which are back at their place:\n\nMESSAGES\tOF\tSAY\n", messages(s.Messages))
		for _, of := range []struct {
			what, none string
			all        []operations.Tally
		}{
			{"work queue", "not known", s.Queues}, {"error", "none said", s.Errors},
			{"format", "", s.Formats}, {"note", "", s.Notes},
		} {
			for _, one := range of.all {
				fmt.Fprintf(w, "%s\t%s\t%s\n", count(one.Count), of.what, cell(cmp.Or(one.What, of.none)))
			}
		}
	}
	if len(p.Samples) > 0 {
		fmt.Fprintln(w, "\nSome of them:")
		rows(w, []column[inspect.Message]{{Field: "ID"}, {Field: "State"}, {Field: "Failed"},
			{Head: "What went wrong", Narrow: inspect.Below, Value: func(m inspect.Message) any {
				return cmp.Or(m.Error, m.Reason)
			}}}, p.Samples, now)
	}
	section(w, "Before you start:", p.Warnings)
	cannot := "It cannot start:"
	if p.Count == 0 {
		cannot = "Nothing to do:" // which is no failure
	}
	section(w, cannot, p.Blocked)
}

func section(w io.Writer, title string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintln(w, "\n"+title)
	}
	for _, s := range lines {
		prose(w, "  "+strings.TrimSpace(s))
	}
}

const (
	// firstPoll is the first interval between two polls: most operations are over at once.
	firstPoll = 50 * time.Millisecond
	lastPoll  = time.Second
	// noAnswerFor is how long a service that does not answer is polled: it may be restarting, and
	// continues its operations then.
	noAnswerFor = time.Minute
	// countedFor is how long a replay that ended is followed until it is known what became of its messages.
	countedFor = 5 * time.Second
)

// over reports whether an operation that ended so long ago needs no more polling.
func (p *program) over(op operations.Operation, since time.Duration) bool {
	a := op.Replayed
	switch {
	case op.Ended == nil:
		return false
	case a == nil || a.Until != nil:
		return true
	case p.settled:
		return false
	case op.State == operations.Finished && a.StillHere == 0:
		return true
	}
	return op.At != nil || op.Done == 0 || since > countedFor
}

// follow shows an operation's progress until it has ended.
func (p *program) follow(
	ctx context.Context, client httpapi.Client, op operations.Operation,
) (operations.Operation, error) {
	meter, answered, ran := p.meter(), time.Now(), time.Now()
	defer meter.end()
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		if op.Ended == nil {
			ran = time.Now()
		}
		if meter.operation(op); p.over(op, time.Since(ran)) {
			return op, nil
		}
		select {
		case <-ctx.Done():
			if op.Ended != nil && !p.settled {
				return op, nil
			}
			return op, exitErrorf(ExitPartly, "operation %s has not ended", op.ID)
		case <-time.After(wait):
		}
		now, err := client.Operation(ctx, op.ID)
		switch {
		case err == nil:
			op, answered = now, time.Now()
		case ctx.Err() != nil: // the select above returns
		case !errors.Is(err, httpapi.ErrUnreachable) || time.Since(answered) > noAnswerFor:
			return op, err
		}
	}
}

// meter shows the progress of a command: on a terminal in a line that is overwritten, without escape sequences,
// elsewhere in a line per second.
type meter struct {
	w     io.Writer
	draws bool // w is a terminal where a line can be overwritten
	width int  // of that terminal; 0: not known
	drawn int  // how long the line is
	last  time.Time
	state string // of the operation
}

func (p *program) meter() *meter {
	return &meter{w: p.err, draws: isTerminal(p.err) && p.getenv("TERM") != "dumb", width: widthOf(p.err)}
}

// show shows a line, unless one was shown just now and this is not the last.
func (m *meter) show(line string, last bool) {
	every := lastPoll
	if m.draws {
		every /= 4
	}
	if time.Since(m.last) < every && !last {
		return
	}
	m.last = time.Now()
	if m.draws {
		m.draw(line)
	} else {
		fmt.Fprintln(m.w, plain(line))
	}
}

func (m *meter) draw(line string) {
	if line = plain(line); m.width > 0 {
		line = cut(line, m.width-1) // a line that the terminal breaks cannot be overwritten
	}
	n := utf8.RuneCountInString(line)
	fmt.Fprint(m.w, "\r"+line+strings.Repeat(" ", max(0, m.drawn-n)))
	m.drawn = n
}

func (m *meter) end() {
	if m.drawn > 0 {
		fmt.Fprintln(m.w)
	}
}

// operation shows an operation: for programs as JSON, a line per second and one for each new state.
func (m *meter) operation(op operations.Operation) {
	if m.draws {
		m.draw(barOf(op, m.width-1))
		return
	}
	if now := time.Now(); op.State != m.state || now.Sub(m.last) >= lastPoll-firstPoll {
		m.last, m.state = now, op.State
		line, err := jsonOf(struct {
			Operation string  `json:"operation"`
			State     string  `json:"state"`
			Why       string  `json:"why,omitempty"`
			Count     int64   `json:"count"`
			Done      int64   `json:"done"`
			Skipped   int64   `json:"skipped"`
			Failed    int64   `json:"failed"`
			PerSecond float64 `json:"per_second"`
			Left      string  `json:"left,omitempty"`

			Replayed *operations.Replayed `json:"replayed,omitempty"`
		}{op.ID, op.State, op.Why, op.Count, op.Done, op.SkippedN, op.Failed, op.PerSecond, op.Left, op.Replayed}, "")
		if err == nil {
			fmt.Fprint(m.w, line)
		}
	}
}

// barOf is progressOf, and why the operation waits.
func barOf(op operations.Operation, width int) string {
	line := progressOf(op, width)
	if op.Why != "" && op.Ended == nil {
		line += ": " + cut(cell(op.Why), 60)
	}
	return line
}

// progressOf returns the progress of an operation, with a shorter gauge where a line has fewer than width characters.
func progressOf(op operations.Operation, width int) string {
	processed := op.Done + op.SkippedN + op.Failed
	line := fmt.Sprintf(" %s of %s", count(processed), count(op.Count))
	left := ""
	if op.Left != "" {
		left = ", " + op.Left + " left"
	}
	switch op.State {
	case operations.Running:
		line += fmt.Sprintf(", %.0f/s%s", op.PerSecond, left)
	case operations.Watching:
		line += fmt.Sprintf(", canary: %s of %s sent", count(op.CanarySent), count(op.Done))
		if op.CanaryUntil != nil {
			line += ", watched" + left
		}
	default:
		line += ", " + op.State
	}
	if a := op.Replayed; a != nil && a.FailedAgain > 0 {
		line += fmt.Sprintf(", %s failed again", count(a.FailedAgain))
	}
	bar := barWidth
	if width > 0 {
		bar = max(minColumn, min(barWidth, width-utf8.RuneCountInString(line)))
	}
	return gauge(processed, op.Count, bar) + line
}

const barWidth = 30

func gauge(n, of int64, width int) string {
	full := int(min(n, of) * int64(width) / max(of, 1))
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}

func (p *program) ops() *cobra.Command {
	return commandGroup(&cobra.Command{Use: "ops",
		Short:   "Operations on many messages: watch, pause, resume, cancel them",
		Example: "  redrive ops list\n  redrive ops watch 0198f0a0-0000-7000-8000-000000000001"},
		p.opsList(), p.opsShow(), p.opsWatch(),
		p.opsOrder(operations.Pause, "Pause an operation; nothing is undone"),
		p.opsOrder(operations.Resume, "Resume a paused operation"),
		p.opsOrder(operations.Cancel, "Cancel an operation; the remaining messages stay as they are"))
}

func (p *program) opsList() *cobra.Command {
	var limit int
	c := p.withClient(&cobra.Command{
		Use:   "list",
		Short: "List operations, newest first",
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		if limit < 1 {
			return fmt.Errorf("--limit %d: expected at least 1: %w", limit, errUsage)
		}
		all, err := client.Operations(ctx)
		if err != nil {
			return err
		}
		found := len(all.Operations)
		all.Operations = all.Operations[:min(limit, found)]
		if err = listColumns(p, all, all.Operations, operations.Columns); err == nil && found > limit {
			fmt.Fprintf(p.err, "there are more: --limit %d\n", found)
		}
		return err
	})
	c.Flags().IntVar(&limit, "limit", 100, "the most to show")
	return p.watched(p.withOutput(c))
}

var outcomeColumns = []column[actions.Outcome]{
	{Field: "ID"}, {Field: "Queue"}, {Field: "Outcome", Value: func(o actions.Outcome) any { return o.Says() }},
	{Head: "At", Narrow: 1, Value: func(o actions.Outcome) any { return timeText(&o.At) }},
	{Field: "New", Narrow: inspect.Below}, {Field: "Why", Narrow: inspect.Below},
}

func (p *program) withOperation(
	c *cobra.Command, run func(ctx context.Context, client httpapi.Client, id string) error,
) *cobra.Command {
	c.ValidArgsFunction = p.completeOps
	return p.withOutput(p.withClient(c, func(ctx context.Context, client httpapi.Client, args []string) error {
		return run(ctx, client, args[0])
	}))
}

func (p *program) opsShow() *cobra.Command {
	var after string
	var limit int
	var problems bool
	c := p.withOperation(&cobra.Command{
		Use:   "show ID",
		Short: "Show an operation, and the result for each of its messages; --watch ends with it",
	}, func(ctx context.Context, client httpapi.Client, id string) error {
		op, err := client.Operation(ctx, id)
		if err != nil {
			return err
		}
		whole := operationShown{Operation: op, Outcomes: []actions.Outcome{}, After: after}
		if limit <= 0 {
			limit = math.MaxInt
		}
		for more := true; more; more = whole.After != "" && len(whole.Outcomes) < limit {
			page, err := client.Outcomes(ctx, op.ID, whole.After, min(limit-len(whole.Outcomes), maxOnAPage))
			if err != nil {
				return err
			}
			whole.After = page.After
			for _, o := range page.Outcomes {
				if !problems || o.Outcome != actions.Done {
					whole.Outcomes = append(whole.Outcomes, o)
				}
			}
		}
		err = list(p, whole, whole.Outcomes, func(o actions.Outcome) string { return o.ID }, whole.table)
		if err == nil {
			p.more(whole.After)
		}
		p.watching = p.watching && op.Ended == nil
		return err
	})
	c.Flags().StringVar(&after, "after", "", "continue after the previous page")
	c.Flags().IntVar(&limit, "limit", 100, "the most results to show; 0: all")
	c.Flags().BoolVar(&problems, "problems", false, "only messages that were not processed")
	return p.watched(c)
}

type operationShown struct {
	operations.Operation
	Outcomes []actions.Outcome `json:"outcomes"`
	After    string            `json:"after,omitempty"`
}

func (s *operationShown) table(w io.Writer) {
	now := time.Now()
	var all [][2]string
	for _, c := range operations.Columns {
		all = append(all, [2]string{cmp.Or(c.Head, c.Field), valueText(c.Of(s.Operation), now)})
	}
	pairs(w, all)
	if s.About != "" {
		fmt.Fprintln(w)
		prose(w, "query: "+s.Query)
	}
	if s.Ended == nil {
		fmt.Fprintf(w, "\n%s\n", plain(progressOf(s.Operation, room(w, 0))))
	}
	if s.Replayed != nil {
		fmt.Fprintln(w)
		replayed(w, s.Replayed)
	}
	fmt.Fprintln(w)
	rows(w, outcomeColumns, s.Outcomes, now)
}

func (p *program) opsWatch() *cobra.Command {
	c := p.withOperation(&cobra.Command{
		Use:   "watch ID",
		Short: "Watch an operation until it ends; Ctrl-C stops only the watching",
		Long: `It shows a progress bar on a terminal, elsewhere one line of JSON per second on standard
error. The exit code says how the operation ended. With --settled a replay is watched
until it is no longer counted what fails again: a minute, or its --canary-wait, after all
is sent, a day at most.`,
	}, func(ctx context.Context, client httpapi.Client, id string) error {
		op, err := client.Operation(ctx, id)
		if err != nil {
			return err
		}
		return p.toTheEnd(ctx, client, op)
	})
	c.Flags().BoolVar(&p.settled, "settled", false, "of a replay: also while it is counted what fails again")
	return c
}

func (p *program) opsOrder(order operations.Order, short string) *cobra.Command {
	return p.withOperation(&cobra.Command{Use: string(order) + " ID", Short: short},
		func(ctx context.Context, client httpapi.Client, id string) error {
			op, err := client.Order(ctx, id, order)
			if err != nil {
				return err
			}
			return write(p, op, opID, func(w io.Writer) {
				fmt.Fprintf(w, "operation %s is %s; %s of %s are done\n", plain(op.ID), plain(op.State), count(op.Done),
					messages(op.Count))
			})
		})
}
