package cli

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/audit"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/doctor"
	"github.com/redrive-mq/redrive/internal/errorgroup"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
)

func (p *program) messages() *cobra.Command {
	return commandGroup(&cobra.Command{Use: "messages", Short: "Show failed messages",
		Example: "  redrive messages list 'queue:orders state:parked'\n  redrive messages count error:timeout"},
		p.messagesList(), p.messagesCount(), p.messagesShow(), p.messagesTail())
}

func messageID(m inspect.Message) string { return m.ID }

func (p *program) messagesList() *cobra.Command {
	var after, names string
	var limit int
	c := p.withQuery(&cobra.Command{
		Use:   "list [QUERY]",
		Short: "List messages, without consuming them",
		Long: `The latest come first: by when each is due, or was parked or retried. Discarded ones are
left out unless the query names a state: state:discarded, or state:* for all.`,
		Example: `  redrive messages list 'queue:orders.* state:parked error:"timeout" age:>2h'
  redrive messages list --queue orders -o name | xargs redrive replay`,
	}, func(ctx context.Context, client httpapi.Client, q string) error {
		if limit < 1 {
			return fmt.Errorf("--limit %d: expected at least 1: %w", limit, errUsage)
		}
		columns, err := query.Columns(names)
		if err != nil {
			return fmt.Errorf("--columns: %w: %w", err, errUsage)
		}
		listed := query.Listed(q)
		page, err := fetchMessages(ctx, client, listed, after, limit, names)
		if err != nil {
			return err
		}
		if columns == nil {
			err = listColumns(p, page, page.Messages, inspect.MessageColumns)
		} else if p.format == "csv" {
			names, row := inspect.ChosenCSV(columns)
			err = listCSV(p, page.Messages, names, row)
		} else {
			err = list(p, page, page.Messages, messageID, func(w io.Writer) {
				rows(w, inspect.ChosenColumns(columns), page.Messages, time.Now())
			})
		}
		if err != nil {
			return err
		}
		if held := page.HeldBack(); held != "" && p.format == "table" {
			fmt.Fprintln(p.err, plain(held))
		}
		if page.Bounded != "" {
			fmt.Fprintln(p.err, plain(page.Bounded))
		}
		if len(page.Messages) == 0 && listed != q && p.format == "table" && !p.watching {
			fmt.Fprintln(p.err, "Discarded messages are left out: add state:* to have them too.")
		}
		p.more(page.After)
		return nil
	})
	c.Flags().StringVar(&after, "after", "", "continue after the previous page")
	c.Flags().IntVar(&limit, "limit", 100, "the most to show")
	c.Flags().StringVar(&names, "columns", "", "what to show: fields of queries (redrive help query), as in "+
		"queue,error,body.customer")
	return p.watched(p.withOutput(c))
}

func (p *program) messagesCount() *cobra.Command {
	return p.watched(p.withFormats(p.withQuery(&cobra.Command{
		Use:     "count [QUERY]",
		Short:   "Count messages",
		Long:    `Of a query that would take long, it prints how many were found so far, as "1,204+".`,
		Example: "  redrive messages count 'queue:orders.* state:parked'",
	}, func(ctx context.Context, client httpapi.Client, query string) error {
		n, err := client.Count(ctx, query)
		if err != nil {
			return err
		}
		return write(p, n, func(n httpapi.Count) string { return strconv.FormatInt(n.Count, 10) }, func(w io.Writer) {
			more := ""
			if !n.Exact {
				more = "+"
			}
			fmt.Fprintln(w, count(n.Count)+more)
		})
	}), "table", "json", "yaml", "name"))
}

// maxOnAPage is the most messages that the service returns at once.
const maxOnAPage = 1000

// fetchMessages returns what a query finds, up to a limit. A page of the service's may be short,
// even empty, and not be the last.
func fetchMessages(
	ctx context.Context, client httpapi.Client, q, after string, limit int, columns ...string,
) (all inspect.Page, err error) {
	all.Messages = []inspect.Message{}
	for all.After = after; ; {
		page, err := client.Messages(ctx, q, all.After, min(limit-len(all.Messages), maxOnAPage), columns...)
		if err != nil {
			return all, err
		}
		all.Messages = append(all.Messages, page.Messages...)
		all.After, all.Bounded = page.After, cmp.Or(page.Bounded, all.Bounded)
		all.Looked += page.Looked
		if page.After == "" || len(all.Messages) >= limit {
			return all, nil
		}
	}
}

