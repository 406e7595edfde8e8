package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/demo"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/internal/simulate"
)

func (p *program) serve() *cobra.Command {
	var format, level, profiles string
	var readOnly bool
	load := func() (*config.Config, error) {
		cfg, err := config.Load(p.config, p.getenv)
		if err != nil {
			return nil, err
		}
		cfg.Access.ReadOnly = cfg.Access.ReadOnly || readOnly
		return cfg, logAs(&cfg.Log, format, level)
	}
	c := &cobra.Command{
		Use:     "serve",
		Short:   "Run the service",
		Example: "  redrive serve --config redrive.yaml",
		Long: `It runs until SIGINT or SIGTERM, and then finishes the messages in flight, within ten
seconds. Without --config everything has its default: RabbitMQ on this machine, every
queue that dead-letters to the exchange "redrive", eight attempts, data in ./redrive-data.

After SIGHUP, or a change of the file, its policies are in force. A file with a mistake is
refused, and the old policies stay in force.

Secrets come from the environment or a file, never from an argument:
REDRIVE_BROKER_URL, REDRIVE_BROKER_PASSWORD, REDRIVE_MANAGEMENT_URL, REDRIVE_REDIS_URL,
REDRIVE_REDIS_PASSWORD, or each with _FILE for the path of a file with the value. Every
other key of the file that is in no list has a variable too: store.disk is
REDRIVE_STORE_DISK, and policies is REDRIVE_POLICIES, with YAML.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return p.runService(c.Context(), load, profiles)
		},
	}
	p.withConfig(c, "the config file (YAML)")
	c.Flags().StringVar(&format, "log", "", "log as text or json, whatever the config file says")
	c.Flags().StringVar(&level, "log-level", "",
		"log debug, info, warn or error and above, whatever the config file says")
	c.Flags().StringVar(&profiles, "pprof", "",
		"serve Go's profiles at this address of this machine, such as 127.0.0.1:6060")
	c.Flags().BoolVar(&readOnly, "read-only", false, "refuse all changes, whatever the role and the config file say")
	return c
}

func (p *program) runService(ctx context.Context, load func() (*config.Config, error), profiles string) error {
	cfg, err := load()
	if err != nil {
		return err
	}
	log := p.logger(cfg.Log)
	for _, w := range cfg.Warnings {
		log.Warn("config: " + w)
	}
	o := server.Options{Version: p.build.Version, Log: log}
	if p.config != "" {
		o.Watch = func(ctx context.Context, changed func(*config.Config, error)) { watch(ctx, p.config, load, changed) }
	}
	p.limitRuntime(log)
	stop, err := serveProfiles(profiles, log)
	if err != nil {
		return err
	}
	defer stop()
	s, err := server.New(cfg, o)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

func logAs(l *config.Log, format, level string) error {
	if l.Format = cmp.Or(format, l.Format); format != "" && format != "text" && format != "json" {
		return fmt.Errorf("--log %q: expected text or json: %w", format, errUsage)
	}
	if level != "" {
		var ok bool
		if l.Level, ok = config.ParseLevel(level); !ok {
			return fmt.Errorf("--log-level %q: expected debug, info, warn or error: %w", level, errUsage)
		}
	}
	return nil
}

func (p *program) logger(l config.Log) *slog.Logger {
	o := &slog.HandlerOptions{Level: l.Level, ReplaceAttr: hint.Attr}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(p.err, o))
	}
	return slog.New(slog.NewTextHandler(p.err, o))
}

// watch loads the file on SIGHUP and when its content changes: not its time, since Kubernetes replaces files
// through links.
func watch(ctx context.Context, file string, load func() (*config.Config, error), changed func(*config.Config, error)) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	last, _ := os.ReadFile(file)
	for {
		hung := false
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			hung = true
		case <-tick.C:
		}
		now, err := os.ReadFile(file) // an error: it is being replaced; a SIGHUP says what is wrong
		if hung || err == nil && !bytes.Equal(now, last) {
			last = now
			changed(load())
		}
	}
}

func (p *program) check() *cobra.Command {
	var noFiles bool
	c := &cobra.Command{
		Use:     "check FILE",
		Short:   "Check a config file and show the delays of its policies",
		Example: "  redrive check redrive.yaml",
		Long: `It checks the files that the config file names, too, and reports all mistakes at once.
Environment variables count as they do for serve.`,
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := config.Load(args[0], p.getenv)
			if err != nil {
				return err
			}
			for _, w := range cfg.Warnings {
				fmt.Fprintln(p.err, "warning:", w)
			}
			if !noFiles {
				_, undecoded := decode.New(cfg.Decode)
				if err := errors.Join(undecoded, cfg.CheckFiles()); err != nil {
					return err
				}
			}
			fmt.Fprintf(p.out, "%s is valid\n\n", args[0])
			var b strings.Builder
			if err := config.Describe(&b, cfg); err != nil {
				return err
			}
			w := p.tableOn(p.out)
			for line := range strings.Lines(b.String()) {
				text := line[strings.LastIndex("  "+line, "  "):] // the last cell
				head := strings.TrimSuffix(line, text)
				for _, part := range wrapped(text, room(w, utf8.RuneCountInString(head))) {
					fmt.Fprintln(w, plain(head+part))
					head = strings.Repeat(" ", utf8.RuneCountInString(head))
				}
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&noFiles, "no-files", false,
		"leave out the files of tls, store.redis.tls, auth.oidc and decode: they are on another machine")
	return c
}

func (p *program) open() *cobra.Command {
	var only bool
	c := &cobra.Command{
		Use:   "open [QUERY|ID]",
		Short: "Print the page's address, and open it where there is a browser",
		RunE: func(_ *cobra.Command, args []string) error {
			page := p.serviceAddress()
			if !strings.Contains(page, "://") {
				page = "http://" + page
			}
			u, err := url.Parse(page)
			if err != nil || u.Host == "" {
				return fmt.Errorf("--address %q: expected host:port or https://host:port: %w", p.address, errUsage)
			}
			u.User, u.RawQuery, u.Fragment = nil, "", ""
			page = strings.TrimSuffix(u.String(), "/")
			switch text := strings.TrimSpace(strings.Join(args, " ")); {
			case anID.MatchString(text):
				page += "/messages/" + url.PathEscape(text)
			case text != "":
				page += "/messages?" + url.Values{"q": {text}}.Encode()
			default:
				page += "/"
			}
			if err := p.print(page+"\n", nil); err != nil || only {
				return err
			}
			p.browse(page)
			return nil
		},
	}
	c.Flags().BoolVar(&only, "print", false, "only print it")
	c.ValidArgsFunction = p.completeQuery
	return p.withAddress(c)
}

// browse opens a browser where there is a desktop. A failure is no error, since the address is printed.
func (p *program) browse(page string) {
	c := exec.Command("xdg-open", page)
	switch {
	case runtime.GOOS == "darwin":
		c = exec.Command("open", page)
	case runtime.GOOS == "windows":
		c = exec.Command("rundll32", "url.dll,FileProtocolHandler", page)
	case p.getenv("DISPLAY") == "" && p.getenv("WAYLAND_DISPLAY") == "":
		return
	}
	if err := c.Run(); err != nil {
		fmt.Fprintf(p.err, "no browser could be opened: %s\n", plain(err.Error()))
	}
}

func (p *program) demo() *cobra.Command {
	var length time.Duration
	var broker, public string
	var names []string
	c := &cobra.Command{
		Use:     "demo",
		Short:   "Show the service at work on an example shop",
		Example: "  redrive demo --for 5m",
		Long: `The shop has three queues on a RabbitMQ, a consumer whose upstream goes down and recovers,
and one message that no consumer can process. At the end the demo stops everything it
started, deletes its queues (redrive-demo.*) and accounts for every message. With
REDRIVE_DEMO_MANAGEMENT_URL the service uses RabbitMQ's management API.

With --public everybody who reaches the address is a viewer: no one signs in or changes
anything, and an address has 5 requests a second. The demo begins anew within an hour, or
--for. It needs a RabbitMQ of its own, which visitors do not see. A proxy may add TLS; name
its address in --proxies, and let it set X-Forwarded-For, or all its visitors count as one.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if length < 0 || length > 0 && length < 10*time.Second {
				return fmt.Errorf("--for %s is too short: the story takes at least 10s: %w", length, errUsage)
			}
			if _, _, err := net.SplitHostPort(public); public != "" && err != nil {
				return fmt.Errorf("--public %q: expected host:port, such as :8250: %w", public, errUsage)
			}
			var proxies auth.Proxies
			for _, name := range names {
				proxy, err := auth.ParseProxy(name)
				if err != nil || public == "" {
					return fmt.Errorf("--proxies: %w: %w",
						cmp.Or(err, errors.New("they are for --public")), errUsage)
				}
				proxies = append(proxies, proxy)
			}
			if hasSecret(broker) {
				return fmt.Errorf("--broker has a password, and every user of the machine can read arguments: put "+
					"the URL into REDRIVE_DEMO_BROKER_URL: %w", errUsage)
			}
			broker = cmp.Or(broker, p.getenv("REDRIVE_DEMO_BROKER_URL"), "amqp://guest:guest@localhost:5672/")
			if err := config.CheckBroker(broker); err != nil {
				return fmt.Errorf("the URL in --broker or REDRIVE_DEMO_BROKER_URL %v: %w", err, errUsage)
			}
			return demo.Run(c.Context(), demo.Options{
				Broker: broker, Management: p.getenv("REDRIVE_DEMO_MANAGEMENT_URL"), For: length,
				Out: p.out, Terminal: isTerminal(p.out), Version: p.build.Version, Public: public,
				Proxies: proxies,
			})
		},
	}
	c.Flags().DurationVar(&length, "for", 0, "how long to run, about; left out: until Ctrl-C")
	c.Flags().StringVar(&public, "public", "", "show it read-only to everybody, at this address (host:port)")
	c.Flags().StringSliceVar(&names, "proxies", nil, "whose X-Forwarded-For is believed: addresses or networks")
	c.Flags().StringVar(&broker, "broker", "",
		"an AMQP URL without secrets, or REDRIVE_DEMO_BROKER_URL; left out: this machine's")
	return c
}

