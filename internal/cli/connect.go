package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// withAddress adds the flags that say which service to ask. Credentials are no flags: every user of the machine can
// read arguments.
func (p *program) withAddress(c *cobra.Command) *cobra.Command {
	address := cmp.Or(p.getenv("REDRIVE_ADDRESS"), config.Default().Listen)
	c.Flags().StringVar(&p.address, "address", address,
		"where the service listens, or a URL with https://; or REDRIVE_ADDRESS")
	withVHost(c)
	c.Flags().StringVar(&p.caFile, "ca-file", "",
		"certificates that sign the service's, besides the system's; or REDRIVE_CA_FILE")
	return c
}

// locate takes the service's address from its config, unless it is given.
func (p *program) locate(c *cobra.Command, cfg *config.Config) error {
	if p.named = c.Flags().Changed("address") || p.getenv("REDRIVE_ADDRESS") != ""; p.named {
		return nil
	}
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1" // it listens there too
	}
	p.address = net.JoinHostPort(host, port)
	if cfg.Access.HasTLS() {
		p.address = "https://" + p.address
	}
	return nil
}

// reportTimeout bounds how long a command that is done waits for the service.
const reportTimeout = 5 * time.Second

// report reports to the service's audit log what the command did at RabbitMQ. The command has succeeded whether or not
// this does: an error is one line, and only where an address was given. The address may lead to the service of another
// RabbitMQ, which refuses it.
func (p *program) report(
	ctx context.Context, action string, queues []string, at func(context.Context) (actions.Place, error),
) {
	if len(queues) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	client, err := p.client()
	var place actions.Place
	if err == nil {
		place, err = at(ctx)
	}
	for some := range slices.Chunk(queues, actions.MaxReported) {
		if err == nil {
			err = client.Report(ctx, actions.Report{Action: action, Queues: some, Place: place})
		}
	}
	if err != nil && p.named {
		fmt.Fprintf(p.err, "It is done, but not in the audit log: %s\n", plain(hint.Text(err)))
	}
}

// placeOf returns the cluster and virtual host of a client of the management API.
func placeOf(m *management.Client) func(context.Context) (actions.Place, error) {
	return func(ctx context.Context) (actions.Place, error) {
		o, err := m.Overview(ctx)
		return actions.Place{Cluster: o.Cluster, VHost: m.VHost()}, err
	}
}

// client signs in as the environment says, or else with what `redrive login` has kept.
func (p *program) client() (httpapi.Client, error) {
	client, err := p.environment()
	if err != nil || client.Token+client.User != "" {
		return client, err
	}
	return withLogin(client)
}

func (p *program) environment() (httpapi.Client, error) {
	return httpapi.NewClient(p.serviceAddress(), func(name string) string {
		if name == "REDRIVE_CA_FILE" && p.caFile != "" {
			return p.caFile
		}
		return p.getenv(name)
	})
}

// choosesVHost annotates the commands that take --vhost.
const choosesVHost = "vhost"

func withVHost(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{choosesVHost: ""}
	return c
}

// serviceAddress returns where the virtual host that --vhost names is served.
func (p *program) serviceAddress() string {
	if p.vhost == "" {
		return p.address
	}
	return strings.TrimSuffix(p.address, "/") + httpapi.Base(p.vhost)
}

// atRabbitMQ is the usage of --config for commands that go to RabbitMQ themselves.
const atRabbitMQ = "the config file (YAML), for broker.url and broker.management (REDRIVE_BROKER_URL and " +
	"REDRIVE_MANAGEMENT_URL replace them)"

func (p *program) withConfig(c *cobra.Command, usage string) {
	c.Flags().StringVarP(&p.config, "config", "c", p.getenv("REDRIVE_CONFIG"), usage+"; or REDRIVE_CONFIG")
}

// load reads the config file, as it is for the virtual host that --vhost names.
func (p *program) load() (*config.Config, error) {
	cfg, err := config.Load(p.config, p.getenv)
	if err != nil {
		return nil, err
	}
	return cfg.ForVHost(p.vhost)
}

// loadAny is load for commands that ask no service: a virtual host that is not served has
// the config of the first. own is the user that the config gives it for itself, or "".
func (p *program) loadAny() (cfg *config.Config, own string, err error) {
	all, err := config.Load(p.config, p.getenv)
	if err != nil {
		return nil, "", err
	}
	for _, v := range all.Broker.VHosts {
		if v.Name == p.vhost {
			own = v.User
		}
	}
	if cfg, err = all.ForVHost(p.vhost); errors.Is(err, config.ErrNoVHost) {
		cfg, err = all.ForVHost("")
	}
	return cfg, own, err
}

func (p *program) withClient(
	c *cobra.Command, run func(ctx context.Context, client httpapi.Client, args []string) error,
) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := p.client()
		if err != nil {
			return err
		}
		return run(c.Context(), client, args)
	}
	return p.withAddress(c)
}

// queryFlags say which messages, besides the argument.
type queryFlags struct{ text, queue, state string }

func (f *queryFlags) add(p *program, c *cobra.Command, otherStates ...string) {
	c.Flags().StringVar(&f.text, "query", "", "the query, as the argument may be")
	c.Flags().StringVar(&f.queue, "queue", "", "of this work queue; left out: of all")
	c.Flags().StringVar(&f.state, "state", "", "waiting, retried, parked or discarded; left out: all")
	_ = c.RegisterFlagCompletionFunc("queue", p.completeQueues)
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(append(states, otherStates...), noFiles))
}

var states = []string{inspect.Waiting, inspect.Retried, inspect.Parked, inspect.Discarded}

// query returns the query that arguments and flags together make.
func (f *queryFlags) query(args []string) (string, error) {
	var terms []string
	argument := strings.TrimSpace(strings.Join(args, " "))
	if argument != "" && f.text != "" {
		return "", fmt.Errorf("give the query as an argument or with --query, not both: %w", errUsage)
	}
	if text := argument + strings.TrimSpace(f.text); text != "" {
		if f.queue+f.state != "" && strings.Contains(text, "OR") {
			text = "(" + text + ")"
		}
		terms = append(terms, text)
	}
	if f.state != "" {
		if !slices.Contains(states, f.state) {
			return "", fmt.Errorf("--state %q: expected waiting, retried, parked or discarded: %w", f.state, errUsage)
		}
		terms = append(terms, "state:"+f.state)
	}
	if f.queue != "" {
		terms = append(terms, "queue:"+query.Quote(f.queue))
	}
	return strings.Join(terms, " "), nil
}

// withQuery completes a command about the messages that a query finds: run gets the query and a
// client to ask it with.
func (p *program) withQuery(
	c *cobra.Command, run func(ctx context.Context, client httpapi.Client, query string) error,
) *cobra.Command {
	var f queryFlags
	f.add(p, c)
	c.ValidArgsFunction = p.completeQuery
	return p.withClient(c, func(ctx context.Context, client httpapi.Client, args []string) (err error) {
		if p.query, err = f.query(args); err != nil {
			return err
		}
		return run(ctx, client, p.query)
	})
}