func (p *program) messagesShow() *cobra.Command {
	var body, reason string
	var unmask bool
	c := p.withClient(&cobra.Command{
		Use:   "show ID",
		Short: "Show one message in full: its failures, why it waits, headers, decoded body",
		Long: `Headers that RabbitMQ wrote are apart from those that any publisher could have written.

--body shows the body alone: raw, its bytes as they are (never to a terminal); decoded, as
text; hex.

--unmask shows what is masked too, to roles in auth.show: the audit log has who, and --reason.`,
		Example: "  redrive messages show 0198f0a0-0000-7000-8000-000000000001 --body raw > order.bin",
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		switch {
		case unmask && (strings.TrimSpace(reason) == "" || body == "raw" || body == "hex" || p.watching):
			return fmt.Errorf("--unmask needs a --reason, and shows the decoded body, once: %w", errUsage)
		case !unmask && reason != "":
			return fmt.Errorf("--reason is for --unmask: %w", errUsage)
		case body == "raw" || body == "hex":
			return p.writeBody(ctx, client, args[0], body)
		case body != "" && body != "decoded":
			return fmt.Errorf("--body %q: expected raw, decoded or hex: %w", body, errUsage)
		}
		var m inspect.Detail
		var err error
		if unmask {
			m, err = client.Show(ctx, args[0], reason)
		} else {
			m, err = client.Message(ctx, args[0])
		}
		if err != nil {
			return err
		}
		if body == "decoded" {
			return p.decodedBody(m.Body)
		}
		return write(p, m, func(m inspect.Detail) string { return m.ID }, func(w io.Writer) {
			detail(w, m, time.Now())
			_ = w.(*tableWriter).Flush()
			if m.Body != nil {
				fmt.Fprintln(p.out, "\nBODY")
				_ = p.steps(m.Body)
			}
		})
	})
	c.Flags().StringVar(&body, "body", "", "the body alone: raw, decoded or hex")
	c.Flags().BoolVar(&unmask, "unmask", false, "also what is masked for your role")
	c.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	_ = c.RegisterFlagCompletionFunc("body", cobra.FixedCompletions(bodies, noFiles))
	return p.watched(p.withFormats(c, "table", "json", "jsonl", "yaml", "name"))
}

var bodies = []string{"raw", "decoded", "hex"}

func (p *program) writeBody(ctx context.Context, client httpapi.Client, id, as string) error {
	if as == "raw" {
		if err := p.notRaw(); err != nil {
			return err
		}
	}
	r, err := client.Body(ctx, id)
	if err != nil {
		return err
	}
	defer r.Close()
	if as == "raw" {
		_, err = io.Copy(p.out, r)
		return err
	}
	d := hex.Dumper(p.out)
	if _, err := io.Copy(d, r); err != nil {
		return err
	}
	return d.Close()
}

// decodedBody writes the decoded text only. JSON keeps its meaning.
func (p *program) decodedBody(r *decode.Result) error {
	switch {
	case r == nil:
		return exitErrorf(ExitNotFound, "it was retried, and its body is not kept any more")
	case r.Masked != "" && r.Text == "":
		return exitErrorf(ExitForbidden, "%w", hint.Errorf("--unmask --reason WHY shows it to roles in auth.show",
			"%s", r.Masked))
	case r.Text == "" && r.Format != "empty":
		return exitErrorf(ExitError, "%w", hint.Errorf("see --body hex", "it is not text, but %s", r.Format))
	case r.Truncated:
		fmt.Fprintln(p.err, "what follows is shortened")
	}
	if slices.Contains([]string{"json", "messagepack", "cbor", "protobuf"}, r.Format) { // its text is JSON
		return p.print(harmless(r.Text)+"\n", nil)
	}
	return lines(p.out, r.Text)
}

// detail shows a message without its body.
func detail(w io.Writer, m inspect.Detail, now time.Time) {
	facts(w, m, now)
	timeline(w, m.Timeline, now)
	if len(m.Properties) > 0 {
		fmt.Fprintln(w)
		rows(w, []column[inspect.Property]{{Head: "Property", Field: "Name"}, {Field: "Value", Narrow: wraps}},
			m.Properties, now)
	}
	if len(m.Headers) > 0 {
		fmt.Fprintln(w)
		rows(w, []column[inspect.Header]{{Head: "Header", Field: "Name"}, {Field: "Type"}, {Field: "From"},
			{Field: "Value", Narrow: wraps}}, m.Headers, now)
	}
}

