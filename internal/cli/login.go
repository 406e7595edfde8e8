package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
)

// login is what a person has signed in with. It is stored as JSON: its fields' names never change.
type login struct {
	Token   string `json:"token,omitempty"`
	Session string `json:"session,omitempty"`
}

// loginFile returns where the login at a client's service is kept.
func loginFile(client httpapi.Client) (string, error) {
	at, err := client.URL()
	if err != nil {
		return "", err
	}
	dir, err := os.UserConfigDir()
	return filepath.Join(dir, "redrive", url.QueryEscape(at)+".json"), err
}

// withLogin adds the login that is kept for the client's service, if there is one.
func withLogin(client httpapi.Client) (httpapi.Client, error) {
	file, err := loginFile(client)
	if err != nil { // its calls say what is wrong with the address; without a home there is no login
		return client, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return client, nil
	}
	var kept login
	if err == nil {
		err = json.Unmarshal(data, &kept)
	}
	client.Token, client.Session = kept.Token, kept.Session
	if err != nil {
		return client, hint.Errorf("`redrive logout` removes it", "the login in %s: %w", file, err)
	}
	return client, nil
}

// keep writes a login to a file that only its owner can ever read.
func (l login) keep(file string) error {
	data, err := json.Marshal(l)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), "*.new") // with the mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// withLoginAddress completes a command about the login at the service of its argument, or of --address.
func (p *program) withLoginAddress(
	c *cobra.Command, run func(ctx context.Context, client httpapi.Client, file string) error,
) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 && c.Flags().Changed("address") {
			return fmt.Errorf("give the address as an argument or with --address, not both: %w", errUsage)
		}
		if len(args) > 0 {
			p.address = args[0]
		}
		client, err := p.environment()
		if err != nil {
			return err
		}
		client.Token, client.User, client.Password = "", "", ""
		file, err := loginFile(client)
		if err != nil {
			return err
		}
		return run(c.Context(), client, file)
	}
	return p.withAddress(c)
}

func (p *program) login() *cobra.Command {
	token := false
	c := p.withLoginAddress(&cobra.Command{
		Use:   "login [ADDRESS]",
		Short: "Sign in, and stay so for later commands",
		Long: `You confirm the sign-in in a browser, on any machine, at the OpenID Connect provider of the
service. It lasts as one to the page does: a day, or 12 hours without a command. Or give a token
on standard input, which is kept as it is.

The login is kept in a file that only you can read, and is used by all commands that ask this
service, unless REDRIVE_TOKEN or REDRIVE_USER is set.`,
		Example: "  redrive login https://redrive.example.com\n  redrive login --token-stdin <token",
	}, func(ctx context.Context, client httpapi.Client, file string) (err error) {
		var l login
		if token {
			l.Token, err = p.readToken()
		} else {
			// The service ends the session that this one replaces.
			if old, err := withLogin(client); err == nil {
				client.Session = old.Session
			}
			l.Session, err = p.confirmed(ctx, client)
		}
		if err != nil {
			return err
		}
		client.Token, client.Session = l.Token, l.Session
		me, err := client.Me(ctx)
		if err != nil {
			return err
		}
		if err := l.keep(file); err != nil {
			return err
		}
		fmt.Fprintf(p.err, "Signed in at %s as %s (%s).\n", plain(client.Addr), plain(me.Name), me.Role)
		return nil
	})
	c.Flags().BoolVar(&token, "token-stdin", false, "read a token from standard input, and keep that")
	return c
}

// readToken reads a token from the first line of standard input.
func (p *program) readToken() (string, error) {
	line, err := bufio.NewReader(io.LimitReader(p.in, 4<<10)).ReadString('\n')
	if line = strings.TrimSpace(line); line == "" {
		if errors.Is(err, io.EOF) || err == nil {
			err = errUsage
		}
		return "", fmt.Errorf("standard input has no token: %w", err)
	}
	return line, nil
}

// slower is how much longer to wait after the service was asked too often (RFC 8628).
const slower = 5 * time.Second

// confirmed returns the session of a person who confirms the sign-in in a browser.
func (p *program) confirmed(ctx context.Context, client httpapi.Client) (string, error) {
	d, err := client.BeginDevice(ctx)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(p.err, "Open %s\nand confirm the code %s there.\n", plain(cmp.Or(d.VerificationURIComplete,
		d.VerificationURI)), plain(d.UserCode))
	ctx, cancel := context.WithDeadlineCause(ctx, d.Expiry,
		exitErrorf(ExitForbidden, "nobody has confirmed the code %s in time", d.UserCode))
	defer cancel()
	every := time.Duration(max(1, cmp.Or(d.Interval, 5))) * time.Second
	for {
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(every):
		}
		session, err := client.FinishDevice(ctx, d.DeviceCode)
		switch {
		case errors.Is(err, background.ErrTooMany) || errors.Is(err, auth.ErrUnchecked):
			every += slower
		case err != nil && ctx.Err() != nil:
			return "", context.Cause(ctx)
		case err != nil || session != "":
			return session, err
		}
	}
}

func (p *program) logout() *cobra.Command {
	return p.withLoginAddress(&cobra.Command{
		Use:   "logout [ADDRESS]",
		Short: "End what login began, here and at the service",
		Long: `The file of the login is removed, also if the service does not answer: then the session ends by
itself, a day after it began. A token stays valid: redrive token revoke ends it.`,
	}, func(ctx context.Context, client httpapi.Client, file string) error {
		client, wrong := withLogin(client)
		if err := os.Remove(file); errors.Is(err, fs.ErrNotExist) {
			return exitErrorf(ExitNotFound, "nobody is signed in at %s by redrive login", client.Addr)
		} else if err != nil {
			return err
		}
		if wrong == nil && client.Session != "" {
			if err := client.SignOut(ctx); err != nil {
				return fmt.Errorf("the login is removed, and goes on at the service for a day at most: %w", err)
			}
		}
		fmt.Fprintf(p.err, "Signed out at %s.\n", plain(client.Addr))
		return nil
	})
}
