package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/doctor"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/rabbitmq/permissions"
	"github.com/redrive-mq/redrive/policy"
)

// grant is the rights of a role, for a user in a virtual host.
type grant struct {
	User  string `json:"user"`
	VHost string `json:"vhost"`
	// tagged is the user that needs the tags: that of broker.management, which may be another.
	tagged string
	permissions.Rights
}

// library is the two roles of the Go library's consumers.
const library = "library"

func (p *program) permissions() *cobra.Command {
	var user, role string
	var queues []string
	c := &cobra.Command{
		Use:   "permissions",
		Short: "Print the least permissions in RabbitMQ that the service and consumers need",
		Long: `Print the least permissions in RabbitMQ that the service and consumers need, as commands
of rabbitmqctl. They are for the queues of the config's policies, or of --queue. Redrive's
tests run its service with exactly these. Nothing is changed. Permissions are per virtual
host: --vhost names it, served or not.

definitions is JSON for rabbitmqctl import_definitions, without users.`,
		Example: `  redrive permissions --config redrive.yaml
  redrive permissions --for consumer --user shop --queue 'orders.*'`,
		Args: exactArgs(0, "no arguments"),
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
		if role != "" && role != library && role != permissions.RoleService && !c.Flags().Changed("user") {
			user += "-" + role // or the command would take the service's rights away
		}
		all := grants(permissions.All(policies), role, grant{User: user, VHost: vhost, tagged: managementUser(cfg, vhost)})
		if p.format == "definitions" {
			return p.print(jsonOf(definitions(all), "  "))
		}
		return list(p, all, all, func(g grant) string { return g.User }, func(w io.Writer) { writeGrants(w, all) })
	}
	p.withConfig(c, "the config file (YAML)")
	c.Flags().StringVar(&user, "user", "redrive", "the service's user, or that of --for; those of other roles have the role at their end")
	c.Flags().StringVar(&role, "for", "", "only for one role: "+strings.Join(roles, ", ")+"; or library, for the two that the Go library needs")
	c.Flags().StringArrayVar(&queues, "queue", nil, "work queues of this name or pattern, instead of those of the policies; may be given again")
	return p.withFormats(withVHost(c), "text", "json", "jsonl", "yaml", "definitions")
}

var roles = []string{permissions.RoleService, permissions.RoleConsumer, permissions.RoleReporter, permissions.RoleGoReporter, permissions.RoleGoConsumer, permissions.RoleDeclarer}

// managementUser is the user of broker.management; "": the one of AMQP.
func managementUser(cfg *config.Config, vhost string) string {
	api, err := cfg.Broker.API(vhost)
	if err != nil {
		return ""
	}
	u, err := url.Parse(addresses.Split(cfg.Broker.URL)[0])
	if err != nil || u.User.Username() == api.User() {
		return ""
	}
	return api.User()
}

// grants returns the rights of a role, or of all; like has what is the same for each.
func grants(rights []permissions.Rights, role string, like grant) (all []grant) {
	for _, r := range rights {
		g := like
		g.Rights = r
		if (role == "" || role == library) && r.Role != permissions.RoleService {
			g.User += "-" + r.Role
		}
		g.tagged = cmp.Or(g.tagged, g.User)
		if role == "" || role == r.Role || role == library && (r.Role == permissions.RoleGoConsumer || r.Role == permissions.RoleGoReporter) {
			all = append(all, g)
		}
	}
	return all
}

// policiesFor returns policies for these queues alone, with the same forward targets.
func policiesFor(policies policy.Set, queues []string) policy.Set {
	narrow := policy.Default()
	narrow.Queues = queues
	all := policy.Set{narrow}
	for _, p := range policies {
		if p.Exhausted.Action == policy.Forward {
			p.Queues = queues
			all = append(all, p)
		}
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
			(&diagnosis{w: w}).wrap("# ", n)
		}
		fmt.Fprintf(w, "rabbitmqctl add_user %s # asks for a password\n", user)
		fmt.Fprintf(w, "rabbitmqctl set_permissions -p %s %s %s %s %s\n", vhost, user, doctor.Quote(g.Configure), doctor.Quote(g.Write), doctor.Quote(g.Read))
		if len(g.Tags) > 0 {
			(&diagnosis{w: w}).wrap("# ", "set_user_tags replaces all tags of the user: name those that it has, too (rabbitmqctl list_users shows them).")
			fmt.Fprintf(w, "rabbitmqctl set_user_tags %s %s\n", doctor.Quote(g.tagged), strings.Join(g.Tags, " "))
		}
		for _, t := range g.Topics {
			fmt.Fprintf(w, "rabbitmqctl set_topic_permissions -p %s %s %s %s %s\n", vhost, user, doctor.Quote(t.Exchange), doctor.Quote(t.Write), doctor.Quote(t.Read))
		}
	}
}