func facts(w io.Writer, m inspect.Detail, now time.Time) {
	until := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return timeText(t) + " (" + ago(t, now) + ")"
	}
	state, replays, size := m.State, "", ""
	if m.Size != nil {
		size = count(*m.Size) + " bytes"
	}
	if m.Held != "" {
		state += "; held back: " + m.Held
	}
	if m.State == inspect.Retried {
		state += "; not seen again since"
	}
	if m.Replays > 0 {
		replays = count(m.Replays)
	}
	all := [][2]string{
		{"ID", m.ID}, {"Key", m.Key}, {"Queue", m.Queue}, {"State", state}, {"Due", until(m.Due)},
		{"Parked", until(m.ParkedAt)}, {"Parked for", m.ParkedFor}, {"Retried", until(m.RetriedAt)},
		{"Restorable until", until(m.Restorable)}, {"Failures", m.FailuresText()}, {"Replays", replays},
		{"Reason", m.Reason}, {"Error", m.Error}, {"Policy", m.Policy}, {"Rule", m.Rule}, {"Notify", m.Notify},
		{"Adopted from", m.AdoptedFrom}, {"Group", m.Group}, {"First failed", until(&m.FirstFailed)},
		{"Failed", until(&m.Failed)}, {"Exchange", m.Exchange}, {"Routing key", m.RoutingKey},
		{"Goes to", m.SendsTo}, {"Made from", m.MadeFrom}, {"Made into", m.MadeInto},
		{"Size", size}, {"Body", m.Away},
	}
	for _, x := range m.HeldBy {
		why := x.Why
		if x.Since != nil {
			why += fmt.Sprintf(" (since %s)", timeText(x.Since))
		}
		if x.Until != nil {
			why += ", next probe " + until(x.Until)
		}
		head := "Held back by"
		if m.State == inspect.Parked {
			head = "A replay waits"
		}
		all = append(all, [2]string{head, why})
	}
	for _, n := range m.Notes {
		all = append(all, [2]string{"Note", n})
	}
	for _, n := range m.GroupNotes {
		all = append(all, [2]string{"Note on its error", n})
	}
	for _, o := range m.SameID {
		all = append(all, [2]string{"Same ID", fmt.Sprintf("%s, %s in %s", o.Key, o.State, o.Queue)})
	}
	pairs(w, all)
}

// pairs writes facts: of each its name, and what it is. Those that are not known are left out.
func pairs(w io.Writer, all [][2]string) {
	all = slices.DeleteFunc(all, func(f [2]string) bool { return f[1] == "" || f[1] == "-" })
	longest := 0
	for _, f := range all {
		longest = max(longest, utf8.RuneCountInString(f[0]))
	}
	for _, f := range all {
		name := plain(f[0])
		for _, line := range wrapped(f[1], room(w, longest+columnGap)) {
			fmt.Fprintf(w, "%s\t%s\n", name, line)
			name = ""
		}
	}
}

var stepColumns = []column[inspect.Step]{
	{Head: "Failure", Field: "Attempt", Value: func(s inspect.Step) any {
		if s.Attempt == 0 {
			return nil
		}
		return s.Attempt
	}}, {Head: "When", Value: func(s inspect.Step) any { return timeText(&s.Failed) }},
	{Field: "Reason"}, {Head: "Wait", Field: "Delay"},
	{Head: "Ended", Narrow: inspect.Below, Value: func(s inspect.Step) any {
		if s.Ended == nil {
			return ""
		}
		ended := s.Ending + " " + timeText(s.Ended)
		if s.Late != "" {
			ended += ", " + s.Late + " after it was due"
		}
		for _, h := range s.LateBy {
			ended += "; " + h.Why + " (since " + timeText(h.Since) + ")"
		}
		return ended
	}},
	{Field: "Why", Narrow: inspect.Below},
}

func timeline(w io.Writer, all []inspect.Step, now time.Time) {
	fmt.Fprintln(w)
	noted(w, stepColumns, all, now, func(s inspect.Step) string { return s.Error })
}

