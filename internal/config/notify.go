package config

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // quiet hours mean the same in a container without time zones

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/notify"
)

// secretSource names the variable or file that Load reads a secret from.
type secretSource struct {
	env, file string
	fail      Error // its place in the config file, for errors
}

func (d *document) secretSource(n ast.Node) secretSource {
	return secretSource{fail: d.at(n)}
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

func (d *document) notify(n ast.Node, c *Config) {
	s := &c.Notify
	d.mapping(n, "notify", map[string]field{
		"page": func(n ast.Node) {
			s.Page = d.url(n, "notify.page", "http", "https")
			if u, err := url.Parse(s.Page); err != nil || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
				d.fail(n, "notify.page is %s; expected where the page is, such as https://redrive.example.com", show(n))
			}
		},
		"allow_private": func(n ast.Node) { s.AllowPrivate = d.networks(n, "notify.allow_private") },
		"critical":      func(n ast.Node) { s.Critical = d.queues(n, "notify.critical") },
		"no_consumer": func(n ast.Node) {
			s.NoConsumer = d.atLeast(n, "notify.no_consumer", 0)
		},
		"oldest_waiting": func(n ast.Node) { s.OldestWaiting = d.atLeast(n, "notify.oldest_waiting", time.Second) },
		"burst":          func(n ast.Node) { s.Burst = d.perMinute(n, "notify.burst") },
		"routes": func(n ast.Node) {
			d.each(d.sequence(n, "notify.routes", "a list of routes"), func(i int, item ast.Node) { d.route(item, i, c) })
		},
	})
}

// routeName is a name that needs no escaping in labels and paths.
var routeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

func (d *document) route(n ast.Node, i int, c *Config) {
	r := notify.DefaultRoute()
	where := fmt.Sprintf("notify.routes[%d]", i)
	at := routeURL{route: len(c.Notify.Routes)}
	var urls, vhosts []string
	var url ast.Node
	place := func(n ast.Node, key string) string {
		urls = append(urls, key)
		at.secretSource = d.secretSource(n)
		return d.text(n, where+"."+key, "a text")
	}
	fields := map[string]field{
		"name": func(n ast.Node) {
			if r.Name = d.text(n, where+".name", "a name"); !routeName.MatchString(r.Name) {
				d.fail(n, "%s.name is %s; expected up to 63 letters, digits, - _ and .", where, show(n))
			}
		},
		"url": func(n ast.Node) {
			r.URL = notify.Secret(place(n, "url"))
			url = n
		},
		"url_env":  func(n ast.Node) { env := place(n, "url_env"); at.env = env },
		"url_file": func(n ast.Node) { file := place(n, "url_file"); at.file = d.path(file) },
		"body":     func(n ast.Node) { r.Body = d.body(n, where+".body") },
		"events":   func(n ast.Node) { r.Kinds = d.events(n, where+".events") },
		"queues":   func(n ast.Node) { r.Queues = d.queues(n, where+".queues") },
		"vhosts":   func(n ast.Node) { vhosts = d.vhostPatterns(n, where+".vhosts") },
		"severity": func(n ast.Node) {
			var err error
			if r.Least, err = notify.ParseSeverity(d.text(n, where+".severity", "info, warning or critical")); err != nil {
				d.fail(n, "%s.severity: %w", where, err)
			}
		},
		"group_wait": func(n ast.Node) { r.GroupWait = d.atLeast(n, where+".group_wait", 0) },
		"repeat":     func(n ast.Node) { r.Repeat = d.atLeast(n, where+".repeat", time.Minute) },
		"quiet":      func(n ast.Node) { r.Quiet = d.quiet(n, where+".quiet") },
		"resolved":   func(n ast.Node) { r.Resolved = d.boolean(n, where+".resolved") },
	}
	d.all(
		func() { d.mapping(n, where, fields) },
		func() {
			switch {
			case lacks(n, fields, "name"):
				d.fail(n, "%s has no name", where)
			case slices.ContainsFunc(c.Notify.Routes, func(o notify.Route) bool { return o.Name == r.Name }):
				d.fail(n, "a second route is named %q", r.Name)
			}
		},
		func() {
			switch {
			case lacks(n, fields, "url", "url_env", "url_file"):
				d.fail(n, "%s has no URL; expected url_env, url_file or url", where)
			case len(urls) > 1:
				d.fail(n, "%s has %s; expected one of them", where, strings.Join(urls, " and "))
			case url != nil:
				if err := notify.Check(&r); err != nil {
					d.fail(url, "%s.url %w", where, err)
				}
			}
		},
	)
	if url != nil {
		c.Warnings = append(c.Warnings, fmt.Sprintf("notify route %q: its URL is in the file, for all who can read it; url_env or url_file keep it out", r.Name))
	} else {
		c.routeURLs = append(c.routeURLs, at)
	}
	c.routeVHosts[r.Name] = vhosts
	c.Notify.Routes = append(c.Notify.Routes, r)
}

