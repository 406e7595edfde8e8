package config

import (
	"errors"
	"fmt"
	"math"
	"net/url"
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
		"severity":      func(n ast.Node) { s.Rules = d.severityRules(n, "notify.severity") },
		"watch":         func(n ast.Node) { s.Watch = d.queues(n, "notify.watch") },
		"filling":       func(n ast.Node) { s.Filling = d.within(n, "notify.filling", time.Hour, notify.LongestFilling) },
		"no_consumer": func(n ast.Node) {
			s.NoConsumer = d.atLeast(n, "notify.no_consumer", 0)
		},
		"oldest_waiting": func(n ast.Node) { s.OldestWaiting = d.atLeast(n, "notify.oldest_waiting", time.Second) },
		"burst":          func(n ast.Node) { s.Burst = d.countPer(n, "notify.burst", time.Minute) },
		"rising":         func(n ast.Node) { s.Rising = d.countPer(n, "notify.rising", time.Hour) },
		"routes": func(n ast.Node) {
			names := map[string]bool{}
			d.each(d.sequence(n, "notify.routes", "a list of routes"), func(i int, item ast.Node) {
				r := d.route(item, i, c)
				if names[r.Name] {
					d.fail(item, "a second route is named %q", r.Name)
				}
				names[r.Name] = true
				s.Routes = append(s.Routes, r)
			})
		},
	})
}

// routeName is a name that needs no escaping in labels and paths.
var routeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

func (d *document) route(n ast.Node, i int, c *Config) notify.Route {
	r := notify.DefaultRoute()
	where := fmt.Sprintf("notify.routes[%d]", i)
	at := routeSecret{route: i, key: -1}
	var urls, vhosts []string
	var url ast.Node
	place := func(n ast.Node, key string) string {
		urls = append(urls, key)
		at.secretSource = d.secretSource(n)
		return d.text(n, where+"."+key, "a text")
	}
	d.mapping(n, where, map[string]field{
		"name": func(n ast.Node) {
			if r.Name = d.text(n, where+".name", "a name"); !routeName.MatchString(r.Name) {
				d.fail(n, "%s.name is %s; expected up to 63 letters, digits, - _ and .", where, show(n))
			}
		},
		"url": func(n ast.Node) {
			url = n
			r.URL = notify.Secret(place(n, "url"))
		},
		"url_env":    func(n ast.Node) { env := place(n, "url_env"); at.env = env },
		"url_file":   func(n ast.Node) { file := place(n, "url_file"); at.file = d.path(file) },
		"body":       func(n ast.Node) { r.Body = d.body(n, where+".body") },
		"keys":       func(n ast.Node) { r.Keys = d.routingKeys(n, where+".keys", i, c) },
		"events":     func(n ast.Node) { r.Kinds = d.events(n, where+".events") },
		"queues":     func(n ast.Node) { r.Queues = d.queues(n, where+".queues") },
		"vhosts":     func(n ast.Node) { vhosts = d.vhostPatterns(n, where+".vhosts") },
		"severity":   func(n ast.Node) { r.Least = d.severity(n, where+".severity") },
		"group_wait": func(n ast.Node) { r.GroupWait = d.atLeast(n, where+".group_wait", 0) },
		"repeat":     func(n ast.Node) { r.Repeat = d.atLeast(n, where+".repeat", time.Minute) },
		"quiet":      func(n ast.Node) { r.Quiet = d.quiet(n, where+".quiet") },
		"resolved":   func(n ast.Node) { r.Resolved = d.boolean(n, where+".resolved") },
	})
	switch {
	case r.Name == "":
		d.fail(n, "%s has no name", where)
	case len(urls) == 0:
		d.fail(n, "%s has no URL; expected url_env, url_file or url", where)
	case len(urls) > 1:
		d.fail(n, "%s has %s; expected one of them", where, strings.Join(urls, " and "))
	case urls[0] == "url":
		if err := notify.Check(&r); err != nil {
			d.fail(url, "%s.url %w", where, err)
		}
		c.Warnings = append(c.Warnings, fmt.Sprintf("notify route %q: its URL is in the file, for all who can read it; url_env or url_file keep it out", r.Name))
	default:
		c.routeSecrets = append(c.routeSecrets, at)
	}
	c.routeVHosts[r.Name] = vhosts
	return r
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
	for _, item := range d.sequence(n, where, "a list of "+strings.Join(names, ", ")) {
		k := d.text(item, where, "an event")
		if !slices.Contains(names, k) {
			d.fail(item, "%s has %s; expected some of %s", where, show(item), strings.Join(names, ", "))
		}
		all = append(all, notify.Kind(k))
	}
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

// countPer is a whole number in a minute or an hour, at least one.
func (d *document) countPer(n ast.Node, where string, per time.Duration) int {
	example := map[time.Duration]string{time.Minute: "a number in a minute, such as 100/min", time.Hour: "a number in an hour, such as 100/h"}[per]
	m := rate.FindStringSubmatch(d.text(n, where, example))
	v := 0.0
	if m != nil {
		v, _ = strconv.ParseFloat(m[1], 64)
		v *= float64(per) / float64(map[string]time.Duration{"s": time.Second, "min": time.Minute, "h": time.Hour}[m[2]])
	}
	if v = math.Ceil(v); v < 1 || v > 1e9 {
		d.fail(n, "%s is %s; expected %s", where, show(n), example)
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