func (p *program) queues() *cobra.Command {
	return p.watched(p.withOutput(p.withClient(&cobra.Command{
		Use:   "queues [QUEUE]",
		Short: "Show queues: consumers, ready, waiting and parked messages, policy, pauses",
		Long: `Of one queue it also shows what is wrong with it, its policy and why that applies, the
error groups with the most messages, and the messages that are due next.`,
		Example:           "  redrive queues\n  redrive queues orders --watch",
		ValidArgsFunction: p.completeQueues,
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		if len(args) > 0 {
			q, err := client.Queue(ctx, args[0])
			if err != nil {
				return err
			}
			return write(p, q, func(q inspect.QueueDetail) string { return q.Name },
				func(w io.Writer) { queueDetail(w, q, time.Now()) })
		}
		all, err := client.Queues(ctx)
		if err != nil {
			return err
		}
		others := len(slices.DeleteFunc(slices.Clone(all.Forgotten), func(name string) bool {
			return slices.ContainsFunc(all.Queues, func(q inspect.Queue) bool { return q.Name == name })
		}))
		if len(all.Queues) == 0 && p.format == "table" && !p.watching {
			p.say("", "Nothing has failed yet: a queue is listed from its first failure on. redrive queues QUEUE "+
				"shows any other, and redrive doctor whether it is enrolled.")
		} else {
			err = listColumns(p, all, all.Queues, queueColumns(time.Now()))
		}
		if err == nil && others > 0 && p.format == "table" {
			fmt.Fprintf(p.out, "\n%s: redrive doctor\n", plural(others,
				"other queue holds messages and has no consumer", "other queues hold messages and have no consumer"))
		}
		return err
	})))
}

func queueColumns(now time.Time) []column[inspect.Queue] {
	columns := []column[inspect.Queue]{{Head: "Queue", Field: "Name"}}
	for _, c := range append([]column[inspect.AtBroker]{{Field: "Kind", Narrow: 5}}, inspect.BrokerColumns...) {
		columns = append(columns, column[inspect.Queue]{Head: cmp.Or(c.Head, c.Field), Narrow: c.Narrow,
			Value: func(q inspect.Queue) any {
				switch b := q.Broker; {
				case b == nil || b.Exists && c.Of(*b) == "":
					return nil
				case b.Exists:
					return c.Of(*b)
				case c.Field == "Kind":
					return "not there"
				}
				return ""
			}})
	}
	return append(append(columns, inspect.QueueCounts...), []column[inspect.Queue]{
		{Field: "Discarded", Narrow: 4}, {Head: "Next due", Narrow: 1, Value: nextDue}, {Field: "Policy", Narrow: 2},
		{Head: "Retries", Narrow: inspect.Below, Value: func(q inspect.Queue) any { return retries(q, now) }},
	}...)
}

// queueDetail shows one queue, as its page does.
func queueDetail(w io.Writer, q inspect.QueueDetail, now time.Time) {
	var all [][2]string
	for _, c := range queueColumns(now) {
		value := valueText(c.Of(q.Queue), now)
		if c.Head == "Retries" && q.NotEnrolled != "" {
			value = fmt.Sprintf("no: %s; redrive enroll %s", q.NotEnrolled, doctor.Quote(q.Name))
		}
		if c.Head == "Retries" && q.Alone {
			value = "by RabbitMQ alone, after the same wait each time; nothing is parked"
		}
		all = append(all, [2]string{cmp.Or(c.Head, c.Field), value})
	}
	for _, c := range q.Conditions {
		all = append(all, [2]string{"Wrong now", fmt.Sprintf("%s (since %s)", c, timeText(&c.Since))})
	}
	all = append(all, [2]string{"Last minute", fmt.Sprintf("%s failed, %s retried, %s parked", count(q.Failed),
		count(q.Retried), count(q.ParkedIn))})
	if f := q.InForce; f != nil {
		all = append(all, [2]string{"Applies because", fmt.Sprintf("%s matches the queue", q.Pattern)},
			[2]string{"Attempts", fmt.Sprint(f.Attempts)}, [2]string{"Backoff", f.Backoff + ", jitter " + f.Jitter},
			[2]string{"Waits in", f.Way}, [2]string{"Limits", cmp.Or(f.Limits, "none: retried as soon as due")},
			[2]string{"After the last", f.Exhausted})
		for _, s := range f.Settings {
			all = append(all, [2]string{s.Key, s.Value})
		}
		if len(f.Rules) > 0 {
			all = append(all, [2]string{"Rules", count(len(f.Rules))})
		}
	} else if !q.Alone {
		refused := "a replay is refused: add it to the queues of a policy"
		if q.NotEnrolled == "" {
			refused = "what fails is parked, and " + refused
		}
		all = append(all, [2]string{"No policy", refused})
	}
	pairs(w, all)
	if len(q.Groups) > 0 {
		fmt.Fprintln(w)
		rows(w, without(inspect.GroupColumns, "Queue"), q.Groups, now)
	}
	if more := q.GroupCount - len(q.Groups); more > 0 {
		fmt.Fprintf(w, "and %d more: redrive groups %s\n", more, plain(doctor.Quote("queue:"+query.Quote(q.Name))))
	}
	if len(q.Next) > 0 {
		fmt.Fprintln(w, "\nDue next:")
		rows(w, without(inspect.MessageColumns, "Queue", "State"), q.Next, now)
	}
}

