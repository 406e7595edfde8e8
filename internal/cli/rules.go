package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/policy"
)

func (p *program) rules() *cobra.Command {
	return commandGroup(&cobra.Command{Use: "rules", Short: "Try the rules of policies"}, p.rulesTry())
}

func (p *program) rulesTry() *cobra.Command {
	c := p.withQuery(&cobra.Command{
		Use:   "try [QUERY]",
		Short: "Show what the rules of a config file would have decided",
		Long: `It asks each rule about the latest failure of each message that the query finds, as if it
had just happened; without a query, of all that wait or are parked. Retention counts what
it would discard now, groups with a note included. CHANGES counts those that would be
decided otherwise, such as parked ones that would be retried. Nothing is changed. The
messages come from the service as redrive export has them, so the audit log has an entry.`,
		Example: `  redrive rules try --config new.yaml
  redrive rules try --config new.yaml 'queue:orders.* state:parked'`,
	}, func(ctx context.Context, client httpapi.Client, query string) error {
		if p.config == "" {
			return fmt.Errorf("name the file with the rules: --config FILE: %w", errUsage)
		}
		cfg, err := p.load()
		if err != nil {
			return err
		}
		t, err := newTrial(cfg)
		if err != nil {
			return err
		}
		if query == "" {
			query = "state:waiting OR state:parked"
		}
		if err := t.run(ctx, client, query, p.meter()); err != nil {
			return err
		}
		return list(p, t, t.Rules, func(r triedRule) string { return r.Policy + " " + r.Rule }, t.table)
	})
	p.withConfig(c, "the config file with the rules")
	return p.withOutput(c)
}

type trial struct {
	Messages int64       `json:"messages"`
	Changed  int64       `json:"changed"` // would be decided otherwise
	Rules    []triedRule `json:"rules"`

	policies policy.Set
	decoder  *decode.Decoder
	at       map[string]int // in Rules, by policy and rule
}

// triedRule is a rule, or with no rule what the policy itself decides.
type triedRule struct {
	Policy   string `json:"policy"`
	Rule     string `json:"rule,omitempty"`
	When     string `json:"when,omitempty"`
	Then     string `json:"then"`
	Messages int64  `json:"messages"`
	Example  string `json:"example,omitempty"`
	// Changes counts messages that would be decided otherwise, such as "parked to retry".
	Changes map[string]int64 `json:"changes,omitempty"`
}

func newTrial(cfg *config.Config) (t *trial, err error) {
	t = &trial{policies: cfg.Policies, at: map[string]int{}}
	if t.decoder, err = decode.New(cfg.Decode); err != nil {
		return nil, err
	}
	add := func(r triedRule) {
		t.at[r.Policy+"\n"+r.Rule] = len(t.Rules)
		t.Rules = append(t.Rules, r)
	}
	for i := range t.policies {
		of := &t.policies[i]
		for j, r := range of.Rules {
			add(triedRule{Policy: of.Name, Rule: of.RuleName(j), When: strings.TrimSpace(r.When.String()),
				Then: strings.TrimSpace(r.Then.String() + notifies(r.Notify))})
		}
		add(triedRule{Policy: of.Name, Then: "as the policy says"})
		if of.Retention > 0 {
			add(triedRule{Policy: of.Name, Rule: retention, Then: "discard",
				When: "parked for longer than " + policy.FormatDuration(of.Retention)})
		}
	}
	add(triedRule{Then: "park"})
	return t, nil
}

func (t *trial) run(ctx context.Context, client httpapi.Client, query string, meter *meter) error {
	defer meter.end()
	var invalid error
	_, err := client.Export(ctx, query, "jsonl", &lineWriter{to: func(line []byte) error {
		var r *store.Record
		if r, invalid = actions.ReadExported(line); invalid != nil {
			return invalid
		}
		t.try(ctx, r)
		if meter.draws {
			meter.show(messages(t.Messages), false)
		}
		return nil
	}})
	if meter.drawn > 0 {
		meter.show(messages(t.Messages), true)
	}
	return cmp.Or(invalid, err)
}

func (t *trial) try(ctx context.Context, r *store.Record) {
	of, rule, then := "", "", policy.Park
	p, ok := t.policies.Match(r.Queue)
	if ok {
		f := policy.Failure{Queue: r.Queue, Reason: r.Reason, Attempt: max(1, r.Failures), Replays: r.Replays,
			Error: r.Error, Message: &r.Message, FirstFailed: r.FirstFailed, At: r.FailedAt,
			Decoded: func() any { return t.decoder.Decode(ctx, inspect.BodyOf(r)) }}
		if why, asked := strings.CutPrefix(r.ParkedFor, "its consumer parked it: "); asked {
			f.Park = why
		}
		v := p.Decide(f)
		of, rule, then = p.Name, v.Rule, v.Action
		for i := range p.Rules {
			if p.RuleName(i) == rule {
				break
			}
			if p.Rules[i].Then.Action == policy.Undecided && p.Rules[i].When.Matches(&f) { // says how important it is
				t.count(p.Name, p.RuleName(i), r)
			}
		}
	}
	one := t.count(of, rule, r)
	if then != doneAs[r.State] {
		t.Changed++
		one.becomes(then, r)
	}
	if ok && p.Retention > 0 && r.State == store.Parked && time.Since(r.Due) > p.Retention {
		t.count(of, retention, r).becomes(policy.Discard, r)
	}
	t.Messages++
}

// doneAs is the decision that a state stands for.
var doneAs = map[store.State]policy.Action{store.Waiting: policy.Retry, store.Discarded: policy.Discard}

func (r *triedRule) becomes(then policy.Action, m *store.Record) {
	if r.Changes == nil {
		r.Changes = map[string]int64{}
	}
	r.Changes[inspect.StateName(m.State)+" to "+then.String()]++
}

func notifies(i policy.Importance) string {
	if i == policy.Unsaid {
		return ""
	}
	return " (notify: " + i.String() + ")"
}

// retention stands for a rule in the line of a policy's retention.
const retention = "(retention)"

func (t *trial) count(policy, rule string, r *store.Record) *triedRule {
	one := &t.Rules[t.at[policy+"\n"+rule]]
	one.Messages++
	one.Example = cmp.Or(one.Example, r.ID.String())
	return one
}

func (t *trial) table(w io.Writer) {
	rows(w, []column[triedRule]{
		{Head: "Policy", Value: func(r triedRule) any { return cmp.Or(r.Policy, "none") }},
		{Head: "Rule", Value: func(r triedRule) any { return cmp.Or(r.Rule, "none decides") }},
		{Field: "Messages"}, {Field: "When", Narrow: inspect.Below},
		{Field: "Changes", Narrow: inspect.Below, Value: func(r triedRule) any {
			var all []string
			for _, what := range slices.Sorted(maps.Keys(r.Changes)) {
				all = append(all, count(r.Changes[what])+" from "+what)
			}
			return strings.Join(all, ", ")
		}},
		{Head: "Such as", Field: "Example", Narrow: inspect.Below}, {Field: "Then", Narrow: wraps},
	}, slices.DeleteFunc(slices.Clone(t.Rules), func(r triedRule) bool { return r.Rule == "" && r.Messages == 0 }),
		time.Now())
	fmt.Fprintln(w)
	prose(w, fmt.Sprintf("Of %s, %s would be decided otherwise. Once in the service's config file, the rules hold for "+
		"failures from then on; it needs no restart.", messages(t.Messages), count(t.Changed)))
}
