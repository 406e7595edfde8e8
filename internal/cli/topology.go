package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/doctor"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/rabbitmq/enroll"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

func (p *program) topology() *cobra.Command {
	c := &cobra.Command{
		Use:   "topology",
		Short: "Print the exchanges and queues of a way to wait, as RabbitMQ definitions",
		Long: `They are for ` + "`" + `rabbitmqctl import_definitions` + "`" + ` or POST /api/definitions. The work
queue must exist.

fixed needs no other code: RabbitMQ alone retries rejected messages. The others are for
the Go library, when its user may not declare (Config.Verify).

With --name the delay queue has that name and is of the one work queue: consumers in any
language that publish to it themselves need no other change. For several levels, run it
for each. Delete a queue of that name first, when it is empty: importing keeps what is
there.`,
		Example: `  redrive topology fixed --queue work-queue --delay 60s --name work-queue-retry-60
  redrive topology levels --queue work-queue --levels 4s --name work-queue-retry-4`,
	}
	var levels []time.Duration
	var unit time.Duration
	byLevels := p.topologyOf("levels", "A queue for each level of delay",
		func(kind delay.QueueType) (delay.Way, error) { return delay.NewLevels(kind, levels...) })
	byLevels.Flags().DurationSliceVar(&levels, "levels", delay.DefaultLevels, "the delays")
	binary := p.topologyOf("binary", "A queue for each bit of the delay",
		func(kind delay.QueueType) (delay.Way, error) {
			if kind == delay.Classic {
				return nil, errors.New("binary has quorum queues only")
			}
			return delay.NewLadder(unit)
		})
	binary.Flags().DurationVar(&unit, "unit", time.Second, "what delays are rounded up to")
	return commandGroup(c, p.topologyFixed(), byLevels, binary,
		p.topologyOf("message-ttl", "One queue, each message with a time to live of its own",
			func(kind delay.QueueType) (delay.Way, error) { return delay.NewMessageTTL(kind, false), nil }))
}

type topologyFlags struct {
	queue, name, vhost string
	quorum, classic    bool
}

func (p *program) withTopologyFlags(
	c *cobra.Command, run func(topologyFlags, *config.Config, delay.QueueType) error,
) *cobra.Command {
	var at topologyFlags
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case at.queue == "":
			return fmt.Errorf("%s needs --queue: %w", c.CommandPath(), errUsage)
		case wire.OwnQueue(at.queue):
			return fmt.Errorf("--queue %q is one of Redrive's own queues: %w", at.queue, errUsage)
		case at.name == at.queue || wire.OwnQueue(at.name):
			return fmt.Errorf("--name %q is the work queue or one of Redrive's own: %w", at.name, errUsage)
		case at.quorum && at.classic:
			return fmt.Errorf("--quorum or --classic, not both: %w", errUsage)
		}
		cfg, _, err := p.loadAny()
		if err != nil {
			return err
		}
		at.vhost = cmp.Or(p.vhost, cfg.VHost())
		kind := delay.Quorum
		if at.classic {
			kind = delay.Classic
		}
		return run(at, cfg, kind)
	}
	withVHost(c)
	c.Flags().StringVar(&at.queue, "queue", "", "the work queue")
	c.Flags().StringVar(&at.name, "name", "",
		"of the delay queue and the exchange before it (default one of Redrive's)")
	p.withConfig(c, atRabbitMQ)
	c.Flags().BoolVar(&at.quorum, "quorum", false, "quorum delay queues (the default)")
	c.Flags().BoolVar(&at.classic, "classic", false,
		"classic delay queues: on one node, and what is due while its work queue cannot take it is lost")
	return c
}

// topologyOf makes the command of a way of the library's.
func (p *program) topologyOf(name, short string, of func(delay.QueueType) (delay.Way, error)) *cobra.Command {
	c := &cobra.Command{Use: name + " --queue QUEUE", Short: short}
	return p.withTopologyFlags(c, func(at topologyFlags, _ *config.Config, kind delay.QueueType) error {
		way, err := of(kind)
		if err != nil {
			return fmt.Errorf("%s: %w: %w", name, err, errUsage)
		}
		t := way.Topology(at.queue)
		if at.name != "" {
			if t, err = t.Named(at.name, at.queue); err != nil {
				return fmt.Errorf("--name %s: %w: %w", at.name, err, errUsage)
			}
		}
		return p.define(at.vhost, t, nil)
	})
}