// without leaves out the columns with these fields or heads.
func without[T any](all []column[T], fields ...string) []column[T] {
	return slices.DeleteFunc(slices.Clone(all), func(c column[T]) bool {
		return slices.Contains(fields, cmp.Or(c.Field, c.Head))
	})
}

func retries(q inspect.Queue, now time.Time) string {
	state := q.Throttle.Text()
	switch h := q.Pause; {
	case h != nil:
		text := strings.TrimSuffix(fmt.Sprintf("paused %s by %s: %s", ago(&h.Since, now), h.By, h.Reason), ": ")
		for _, also := range q.Holds()[1:] {
			text += "; " + also.Why
		}
		return text
	case q.Unreachable != "": // as on the page: it must be repaired first
		return "no: " + q.Unreachable
	case q.Throttle.KeepsBack():
		if q.Throttle.Until != nil {
			state += "; next probe " + untilText(q.Throttle.Until, now)
		}
		return state
	case q.Policy == "":
		return "no: no policy names it"
	}
	texts := slices.DeleteFunc([]string{"yes", q.Throttle.LimitText(), state}, func(s string) bool { return s == "" })
	return strings.Join(texts, ", ")
}

func (p *program) groups() *cobra.Command {
	var f queryFlags
	var note string
	var byQueue bool
	var limit int
	c := &cobra.Command{
		Use:   "groups [QUERY | ID]",
		Short: "Show error groups: messages that failed with the same error, those with the most kept messages first",
		Long: `A group has the messages with the same error, once numbers, ids and times are taken out; or
with the same reason and type where no error is known. An error in several queues is one
line, and its ID stands for it in all queues; --by-queue lists each queue's group, with an
ID of its own. Of one, by its ID, it shows the newest error as it came, and what the messages
have in common; --state sets its state: open, acknowledged, ignored until it fails ten times
as often in a day, or resolved until a message fails with it again. Without --state, a list
leaves out ignored and resolved ones. To see a group's messages: redrive messages list group:ID`,
		Example: "  redrive groups state:parked\n  redrive groups --state ignored\n" +
			"  redrive groups 5a1f0c2b9e3d4a76\n" +
			"  redrive groups 5a1f0c2b9e3d4a76 --state acknowledged --note 'ticket 4711'",
		ValidArgsFunction: p.completeQuery,
	}
	values := append(slices.Clone(inspect.GroupStates), inspect.AllStates)
	f.add(p, c, values...)
	const expected = "of groups open, acknowledged, ignored, resolved or all; of messages waiting, retried, parked " +
		"or discarded"
	c.Flags().Lookup("state").Usage = expected
	c.Flags().StringVar(&note, "note", "", "with ID and --state: such as a ticket or a link")
	c.Flags().BoolVar(&byQueue, "by-queue", false, "a line for each queue that has the error")
	c.Flags().IntVar(&limit, "limit", 100, "the most to show")
	c = p.withClient(c, func(ctx context.Context, client httpapi.Client, args []string) error {
		if limit < 1 {
			return fmt.Errorf("--limit %d: expected at least 1: %w", limit, errUsage)
		}
		f, state := f, ""
		if slices.Contains(values, f.state) {
			f.state, state = "", f.state
		} else if f.state != "" && !slices.Contains(states, f.state) {
			return fmt.Errorf("--state %q: expected %s: %w", f.state, expected, errUsage)
		}
		query, err := f.query(args)
		if err != nil {
			return err
		}
		p.query = query
		if id, shows := strings.CutPrefix(query, "show "); shows {
			return fmt.Errorf("groups takes the ID alone: redrive groups %s: %w", id, errUsage)
		}
		_, notID := errorgroup.Parse(query)
		switch {
		case note != "" && (notID != nil || state == ""):
			return fmt.Errorf("--note goes with the ID of a group and --state: %w", errUsage)
		case notID == nil && state != "":
			if err := client.SetGroupState(ctx, query, state, note); err != nil {
				return err
			}
			fmt.Fprintf(p.err, "The group is %s.\n", state)
			return nil
		case notID == nil:
			g, err := client.Group(ctx, query)
			if err != nil {
				return err
			}
			return write(p, g, func(g inspect.GroupDetail) string { return g.Key() },
				func(w io.Writer) { groupDetail(w, g) })
		}
		by := "error"
		if byQueue {
			by = "queue"
		}
		all, err := client.FirstGroups(ctx, query, state, by, limit)
		if err != nil {
			return err
		}
		err = listColumns(p, all, all.Groups, inspect.GroupColumns)
		if err == nil && len(all.Groups) > 0 && p.format == "table" {
			fmt.Fprintf(p.out, "\nMore about the first, and its messages:\n  redrive groups %[1]s\n"+
				"  redrive messages list group:%[1]s\n", plain(all.Groups[0].Key()))
		}
		if more := all.Total - len(all.Groups); err == nil && more > 0 {
			fmt.Fprintf(p.err, "and %s more: --limit %d\n", count(more), all.Total)
		}
		return err
	})
	c.AddCommand(p.groupsNote())
	return p.watched(p.withOutput(c))
}