// hasSecret: guest's password guest is everybody's, and opens loopback alone.
func hasSecret(broker string) bool {
	u, err := url.Parse(broker)
	if err != nil {
		return false // refused as what it is
	}
	_, has := u.User.Password()
	return has && u.User.String() != "guest:guest"
}

func (p *program) simulate() *cobra.Command {
	var file, name, svg string
	o := simulate.Options{Outage: time.Hour, Rate: 200}
	c := &cobra.Command{
		Use:   "simulate [FILE]",
		Short: "Show what a policy does when the upstream of its consumers is down",
		Long: `It shows the load on the upstream, and the time to recover: with messages requeued at
once, with a fixed delay, with the backoff of a policy, and with that policy's breaker and
rate as well. Nothing is sent: the policy and the throttle of the service run on a virtual
clock. The same flags give the same numbers.

Messages are published at --rate. Consumers call the upstream once per delivery, at most
--consumers times per second. While it is down all calls fail; for --limp after that a
falling share of them. It serves --capacity calls per second; calls beyond that fail and
cost nothing, or --refusing of a served call, which keeps many a real upstream down.

Retries are all calls but the first of each message, which no policy can avoid. New
messages are served again when for a minute 99 % of them are served at their first
delivery. The backlog is drained when a thousandth of the outage's messages is left.

Output: table; json, everything; csv, load and backlog over time. --svg writes a plot.`,
		Example: `  redrive simulate redrive.yaml --outage 1h --rate 200/s
  redrive simulate redrive.yaml --name orders --outage 20m --rate 50/s --svg storm.svg`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 && file != "" {
				return fmt.Errorf("FILE or --policy, not both: %w", errUsage)
			}
			if err := p.readSimulated(&o, strings.Join(append(args, file), ""), name); err != nil {
				return err
			}
			r, err := simulate.Run(c.Context(), o)
			if err != nil {
				return err
			}
			if svg != "" {
				if err := os.WriteFile(svg, []byte(r.SVG()), 0o644); err != nil {
					return fmt.Errorf("the plot: %w", err)
				}
			}
			return p.simulated(r)
		},
	}
	f := c.Flags()
	duration := func(name, usage string, to *time.Duration) {
		f.Func(name, usage, func(s string) (err error) {
			if *to, err = config.ParseDuration(s); err != nil || *to < 0 || *to == 0 && name != "limp" {
				return errors.New("expected a duration such as 90s, 20m or 1h")
			} else if *to == 0 {
				*to = -1 // none
			}
			return nil
		})
	}
	f.StringVar(&file, "policy", "", "FILE")
	f.StringVar(&name, "name", "", "the policy's name (default the first)")
	duration("outage", "how long the upstream is down (default 1h)", &o.Outage)
	duration("limp", "how long it fails in part after that; 0s: not (default a twelfth of the outage)", &o.Limp)
	rateFlag(c, "rate", "messages published: n/s, n/min or n/h (default 200/s)", &o.Rate)
	rateFlag(c, "capacity", "calls that the upstream can serve (default twice the rate)", &o.Capacity)
	rateFlag(c, "consumers", "calls that the consumers make at most (default 25 times the capacity)", &o.Consumers)
	f.Float64Var(&o.Refusing, "refusing", 0, "what a call beyond its capacity costs the upstream, as a part of one "+
		"that it serves: 0 to 1")
	duration("fixed", "the fixed delay (default 30s)", &o.Fixed)
	duration("duration", "how much time to simulate (default until the backlog is drained)", &o.Duration)
	f.Uint64Var(&o.Seed, "seed", 1, "the seed of the random numbers")
	f.StringVar(&svg, "svg", "", "write a plot of the load over time to this file")
	return p.withFormats(c, "table", "json", "csv")
}