// define prints definitions, and warnings below them.
func (p *program) define(
	vhost string, t delay.Topology, warnings []string, policies ...management.Policy,
) error {
	err := p.print(jsonOf(management.Define(vhost, t, policies...), "  "))
	if err == nil {
		err = p.warn(warnings)
	}
	if err == nil && isTerminal(p.out) {
		fmt.Fprintln(p.err, "nothing is declared yet: write this to a file, and import it with "+
			"rabbitmqctl import_definitions FILE")
	}
	return err
}

func (p *program) warn(all []string) error {
	w := p.tableOn(p.err)
	for _, text := range all {
		prose(w, "warning: "+text)
	}
	return w.Flush()
}

func (p *program) topologyFixed() *cobra.Command {
	var wait time.Duration
	var apply, undo bool
	c := &cobra.Command{
		Use:   "fixed --queue QUEUE --delay 60s",
		Short: "Retry rejected messages with RabbitMQ alone: no code, any language",
		Long: `The delay is the same each time: a RabbitMQ policy dead-letters the work queue to a queue
with a TTL, which dead-letters to the work queue. A message whose work queue no longer
exists goes to the queue redrive.parked.

RabbitMQ applies one policy to a queue at a time. If there is one already, use --apply,
which keeps its keys: it shows what it will set, and sets it through the management API.
--undo removes the policy; waiting messages are still retried.`,
	}
	p.withTopologyFlags(c, func(at topologyFlags, cfg *config.Config, kind delay.QueueType) error {
		if apply && undo {
			return fmt.Errorf("--apply or --undo, not both: %w", errUsage)
		}
		var m *management.Client
		if apply || undo {
			var err error
			if m, err = cfg.Broker.API(at.vhost); err != nil {
				return err
			}
		}
		if undo {
			if err := enroll.UndoFixedDelay(c.Context(), m, at.queue); err != nil {
				return err
			}
			fmt.Fprintf(p.out, "queue %q no longer dead-letters to a delay queue; waiting messages are still retried\n",
				at.queue)
			return nil
		}
		a, err := enroll.NewFixedDelay(at.queue, at.name, wait, kind)
		if err != nil {
			return fmt.Errorf("--delay: %w: %w", err, errUsage)
		}
		if !apply {
			return p.define(at.vhost, a.Topology(), append(a.Warnings(), "if a policy applies to the queue already, "+
				"this one would replace it or be ignored: use --apply, which merges them"), a.Policy())
		}
		if err := p.warn(a.Warnings()); err != nil {
			return err
		}
		plan, err := a.Plan(c.Context(), m)
		if err != nil {
			return err
		}
		enroll.Write(p.out, "will", plan)
		if err := p.confirm(c.Context(), "Set it?"); err != nil {
			return err
		}
		if err := plan.Apply(c.Context(), m); err != nil {
			return err
		}
		fmt.Fprintf(p.out, "messages rejected from queue %q are retried; `--undo` undoes it\n", at.queue)
		return nil
	})
	c.Flags().DurationVar(&wait, "delay", time.Minute, "how long a message waits")
	c.Flags().BoolVar(&apply, "apply", false, "set it through the management API")
	c.Flags().BoolVar(&undo, "undo", false, "remove the policy of --apply")
	c.Flags().BoolVar(&p.yes, "yes", false, "with --apply: do not ask")
	return c
}