// groupDetail shows one group, as its page does.
func groupDetail(w io.Writer, g inspect.GroupDetail) {
	all := [][2]string{{"ID", g.Key()}, {"Queue", g.Queues()},
		{"Waiting", count(g.Waiting)}, {"Parked", count(g.Parked)}, {"Discarded", count(g.Discarded)},
		{"First", timeText(&g.First)}, {"Last", timeText(&g.Last)},
		{"Failed", g.Trend()}, {"Grouped as", g.What()},
		{"Note", g.Note}, {"State", g.StateText()},
		{"Set by", g.StateBy}, {"Set at", timeText(g.StateAt)}, {"Ticket", g.StateNote}}
	if g.Partial {
		all = append(all, [2]string{"Also in", "other queues: redrive groups " + g.ErrorID})
	}
	if g.Newest != nil {
		all = append(all, [2]string{"Newest error", g.Newest.Error},
			[2]string{"Newest", "redrive messages show " + g.Newest.Key})
	}
	if g.Oldest != nil {
		all = append(all, [2]string{"Oldest", "redrive messages show " + g.Oldest.Key})
	}
	if g.Bounded {
		all = append(all, [2]string{"Looked at", "the newest " + count(g.Looked) + ", for what follows"})
	}
	all = append(all, [2]string{"Types", shares(g.Types)}, [2]string{"Failures", shares(g.Attempts)},
		[2]string{"Messages", "redrive messages list group:" + g.Key()})
	if g.Parked > 0 {
		all = append(all, [2]string{"Then replay", "redrive replay 'state:parked group:" + g.Key() + "' --canary 1"})
	}
	pairs(w, all)
	if len(g.ByQueue) > 0 {
		fmt.Fprintln(w)
		rows(w, without(inspect.GroupColumns, "What"), g.ByQueue, time.Now())
	}
}

func shares(all []inspect.Share) string {
	var texts []string
	for _, s := range all {
		texts = append(texts, fmt.Sprintf("%s × %s", s.Value, count(s.Count)))
	}
	return strings.Join(texts, ", ")
}

func (p *program) groupsNote() *cobra.Command {
	return p.withClient(&cobra.Command{
		Use:     "note GROUP TEXT",
		Short:   "Keep a note with a group, for the next person; an empty note removes it",
		Example: "  redrive groups note 5a1f0c2b9e3d4a76 'reported to the supplier: ticket 4711'",
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		if err := client.NoteGroup(ctx, args[0], args[1]); err != nil {
			return err
		}
		fmt.Fprintln(p.err, "The note is kept.")
		return nil
	})
}

