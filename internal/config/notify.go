package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
	_ "time/tzdata" // quiet hours mean the same in a container without time zones

	"github.com/redrive-mq/redrive/internal/notify"
)

// secretSource names the variable or file that Load reads a secret from.
type secretSource struct {
	env, file string
	fail      Error // its place in the config file, for errors
}

func (f *secretSource) wrong(format string, args ...any) error {
	e := f.fail
	if e.Msg = fmt.Sprintf(format, args...); e.File == "" {
		return errors.New(e.Msg)
	}
	return &e
}

// read returns the secret, and in words where it was read from. of is its name in errors.
func (f *secretSource) read(getenv func(string) string, of string) (value, what string, err error) {
	value, what = getenv(f.env), "the environment variable "+f.env
	if f.file != "" {
		data, err := os.ReadFile(f.file)
		if err != nil {
			return "", "", f.wrong("%s cannot be read: %v", of, err)
		}
		value, what = string(data), "the file "+f.file
	}
	return strings.TrimSpace(value), what, nil
}

// routeURL is where the URL of a route comes from.
type routeURL struct {
	route int
	secretSource
}

// readRouteURLs reads the URLs of routes that are in variables and files.
func (c *Config) readRouteURLs(getenv func(string) string) error {
	var wrong []error
	for _, at := range c.routeURLs {
		r := &c.Notify.Routes[at.route]
		of := fmt.Sprintf("notify route %q: ", r.Name)
		value, what, err := at.read(getenv, of+"its URL")
		r.URL = notify.Secret(value)
		switch {
		case err != nil:
		case value == "":
			err = at.wrong("%s%s is empty; expected the URL to send to", of, what)
		default:
			if err = notify.Check(r); err != nil {
				err = at.wrong("%s%s %v", of, what, err)
			}
		}
		wrong = append(wrong, err)
	}
	return errors.Join(wrong...)
}

// describeRoute says in words what a route sends.
func describeRoute(r *notify.Route) string {
	events, queues := "all events", "all queues"
	if len(r.Kinds) > 0 {
		events = strings.Trim(fmt.Sprint(r.Kinds), "[]")
	}
	if len(r.Queues) > 0 {
		queues = strings.Join(r.Queues, " ")
	}
	what := events + " of " + queues + map[notify.Severity]string{notify.Warning: ", warning or critical",
		notify.Critical: ", critical only"}[r.MinSeverity]
	if r.Quiet.Zone != nil {
		what += fmt.Sprintf(", not from %02d:%02d to %02d:%02d %s unless critical", r.Quiet.From/60,
			r.Quiet.From%60, r.Quiet.To/60, r.Quiet.To%60, r.Quiet.Zone)
	}
	return what
}