func (p *program) move() *cobra.Command {
	m := &enroll.Move{}
	var dry bool
	c := &cobra.Command{
		Use:   "move QUEUE --to NEWNAME",
		Short: "Give a queue a new name, without its x-dead-letter-exchange, with its messages",
		Long: `RabbitMQ cannot change an x-dead-letter-exchange: a new queue gets the other arguments,
the policy in force (dead-lettering to Redrive), the bindings and the messages, and then
the old queue is deleted. Each step is shown first.

If the old queue has consumers, the command stops after it has declared the new one.
Deploy consumers of the new name (they may consume both), and run the same command again:
it continues. Run it again after Ctrl-C or a crash, too. No message is lost; after a crash
or a lost connection at most 32 are duplicated. What waits in queues that dead-letter to
the old one by its name, such as a retry queue, is waited for and moved, too.

The user needs the tag policymaker, and over AMQP: configure, write and read on both
queues and on redrive.*, read on the exchanges they are bound to, and from RabbitMQ 4.3
any right on the queues that dead-letter to the old one.`,
		Example: `  redrive move orders --to orders.v2 --dry-run
  redrive move orders --to orders.v2 --type quorum`,
	}
	p.withManagement(c, func(ctx context.Context, api *management.Client, cfg *config.Config, args []string) error {
		if m.Type != "" && m.Type != "classic" && m.Type != "quorum" || m.To == "" {
			return fmt.Errorf("%s needs --to, and --type is classic or quorum: %w", c.CommandPath(), errUsage)
		}
		m.From, m.API = args[0], api
		m.Broker = broker.Config{URL: cfg.Broker.URL, Credentials: cfg.Broker.Credentials,
			Name: "redrive move " + m.From, Log: slog.New(slog.DiscardHandler)}
		m.Report = func(s string) { fmt.Fprintln(p.err, plain(s)) }
		s, err := m.Look(ctx)
		if err != nil {
			return continues(err)
		}
		m.Write(p.out, s)
		if dry {
			return nil
		}
		if err := p.confirm(ctx, fmt.Sprintf("Move it to %q?", m.To)); err != nil {
			return err
		}
		return p.runMove(ctx, m)
	})
	f := c.Flags()
	f.StringVar(&m.To, "to", "", "the name of the new queue")
	f.StringVar(&m.Type, "type", "", "the type of the new queue, classic or quorum (default that of the old one)")
	f.BoolVar(&m.Keep, "keep", false, "keep the old queue, empty and without bindings")
	f.BoolVar(&m.WithoutConsumers, "without-consumers", false, "continue although the new queue has no consumers yet")
	f.DurationVar(&m.Quiet, "quiet", 10*time.Second, "delete the old queue when it has received nothing for this long")
	c.Flags().BoolVar(&p.yes, "yes", false, "do not ask")
	f.BoolVar(&dry, "dry-run", false, "only show the steps")
	return c
}

func (p *program) runMove(ctx context.Context, m *enroll.Move) error {
	meter := p.meter()
	var moved string
	m.Progress = func(n int) { moved = messages(n) + " moved"; meter.show(moved, false) }
	err := m.Run(ctx)
	if moved != "" {
		meter.show(moved, true)
	}
	meter.end()
	if err != nil {
		return continues(err)
	}
	if n := m.LostUserIDs(); n > 0 {
		fmt.Fprintf(p.err, "%s without their user-id now: RabbitMQ takes it from that user only\n",
			plural(n, "message is", "messages are"))
	}
	fmt.Fprintf(p.out, "queue %q is moved to %q\n", m.From, m.To)
	p.report(ctx, actions.Move, []string{m.From, m.To}, placeOf(m.API))
	return nil
}

// grant has the rights of a role, for a user in a virtual host.
type grant struct {
	User  string `json:"user"`
	VHost string `json:"vhost"`
	// tagged needs the tags: the user of broker.management, which may be another.
	tagged string
	management.Rights
}

// library stands for the two roles of the Go library's consumers.
const library = "library"

func (p *program) permissions() *cobra.Command {
	var user, role string
	var queues, adopts []string
	c := &cobra.Command{
		Use:   "permissions",
		Short: "Print the least permissions in RabbitMQ that the service and consumers need",
		Long: `The commands of rabbitmqctl that it prints are for the queues of the config's policies, or
of --queue. Redrive's tests run its service with exactly these. Nothing is changed.
Permissions are per virtual host: --vhost names it, served or not.

definitions is JSON for rabbitmqctl import_definitions, without users.`,
		Example: `  redrive permissions --config redrive.yaml
  redrive permissions --for consumer --user shop --queue 'orders.*'`,
	}
	c.RunE = func(*cobra.Command, []string) error {
		cfg, own, err := p.loadAny()
		if err != nil {
			return err
		}
		vhost := cmp.Or(p.vhost, cfg.VHost())
		if own != "" && !c.Flags().Changed("user") {
			user = own
		}
		policies := cfg.Policies
		if len(queues) > 0 {
			policies = policiesFor(policies, queues)
		}
		if role != "" && role != library && !slices.Contains(roles, role) {
			return fmt.Errorf("--for %q: expected %s or %s: %w", role, strings.Join(roles, ", "), library, errUsage)
		}
		if role != "" && role != library && role != management.RoleService && !c.Flags().Changed("user") {
			user += "-" + role // or the command would take the service's rights away
		}
		followed := append(adopts, cfg.FollowedQueues()...)
		all := grants(management.AllRights(policies, followed...), role,
			grant{User: user, VHost: vhost, tagged: managementUser(cfg, vhost)})
		if p.format == "definitions" {
			return p.print(jsonOf(definitions(all), "  "))
		}
		return list(p, all, all, func(g grant) string { return g.User }, func(w io.Writer) { writeGrants(w, all) })
	}
	p.withConfig(c, "the config file (YAML)")
	c.Flags().StringVar(&user, "user", "redrive",
		"the service's user, or that of --for; those of other roles have the role at their end")
	c.Flags().StringVar(&role, "for", "", "only for one role: "+strings.Join(roles, ", ")+"; or library, for the two "+
		"that the Go library needs")
	c.Flags().StringArrayVar(&queues, "queue", nil,
		"work queues of this name or pattern, instead of those of the policies; may be given again")
	c.Flags().StringArrayVar(&adopts, "adopt", nil, "a dead-letter queue of this name or pattern, which "+
		"redrive adopt takes from and redrive unadopt puts back into, besides those that the config follows; may be "+
		"given again")
	return p.withFormats(withVHost(c), "text", "json", "jsonl", "yaml", "definitions")
}

