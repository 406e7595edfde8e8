package cli

import (
	"fmt"
	"net/url"
	"os/exec"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
)

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
	var with []string
	switch {
	case runtime.GOOS == "darwin":
		with = []string{"open"}
	case runtime.GOOS == "windows":
		with = []string{"rundll32", "url.dll,FileProtocolHandler"}
	case p.getenv("DISPLAY") != "" || p.getenv("WAYLAND_DISPLAY") != "":
		with = []string{"xdg-open"}
	default:
		return
	}
	if err := exec.Command(with[0], append(with[1:], page)...).Run(); err != nil {
		fmt.Fprintf(p.err, "no browser could be opened: %s\n", plain(err.Error()))
	}
}