func (p *program) ledger() *cobra.Command {
	var recount bool
	c := p.withClient(&cobra.Command{
		Use:     "ledger",
		Short:   "Show, for each queue, how many messages came in and what became of them",
		Example: "  redrive ledger\n  redrive ledger -o csv",
		Long: `The other columns add up to IN, what came in since the ledger began. UNACCOUNTED is the
difference, and should be 0: with another the exit code is 1. It is found by counting the
kept messages one by one, which the service does from time to time, and at once with
--recount.`,
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		l, err := client.Ledger(ctx, recount)
		if err != nil {
			return err
		}
		err = list(p, l, l.Queues, func(l inspect.LedgerLine) string { return l.Queue },
			func(w io.Writer) { ledger(w, l, time.Now()) })
		if err != nil {
			return err
		}
		for _, line := range l.Queues {
			if line.Off != 0 {
				err = hint.Errorf("see docs/how-to/alerts.md, RedriveLedgerOff",
					"the ledger is off by %d for the queue %q", line.Off, line.Queue)
				break
			}
		}
		if p.watching {
			p.printError(err)
			return nil
		}
		return err
	})
	c.Flags().BoolVar(&recount, "recount", false, "count the kept messages one by one now")
	return p.watched(p.withOutput(c))
}

func ledger(w io.Writer, l inspect.Ledger, now time.Time) {
	if len(l.Queues) == 0 {
		fmt.Fprintln(w, "no message has failed yet")
		return
	}
	rows(w, l.Columns(), l.Queues, now)
	if l.Recounted != nil {
		fmt.Fprintf(w, "\nWhat is kept was counted one by one %s.\n", ago(l.Recounted, now))
	}
}

func (p *program) audit() *cobra.Command {
	var after string
	var limit int
	var f inspect.AuditFilter
	c := p.withClient(&cobra.Command{
		Use:   "audit",
		Short: "Show the audit log: who did what, newest first",
		Long: `Only administrators may. The store keeps the entries of 90 days, at most 64 MiB; the
service also logs each action when it ends.`,
		Example: `  redrive audit --on orders --since 2h
  redrive audit --who ann --did 'operation.*' --until 2026-11-21T10:00Z`,
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		if limit < 1 {
			return fmt.Errorf("--limit %d: expected at least 1: %w", limit, errUsage)
		}
		page, err := fetchAudit(ctx, client, f, after, limit)
		if err != nil {
			return err
		}
		if len(page.Entries) == 0 && p.format == "table" && !p.watching {
			fmt.Fprintln(p.err, nothingToShow)
			return nil
		}
		err = list(p, page, page.Entries, func(e audit.Entry) string { return fmt.Sprint(e.N) },
			func(w io.Writer) { rows(w, auditColumns, page.Entries, time.Now()) })
		if err == nil {
			p.more(page.After)
		}
		return err
	})
	c.Flags().StringVar(&after, "after", "", "continue after the previous page")
	c.Flags().IntVar(&limit, "limit", 100, "the most to show")
	c.Flags().StringVar(&f.Who, "who", "", "of this person or token: * is any text, ? one character")
	c.Flags().StringVar(&f.Did, "did", "", "this action, such as pause, also by operations, or 'operation.*'")
	c.Flags().StringVar(&f.On, "on", "", "on this queue, also where a query names it, or on this id")
	c.Flags().StringVar(&f.Since, "since", "", "not before this time, or this long ago, such as 2h")
	c.Flags().StringVar(&f.Until, "until", "", "before this time, or longer ago than this")
	_ = c.RegisterFlagCompletionFunc("on", p.completeQueues)
	return p.watched(p.withOutput(c))
}

// fetchAudit returns the entries that a filter chooses, up to a limit.
func fetchAudit(
	ctx context.Context, client httpapi.Client, f inspect.AuditFilter, after string, limit int,
) (all httpapi.AuditPage, err error) {
	all.Entries = []audit.Entry{}
	for all.After = after; ; {
		page, err := client.Audit(ctx, f, all.After, min(limit-len(all.Entries), maxOnAPage))
		if err != nil {
			return all, err
		}
		all.Entries, all.After = append(all.Entries, page.Entries...), page.After
		if page.After == "" || len(all.Entries) >= limit {
			return all, nil
		}
	}
}