var roles = []string{management.RoleService, management.RoleConsumer, management.RoleReporter,
	management.RoleGoReporter, management.RoleGoConsumer, management.RoleDeclarer}

// managementUser returns the user of broker.management; "": the one of AMQP.
func managementUser(cfg *config.Config, vhost string) string {
	api, err := cfg.Broker.API(vhost)
	if err != nil {
		return ""
	}
	u, err := url.Parse(connect.SplitURLs(cfg.Broker.URL)[0])
	if err != nil || u.User.Username() == api.User() {
		return ""
	}
	return api.User()
}

// grants returns the rights of a role, or of all; like has what is the same for each.
func grants(rights []management.Rights, role string, like grant) (all []grant) {
	for _, r := range rights {
		g := like
		g.Rights = r
		if (role == "" || role == library) && r.Role != management.RoleService {
			g.User += "-" + r.Role
		}
		g.tagged = cmp.Or(g.tagged, g.User)
		if role == "" || role == r.Role ||
			role == library && (r.Role == management.RoleGoConsumer || r.Role == management.RoleGoReporter) {
			all = append(all, g)
		}
	}
	return all
}

// policiesFor returns policies for these queues alone, with the same forward targets.
func policiesFor(policies policy.Set, queues []string) policy.Set {
	all := policy.Set{policy.Default()}
	for _, p := range policies {
		if len(p.Forwards()) > 0 {
			all = append(all, p)
		}
	}
	for i := range all {
		all[i].Queues = queues
	}
	return all
}

func writeGrants(w io.Writer, all []grant) {
	for i, g := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		user, vhost := doctor.Quote(g.User), doctor.Quote(g.VHost)
		fmt.Fprintf(w, "# For %s.\n", g.For)
		for _, n := range g.Notes {
			wrap(w, "# ", n)
		}
		fmt.Fprintf(w, "rabbitmqctl add_user %s # asks for a password\n", user)
		fmt.Fprintf(w, "rabbitmqctl set_permissions -p %s %s %s %s %s\n", vhost, user, doctor.Quote(g.Configure),
			doctor.Quote(g.Write), doctor.Quote(g.Read))
		if len(g.Tags) > 0 {
			wrap(w, "# ", "set_user_tags replaces all tags of the user: name those that it has, too "+
				"(rabbitmqctl list_users shows them).")
			fmt.Fprintf(w, "rabbitmqctl set_user_tags %s %s\n", doctor.Quote(g.tagged), strings.Join(g.Tags, " "))
		}
		for _, t := range g.Topics {
			fmt.Fprintf(w, "rabbitmqctl set_topic_permissions -p %s %s %s %s %s\n", vhost, user,
				doctor.Quote(t.Exchange), doctor.Quote(t.Write), doctor.Quote(t.Read))
		}
	}
}

