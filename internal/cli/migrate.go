package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/migrate"
	"github.com/redrive-mq/redrive/internal/server"
	"github.com/redrive-mq/redrive/internal/store"
)

func (p *program) migrate() *cobra.Command {
	var from, to string
	var dry, abort bool
	c := &cobra.Command{
		Use:   "migrate --from STORE --to STORE",
		Short: "Move everything in a store to another: from disk to Redis, or back",
		Long: `Move everything in a store to another, which must be new: waiting, parked and
discarded messages byte for byte, operations, pauses, notes, tokens, the ledger and the
history.

STORE is disk:FOLDER, a URL of Redis or Valkey (redis://host:6379/0; its password is
in REDRIVE_REDIS_PASSWORD, or in the file that REDRIVE_REDIS_PASSWORD_FILE names), or
config:FILE, the store of that config file: each of several virtual hosts has its own, and
--vhost chooses one.

Stop all services that use either store first. RabbitMQ keeps the messages that
fail meanwhile, and none is retried. At the end the command reads both stores again and
compares them. Only then services accept the new store, and refuse the old one. After
Ctrl-C or a crash, run the same command again: it continues. --abort gives up instead:
the old store can be used again, and the new one must be emptied.`,
		Example: `  redrive migrate --from disk:/var/lib/redrive --to redis://redis.example:6379/0 --dry-run
  redrive migrate --from config:old.yaml --to config:new.yaml`,
		Args: exactArgs(0, "no arguments, but --from and --to"),
		RunE: func(c *cobra.Command, _ []string) error {
			if from == "" || to == "" || from == to {
				return fmt.Errorf("%s needs --from and --to, two different stores: %w", c.CommandPath(), errUsage)
			}
			if dry && abort {
				return fmt.Errorf("--dry-run and --abort exclude each other: %w", errUsage)
			}
			if p.vhost != "" && !strings.HasPrefix(from, "config:") && !strings.HasPrefix(to, "config:") {
				return fmt.Errorf("--vhost says whose store a config file's is, and only config:FILE names one: %w", errUsage)
			}
			m := &migrate.Migration{}
			var err error
			var source store.CopyTarget
			if source, m.FromName, err = p.storeAt(from, true); err != nil {
				return err
			}
			m.From = source
			if m.To, m.ToName, err = p.storeAt(to, false); err != nil {
				return errors.Join(err, source.Close())
			}
			return errors.Join(p.runMigration(c.Context(), m, dry, abort), m.To.Close(), source.Close())
		},
	}
	f := c.Flags()
	f.StringVar(&from, "from", "", "the existing store")
	f.StringVar(&to, "to", "", "the new one")
	p.withYes(c, "do not ask")
	f.BoolVar(&dry, "dry-run", false, "only show what would be moved")
	f.BoolVar(&abort, "abort", false, "give up a migration that has not ended")
	withVHost(c)
	return c
}

// storeAt opens the store that a place names; with mustExist it is not created.
func (p *program) storeAt(place string, mustExist bool) (store.CopyTarget, string, error) {
	at, err := config.StoreAt(place, p.vhost, p.getenv)
	if errors.Is(err, config.ErrPlace) {
		return nil, "", fmt.Errorf("%w: %w", err, errUsage)
	}
	if err != nil {
		return nil, "", err
	}
	if at.OnDisk() && mustExist {
		if _, err := os.Stat(at.Disk); err != nil {
			return nil, "", fmt.Errorf("there is no store: %w", err)
		}
	}
	s, err := server.OpenStore(at, p.log(slog.LevelWarn))
	return s, at.Place(), err
}

func (p *program) runMigration(ctx context.Context, m *migrate.Migration, dry, abort bool) error {
	if abort {
		if err := m.Abort(ctx); err != nil {
			return continues(err)
		}
		fmt.Fprintf(p.out, "%s can be used again; empty %s before anything else uses it\n", plain(m.FromName), plain(m.ToName))
		return nil
	}
	plan, err := m.Check(ctx)
	if err != nil {
		return continues(err)
	}
	for _, q := range plan.Queues {
		fmt.Fprintf(p.out, "%s: %s waiting, %s parked, %s discarded\n", plain(q.Queue), count(q.Waiting), count(q.Parked), count(q.Discarded))
	}
	fmt.Fprintf(p.out, "%s from %s to %s", messages(int(plan.All)), plain(m.FromName), plain(m.ToName))
	if plan.Taken > 0 {
		fmt.Fprintf(p.out, ", of which %s are there", count(plan.Taken))
	}
	fmt.Fprintln(p.out)
	if dry {
		return nil
	}
	if err := p.confirm(ctx, "Are all services that use these stores stopped? Start?"); err != nil {
		return err
	}
	meter := p.meter()
	m.Report = func(at migrate.Progress) {
		meter.show(fmt.Sprintf("%s %s: %s of %s", gauge(at.Done, at.All), at.Step, count(at.Done), count(at.All)), at.Done >= at.All)
	}
	err = m.Run(ctx)
	meter.end()
	if err != nil {
		return continues(err)
	}
	fmt.Fprintf(p.out, "everything is in %s and was compared; services can use it now, and no longer %s\n", plain(m.ToName), plain(m.FromName))
	return nil
}
