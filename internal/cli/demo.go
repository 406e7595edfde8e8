package cli

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/demo"
)

func (p *program) demo() *cobra.Command {
	var length time.Duration
	var broker string
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show the service at work on an example shop",
		Long: `Show the service at work: a private RabbitMQ on loopback, three queues, a
consumer whose upstream goes down and recovers, and one message that no consumer can
process. At the end it stops everything it started, deletes its queues (redrive-demo.*)
and accounts for every message. It needs RabbitMQ installed, or --broker.`,
		Args: exactArgs(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if length < 0 || length > 0 && length < 10*time.Second {
				return fmt.Errorf("--for %s is too short: the story takes at least 10s: %w", length, errUsage)
			}
			if hasSecret(broker) {
				return fmt.Errorf("--broker has a password, and every user of the machine can read arguments: put the URL into REDRIVE_DEMO_BROKER_URL: %w", errUsage)
			}
			if broker = cmp.Or(broker, p.getenv("REDRIVE_DEMO_BROKER_URL")); broker != "" {
				if err := config.CheckBroker(broker); err != nil {
					return fmt.Errorf("the URL in --broker or REDRIVE_DEMO_BROKER_URL %v: %w", err, errUsage)
				}
			}
			f, isFile := p.out.(*os.File)
			return demo.Run(c.Context(), demo.Options{Broker: broker, For: length, Out: p.out, Terminal: isFile && term.IsTerminal(int(f.Fd())), Version: p.build.Version})
		},
	}
	c.Flags().DurationVar(&length, "for", 0, "how long to run, about; left out: until Ctrl-C")
	c.Flags().StringVar(&broker, "broker", "", "use this broker (an AMQP URL without secrets; or REDRIVE_DEMO_BROKER_URL)")
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