// readSimulated reads the policy to simulate from a config file.
func (p *program) readSimulated(o *simulate.Options, file, name string) error {
	if file == "" {
		return fmt.Errorf("which policy? FILE is a config file that has it: %w", errUsage)
	}
	cfg, err := config.Load(file, func(string) string { return "" })
	if err != nil {
		return err
	}
	o.Policy = cfg.Policies[0]
	var names []string
	for _, one := range cfg.Policies {
		if names = append(names, one.Name); one.Name == name {
			o.Policy = one
		}
	}
	if name != "" && o.Policy.Name != name {
		return fmt.Errorf("--name %q: %s has no such policy, but %s: %w", name, file, strings.Join(names, ", "),
			errUsage)
	}
	o.Rules = cfg.Throttle[o.Policy.Name]
	if cfg.Ways[o.Policy.Name] != nil {
		fmt.Fprintf(p.err, "policy %s waits in RabbitMQ, where no breaker and no rate apply: this shows it as if it "+
			"waited on disk\n", plain(o.Policy.Name))
	}
	o.Policy.Name = plain(o.Policy.Name)
	if err := o.Fill().Validate(); err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	return nil
}

func (p *program) simulated(r *simulate.Result) error {
	switch p.format {
	case "json":
		return p.print(jsonOf(r.Report(), "  "))
	case "csv":
		return csv.NewWriter(p.out).WriteAll(r.Series())
	}
	w := p.tableOn(p.out)
	simulation(w, r)
	return w.Flush()
}

func simulation(w io.Writer, r *simulate.Result) {
	for line := range strings.Lines(r.Heading()) {
		prose(w, strings.TrimSuffix(line, "\n"))
	}
	fmt.Fprintln(w)
	for _, row := range r.Table() {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	fmt.Fprintln(w)
	for _, note := range r.Notes() {
		prose(w, note)
	}
}