// definitions are the same for rabbitmqctl import_definitions.
func definitions(all []grant) any {
	type permission struct {
		User      string `json:"user"`
		VHost     string `json:"vhost"`
		Configure string `json:"configure"`
		Write     string `json:"write"`
		Read      string `json:"read"`
	}
	type topic struct {
		User  string `json:"user"`
		VHost string `json:"vhost"`
		permissions.Topic
	}
	var d struct {
		Permissions []permission `json:"permissions"`
		Topics      []topic      `json:"topic_permissions,omitempty"`
	}
	for _, g := range all {
		d.Permissions = append(d.Permissions, permission{g.User, g.VHost, g.Configure, g.Write, g.Read})
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
		Long: `Create, list and revoke tokens, with which programs sign in: in the header
"Authorization: Bearer …", or for this command line in REDRIVE_TOKEN or
REDRIVE_TOKEN_FILE.

Only administrators may. For the first token, sign in as a user of RabbitMQ's with
the tag administrator: REDRIVE_USER, and REDRIVE_PASSWORD or REDRIVE_PASSWORD_FILE.`,
	}
	c.AddCommand(p.tokenCreate(), p.tokenList(), p.tokenRevoke())
	return commandGroup(c)
}

func (p *program) tokenCreate() *cobra.Command {
	var expires string
	var n httpapi.NewToken
	c := p.withClient(&cobra.Command{
		Use:     "create",
		Short:   "Create a token and print it, once",
		Example: "  redrive token create --name ci --role operator --queues 'orders.*' --expires 90d",
		Args:    exactArgs(0, "no arguments"),
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
				return fmt.Errorf("--expires %q: expected a duration such as 12h or 90d, or never: %w", expires, errUsage)
			}
			at := time.Now().Add(lasts)
			n.Expires = &at
		}
		made, err := client.CreateToken(ctx, n)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.err, "The token %s is shown only now: %s of %s, %s.\n", plain(made.Name), made.Role, queuesOf(made.Token), expiryOf(made.Token))
		return write(p, made, func(t httpapi.MadeToken) string { return t.Name }, func(w io.Writer) { fmt.Fprintln(w, made.Secret) })
	})
	c.Flags().StringVar(&n.Name, "name", "", "its name in the audit log")
	c.Flags().StringVar(&n.Role, "role", "", "viewer, operator, editor or admin")
	c.Flags().StringArrayVar(&n.Queues, "queues", nil, "a queue or pattern that it is limited to, repeatable; left out: all")
	c.Flags().StringVar(&expires, "expires", "90d", "how long it is valid, or never")
	return p.withOutput(c)
}

func (p *program) tokenList() *cobra.Command {
	return p.withOutput(p.withClient(&cobra.Command{
		Use:   "list",
		Short: "List tokens, without their secrets",
		Args:  exactArgs(0, "no arguments"),
	}, func(ctx context.Context, client httpapi.Client, _ []string) error {
		all, err := client.Tokens(ctx)
		if err != nil {
			return err
		}
		return listColumns(p, all, all.Tokens, tokenColumns)
	}))
}

var tokenColumns = []column[auth.Token]{
	{Field: "Name"}, {Field: "Role"}, {Head: "Queues", Value: func(t auth.Token) any { return queuesOf(t) }}, {Head: "Made by", Field: "By"},
	{Head: "Made", Value: func(t auth.Token) any { return t.Created.Format(time.DateOnly) }},
	{Head: "Expires", Value: func(t auth.Token) any { return expiryOf(t) }},
}

func (p *program) tokenRevoke() *cobra.Command {
	return p.withClient(&cobra.Command{
		Use:   "revoke NAME",
		Short: "Revoke a token, and the sessions begun with it, at once",
		Args:  exactArgs(1, "the token's name"),
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