// body reads the templates of a webhook's body.
func (d *document) body(n ast.Node, where string) (b map[string]any) {
	err := yaml.NodeToValue(n, &b)
	if err == nil {
		err = notify.CheckBody(b)
	}
	if err == nil && len(b) == 0 {
		err = errors.New("it is empty")
	}
	if err != nil {
		d.fail(n, "%s is no mapping of texts that are templates, such as {text: \"{{.title}}\"}: %w", where, err)
	}
	return b
}

func (d *document) events(n ast.Node, where string) (all []notify.Kind) {
	names := notify.KindNames()
	d.each(d.sequence(n, where, "a list of "+strings.Join(names, ", ")), func(_ int, item ast.Node) {
		k := d.text(item, where, "an event")
		if !slices.Contains(names, k) {
			d.fail(item, "%s has %s; expected some of %s", where, show(item), strings.Join(names, ", "))
		}
		all = append(all, notify.Kind(k))
	})
	if len(all) == 0 {
		d.fail(n, "%s is empty; leave the key out for all events", where)
	}
	return all
}

func (d *document) queues(n ast.Node, where string) []string {
	all := d.texts(n, where, `a list of queue names or patterns, such as ["orders.*"]`)
	if len(all) == 0 {
		d.fail(n, "%s is empty; leave the key out", where)
	}
	return all
}

func (d *document) atLeast(n ast.Node, where string, least time.Duration) time.Duration {
	const most = 366 * 24 * time.Hour
	v := d.duration(n, where)
	if v < least || v > most {
		d.fail(n, "%s is %s; expected a duration from %s to a year", where, show(n), least)
	}
	return v
}

var rate = regexp.MustCompile(`^([0-9]+)/(s|min|h)$`)

// perMinute is a whole number in a minute, at least one.
func (d *document) perMinute(n ast.Node, where string) int {
	m := rate.FindStringSubmatch(d.text(n, where, "a number in a minute, such as 100/min"))
	v := 0.0
	if m != nil {
		v, _ = strconv.ParseFloat(m[1], 64)
		v *= map[string]float64{"s": 60, "min": 1, "h": 1.0 / 60}[m[2]]
	}
	if v = math.Ceil(v); v < 1 || v > 1e9 {
		d.fail(n, "%s is %s; expected a number in a minute, such as 100/min", where, show(n))
	}
	return int(v)
}

func (d *document) quiet(n ast.Node, where string) notify.Quiet {
	q := notify.Quiet{From: -1}
	var hours, zone ast.Node
	d.mapping(n, where, map[string]field{
		"hours": func(n ast.Node) {
			hours = n
			from, to, ok := strings.Cut(d.text(n, where+".hours", "hours such as 22:00-07:00"), "-")
			var err1, err2 error
			if q.From, err1 = clock(from); ok {
				q.To, err2 = clock(to)
			}
			if !ok || err1 != nil || err2 != nil || q.From == q.To {
				d.fail(n, "%s.hours is %s; expected two times of day, such as 22:00-07:00", where, show(n))
			}
		},
		"zone": func(n ast.Node) {
			zone = n
			name := d.text(n, where+".zone", "a time zone")
			var err error
			if q.Zone, err = time.LoadLocation(name); err != nil || name == "" || name == "Local" {
				d.fail(n, "%s.zone is %s; expected a time zone such as Europe/Berlin or UTC", where, show(n))
			}
		},
	})
	if hours == nil || zone == nil {
		d.fail(n, "%s needs hours and a zone, such as {hours: 22:00-07:00, zone: Europe/Berlin}", where)
	}
	return q
}

// clock is a time of day in minutes since midnight.
func clock(s string) (int, error) {
	t, err := time.Parse("15:04", strings.TrimSpace(s))
	return 60*t.Hour() + t.Minute(), err
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

// describeNotify describes the routes, a line for each.
func describeNotify(s *notify.Settings, only map[string][]string) string {
	var lines []string
	for i := range s.Routes {
		r := &s.Routes[i]
		events, queues := "all events", "all queues"
		if len(r.Kinds) > 0 {
			events = strings.Trim(fmt.Sprint(r.Kinds), "[]")
		}
		if len(r.Queues) > 0 {
			queues = strings.Join(r.Queues, " ")
		}
		least := map[notify.Severity]string{notify.Warning: ", warning or critical", notify.Critical: ", critical only"}[r.Least]
		line := fmt.Sprintf("notify\t%s\t%s of %s%s", r.Name, events, queues, least)
		if r.Quiet.Zone != nil {
			line += fmt.Sprintf(", not from %02d:%02d to %02d:%02d %s unless critical", r.Quiet.From/60, r.Quiet.From%60, r.Quiet.To/60, r.Quiet.To%60, r.Quiet.Zone)
		}
		lines = append(lines, line+describeFor(only[r.Name]))
	}
	return strings.Join(lines, "\n")
}
