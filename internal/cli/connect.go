package cli

import (
	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/api"
	"github.com/redrive-mq/redrive/internal/config"
)

// withAddress adds the flags that say which service to ask. What signs in comes
// from the environment alone: every user of the machine can read arguments.
func (p *program) withAddress(c *cobra.Command) *cobra.Command {
	def := p.getenv("REDRIVE_ADDRESS")
	if def == "" {
		def = config.Default().Listen
	}
	c.Flags().StringVar(&p.address, "address", def, "where the service listens, or a URL with https://; or REDRIVE_ADDRESS")
	c.Flags().StringVar(&p.caFile, "ca-file", "", "certificates that sign the service's, besides the system's; or REDRIVE_CA_FILE")
	return c
}

const signingIn = `Signing in: REDRIVE_TOKEN, or REDRIVE_USER with REDRIVE_PASSWORD; each with _FILE
for a file that holds it.`

func (p *program) client() (api.Client, error) {
	return api.NewClient(p.address, func(name string) string {
		if name == "REDRIVE_CA_FILE" && p.caFile != "" {
			return p.caFile
		}
		return p.getenv(name)
	})
}

// asking is client, for a command whose errors may point into a query.
func (p *program) asking(query string) (api.Client, error) {
	p.asked = query
	return p.client()
}
