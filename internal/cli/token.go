package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/httpapi"
)

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