var auditColumns = []column[audit.Entry]{
	{Head: "At", Value: func(e audit.Entry) any { return timeText(&e.At) }},
	{Field: "Who"}, {Field: "From", Narrow: 4}, {Head: "By", Field: "Interface", Narrow: 3},
	{Head: "Did", Value: func(e audit.Entry) any { return inspect.Does(e) }},
	{Field: "Count", Narrow: 2}, {Field: "Outcome", Value: func(e audit.Entry) any { return e.Result() }},
	{Field: "On", Narrow: inspect.Below, Value: func(e audit.Entry) any { return e.Subject() }},
	{Field: "Why", Narrow: inspect.Below},
}

// maxBody is the largest message that RabbitMQ can be set to accept.
const maxBody = 512 << 20

func (p *program) decode() *cobra.Command {
	var b decode.Body
	c := &cobra.Command{
		Use:   "decode [FILE|-]",
		Short: "Show what a body contains: base64, compression, JSON, Protobuf and more",
		Long: `First come the steps, each with what it found, then the text.

Output: table; json, everything that is known; raw, the innermost bytes as they are; hex.

Protobuf is read with the types that the config file names (decode.protobuf).`,
		RunE: func(c *cobra.Command, args []string) error {
			cfg := config.Default()
			if p.config != "" {
				var err error
				if cfg, err = config.Load(p.config, p.getenv); err != nil {
					return err
				}
			}
			// A type that is given here is to be used.
			cfg.Decode.Protobuf.TypeProperty = cfg.Decode.Protobuf.TypeProperty || b.Type != ""
			d, err := decode.New(cfg.Decode)
			if err != nil {
				return err
			}
			if b.Bytes, err = readBody(c.InOrStdin(), args); err != nil {
				return err
			}
			return p.decoded(d.Decode(c.Context(), b))
		},
	}
	p.withConfig(c, "the config file, for its decode.protobuf")
	c.Flags().StringVar(&b.ContentType, "content-type", "", "as the message has it")
	c.Flags().StringVar(&b.ContentEncoding, "content-encoding", "", "as the message has it")
	c.Flags().StringVar(&b.Queue, "queue", "", "the queue it was in, which may choose a Protobuf type")
	c.Flags().StringVar(&b.Type, "type", "", "its property type, which may name a Protobuf type")
	return p.withFormats(c, "table", "json", "raw", "hex")
}

func readBody(stdin io.Reader, args []string) ([]byte, error) {
	from := stdin
	if len(args) == 1 && args[0] != "-" {
		f, err := os.Open(args[0])
		if err != nil {
			return nil, fmt.Errorf("the body: %w", err)
		}
		defer f.Close()
		from = f
	}
	b, err := io.ReadAll(io.LimitReader(from, maxBody+1))
	if err == nil && len(b) > maxBody {
		err = fmt.Errorf("it is larger than %d MiB, the most that RabbitMQ accepts", maxBody>>20)
	}
	if err != nil {
		return nil, fmt.Errorf("the body: %w", err)
	}
	return b, nil
}

func (p *program) decoded(r *decode.Result) error {
	switch p.format {
	case "json":
		return p.print(jsonOf(r, "  "))
	case "raw":
		if err := p.notRaw(); err != nil {
			return err
		}
		_, err := p.out.Write(r.Inner)
		return err
	case "hex":
		return p.print(hex.Dump(r.Inner), nil)
	}
	return p.steps(r)
}

func (p *program) steps(r *decode.Result) error {
	w := p.tableOn(p.out)
	if r.Masked != "" {
		fmt.Fprintln(w, plain(r.Masked))
	}
	if r.Masked == "" || len(r.Steps) > 0 {
		fmt.Fprintln(w, "DECODER\tSIZE\tFOUND")
	}
	for _, s := range r.Steps {
		fmt.Fprintf(w, "%s\t%d\t%s\n", s.Decoder, s.Size, plain(s.Found))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Truncated {
		fmt.Fprintln(p.err, "what follows is shortened")
	}
	fmt.Fprintln(p.out)
	return lines(p.out, cmp.Or(r.Text, r.Hex))
}

func (p *program) notRaw() error {
	if isTerminal(p.out) {
		return errors.New("raw bytes can contain control sequences: send them to a file or another program")
	}
	return nil
}
