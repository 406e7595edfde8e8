package cli

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/server"
)

func (p *program) serve() *cobra.Command {
	var format string
	var readOnly bool
	load := func() (*config.Config, error) {
		cfg, err := config.Load(p.config, p.getenv)
		if err == nil && readOnly {
			cfg.Access.ReadOnly = true
		}
		return cfg, err
	}
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the service",
		Long: `Run the service until SIGINT or SIGTERM; it then finishes the messages in flight,
within ten seconds. Without --config everything has its default: RabbitMQ on this
machine, every queue that dead-letters to the exchange "redrive", eight attempts, data in
./redrive-data.

After SIGHUP, or a change of the file, its policies are in force. A file with a mistake
is refused, and the old policies stay in force.

Secrets come from the environment or a file, never from an argument:
REDRIVE_BROKER_URL, REDRIVE_BROKER_PASSWORD, REDRIVE_MANAGEMENT_URL,
REDRIVE_REDIS_URL, REDRIVE_REDIS_PASSWORD, or each with _FILE for the
path of a file with the value.`,
		Args: exactArgs(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := p.logger(format)
			if err != nil {
				return err
			}
			cfg, err := load()
			if err != nil {
				return err
			}
			for _, w := range cfg.Warnings {
				log.Warn("config: " + w)
			}
			o := server.Options{Version: p.version, Log: log}
			if p.config != "" {
				o.Watch = func(ctx context.Context, changed func(*config.Config, error)) { watch(ctx, p.config, load, changed) }
			}
			p.limitRuntime()
			s, err := server.New(cfg, o)
			if err != nil {
				return err
			}
			return s.Run(c.Context())
		},
	}
	p.withConfig(c, "the config file (YAML)")
	c.Flags().StringVar(&format, "log", "text", "log as text or json")
	c.Flags().BoolVar(&readOnly, "read-only", false, "refuse all changes, whatever the role and the config file say")
	return c
}

// memoryLimit is the heap size above which Go collects garbage as often as it can.
const memoryLimit = 256 << 20

// limitRuntime sets how many cores and how much memory Go uses, where the environment does not.
func (p *program) limitRuntime() {
	if p.getenv("GOMAXPROCS") == "" {
		// A message passes through many goroutines, each with little to do:
		// on fewer cores they cost less (a sixth of the CPU on two), and
		// RabbitMQ, often beside it, has the rest.
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
	if p.getenv("GOMEMLIMIT") == "" {
		// Large bodies leave garbage of several times their size. Up to this, which
		// small ones do not reach, it is collected no sooner than by default.
		debug.SetMemoryLimit(memoryLimit)
	}
}

func (p *program) logger(format string) (*slog.Logger, error) {
	o := &slog.HandlerOptions{ReplaceAttr: hint.Attr}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(p.err, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(p.err, o)), nil
	}
	return nil, fmt.Errorf("--log %q: expected text or json: %w", format, errUsage)
}

// watchEvery is how often the file is read. Its content is compared, not its time, since
// Kubernetes replaces files through links.
const watchEvery = 2 * time.Second

// watch loads the file on SIGHUP and when its content changes.
func watch(ctx context.Context, file string, load func() (*config.Config, error), changed func(*config.Config, error)) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	content := func() (sum [sha256.Size]byte) {
		data, err := os.ReadFile(file)
		if err != nil {
			return sum // being replaced; a SIGHUP says what is wrong
		}
		return sha256.Sum256(data)
	}
	last := content()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			last = content()
		case <-tick.C:
			now := content()
			if now == last || now == ([sha256.Size]byte{}) {
				continue
			}
			last = now
		}
		changed(load())
	}
}

func (p *program) check() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a config file and show the delays of its policies",
		Args:  exactArgs(1, "the config file"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := config.Load(args[0], p.getenv)
			if err != nil {
				return err
			}
			for _, w := range cfg.Warnings {
				fmt.Fprintln(p.err, "warning:", w)
			}
			if _, err := decode.New(cfg.Decode); err != nil {
				return err
			}
			return config.Describe(p.out, cfg)
		},
	}
}