// definitions are the same for rabbitmqctl import_definitions.
func definitions(all []grant) any {
	type topic struct {
		User  string `json:"user"`
		VHost string `json:"vhost"`
		management.Topic
	}
	var d struct {
		Permissions []management.Permission `json:"permissions"`
		Topics      []topic                 `json:"topic_permissions,omitempty"`
	}
	for _, g := range all {
		d.Permissions = append(d.Permissions, management.Permission{User: g.User, VHost: g.VHost,
			Configure: g.Configure, Write: g.Write, Read: g.Read})
		for _, t := range g.Topics {
			d.Topics = append(d.Topics, topic{g.User, g.VHost, t})
		}
	}
	return d
}

func (p *program) token() *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Create, list and revoke tokens for programs",
		Long: `Programs sign in with them: in the header "Authorization: Bearer …", or for this command
line in REDRIVE_TOKEN or REDRIVE_TOKEN_FILE.

Only administrators may. For the first token, sign in as a user of RabbitMQ's with the tag
administrator: REDRIVE_USER, and REDRIVE_PASSWORD or REDRIVE_PASSWORD_FILE.`,
	}
	return commandGroup(c, p.tokenCreate(), p.tokenList(), p.tokenRevoke())
}

func (p *program) tokenCreate() *cobra.Command {
	var expires string
	var n httpapi.NewToken
	c := p.withClient(&cobra.Command{
		Use:     "create",
		Short:   "Create a token and print it, once",
		Example: "  redrive token create --name ci --role operator --queues 'orders.*' --expires 90d",
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		if _, err := auth.ParseRole(n.Role); err != nil {
			return fmt.Errorf("--role: %v: %w", err, errUsage)
		}
		if n.Name == "" {
			return fmt.Errorf("--name is missing: %w", errUsage)
		}
		if expires != "never" {
			lasts, err := config.ParseDuration(expires)
			if err != nil || lasts <= 0 {
				return fmt.Errorf("--expires %q: expected a duration such as 12h or 90d, or never: %w", expires,
					errUsage)
			}
			at := time.Now().Add(lasts)
			n.Expires = &at
		}
		made, err := client.CreateToken(ctx, n)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.err, "The token %s is shown only now: %s of %s, %s.\n", plain(made.Name), made.Role,
			queuesOf(made.Token), expiryOf(made.Token))
		return write(p, made, func(t httpapi.MadeToken) string { return t.Name },
			func(w io.Writer) { fmt.Fprintln(w, made.Secret) })
	})
	c.Flags().StringVar(&n.Name, "name", "", "its name in the audit log")
	c.Flags().StringVar(&n.Role, "role", "", "viewer, operator, editor or admin")
	c.Flags().StringArrayVar(&n.Queues, "queues", nil,
		"a queue or pattern that it is limited to, repeatable; left out: all")
	c.Flags().StringVar(&expires, "expires", "90d", "how long it is valid, or never")
	return p.withFormats(c, "table", "json", "jsonl", "yaml") // those that have the secret
}

func (p *program) tokenList() *cobra.Command {
	return p.withOutput(p.withClient(&cobra.Command{
		Use:   "list",
		Short: "List tokens, without their secrets",
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		all, err := client.Tokens(ctx)
		if err != nil {
			return err
		}
		return listColumns(p, all, all.Tokens, tokenColumns)
	}))
}

var tokenColumns = []column[auth.Token]{
	{Field: "Name"}, {Field: "Role"}, {Head: "Queues", Value: func(t auth.Token) any { return queuesOf(t) }},
	{Head: "Made by", Field: "By"},
	{Head: "Made", Value: func(t auth.Token) any { return t.Created.Format(time.DateOnly) }},
	{Head: "Expires", Value: func(t auth.Token) any { return expiryOf(t) }},
}

func (p *program) tokenRevoke() *cobra.Command {
	return p.withClient(&cobra.Command{
		Use:   "revoke NAME",
		Short: "Revoke a token, and the sessions begun with it, at once",
	}, func(ctx context.Context, client httpapi.Client, args []string) error {
		if err := client.RevokeToken(ctx, args[0]); err != nil {
			return err
		}
		fmt.Fprintf(p.err, "The token %s is revoked.\n", plain(args[0]))
		return nil
	})
}

func queuesOf(t auth.Token) string {
	if t.Queues == nil {
		return "all queues"
	}
	return plain(strings.Join(t.Queues, ", "))
}

func expiryOf(t auth.Token) string {
	switch {
	case t.Expires == nil:
		return "never expires"
	case t.Expires.Before(time.Now()):
		return "expired on " + t.Expires.Format(time.DateOnly)
	}
	return "expires on " + t.Expires.Format(time.DateOnly)
}
