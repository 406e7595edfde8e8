// Package config reads the service's file. Every key has a default, unknown keys are refused, and
// errors name file, line and column. Read it in this order:
//
//	config.go    the types, Load, and what redrive check prints
//	keys.go      the table of keys: reading, variables and the reference are made from it
//	kinds.go     what the values of keys are: durations, rates, lists, URLs
//	parse.go     reads YAML and environment variables, with errors at their place
//	vhosts.go    a configuration of its own for each virtual host
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// Config is a whole configuration.
type Config struct {
	Broker   Broker
	Store    Store
	Listen   string // host:port
	BasePath string // what the page's and the API's paths begin with: "", or such as /redrive
	Log      Log
	Access   Access
	Policies policy.Set
	// Ways are how the messages of a policy wait in RabbitMQ, by its name; those
	// of the others wait in the store.
	Ways map[string]delay.Way
	// Throttle limits the retries of each policy, by its name.
	Throttle map[string]throttle.Rules
	// Adopt are the dead-letter queues that the service follows: names first, then patterns.
	Adopt []Followed
	// Watch are the queues that are watched otherwise than by default.
	Watch Watches
	// Mask has the rules for the roles whose level in Access.Bodies is masked.
	Mask []mask.Entry
	// Decode are the types of bodies.
	Decode decode.Options
	// Notify are the notifications.
	Notify    notify.Settings
	routeURLs []routeURL
	// vhosts are where each of Broker.VHosts stands in the file, and its password.
	vhosts []secretSource
	// policyVHosts, routeVHosts and groupVHosts are the patterns of virtual hosts that a policy, a route of
	// notify or a role of a group is for, by its name; nil: all.
	policyVHosts, routeVHosts, groupVHosts, proxyVHosts map[string][]string

	tlsAt         secretSource // where broker.tls stands in the file
	sameLogin     bool         // Broker.Management has that of Broker.URL
	brokerUnsound bool         // a mistake may be in it
	// Warnings are about what is allowed, but probably a mistake.
	Warnings []string
}

// Broker is where RabbitMQ is. Each text is one URL, or several: see package connect.
type Broker struct {
	URL        string // amqp:// or amqps://, with credentials
	Management string // http:// or https://, with credentials
	// VHosts are served beside the virtual host that URL names: see PerVHost.
	VHosts []VHost
	// Credentials are the TLS files of both, and the files with the password of URL; ManagementLogin
	// are those with the password of Management.
	Credentials     connect.Client
	ManagementLogin connect.Login
}

// Followed is a dead-letter queue that existed before Redrive. The service stays its consumer.
type Followed struct {
	Name  string // of the dead-letter queue, or a pattern of such names
	Queue string // whose dead letters land there; "": not named
	Then  string // ThenPark or ThenRetry
	vhost []string
}

// Followed.Then.
const (
	ThenPark  = "park"
	ThenRetry = "retry"
)

// IsPattern reports whether it names no single queue.
func (f *Followed) IsPattern() bool { return strings.ContainsAny(f.Name, "*?") }

// FollowedQueues returns the names and patterns of Adopt.
func (c *Config) FollowedQueues() (names []string) {
	for _, f := range c.Adopt {
		names = append(names, f.Name)
	}
	return names
}

// Watched is what makes a queue of RabbitMQ's worth a notification.
type Watched struct {
	Queues   []string      // patterns
	Standing time.Duration // ready messages and no consumer for so long; 0: not looked at
	// Ready is how many ready messages are not too many; nil: any number.
	Ready *int
	// GrowingFor is how long its length may grow, and never fall; 0: for ever.
	GrowingFor time.Duration
	// Unacked is how long messages may be unacknowledged while none is acknowledged; 0: for ever.
	Unacked time.Duration
	// EachIncrease is set if each increase of a queue that is too long is a notification.
	EachIncrease bool
}

// Watches decide about queues: the first that matches.
type Watches []Watched

// defaultWatch is for queues that no entry names. Consumers are away for less than 15 minutes in a deployment.
func defaultWatch() Watched { return Watched{Standing: 15 * time.Minute} }

// Match returns what a queue is watched for, and whether an entry names it.
func (w Watches) Match(queue string) (of Watched, named bool) {
	for _, of := range w {
		if slices.ContainsFunc(of.Queues, func(p string) bool { return policy.MatchQueue(p, queue) }) {
			return of, true
		}
	}
	return defaultWatch(), false
}

// describe says in words what is watched.
func (w Watched) describe() string {
	var all []string
	if w.Standing > 0 {
		all = append(all, "standing for "+policy.FormatDuration(w.Standing))
	}
	if w.Ready != nil {
		all = append(all, fmt.Sprintf("more than %d ready", *w.Ready))
	}
	if w.GrowingFor > 0 {
		all = append(all, "growing for "+policy.FormatDuration(w.GrowingFor))
	}
	if w.Unacked > 0 {
		all = append(all, "unacknowledged for "+policy.FormatDuration(w.Unacked))
	}
	if w.EachIncrease {
		all = append(all, "each increase")
	}
	return cmp.Or(strings.Join(all, ", "), "nothing")
}

// Log sets level and format of the log.
type Log struct {
	Format string // text or json
	Level  slog.Level
}

// Store is where messages are kept.
type Store struct {
	Disk    string // a folder; not used with Redis
	Redis   Redis
	Reserve uint64 // bytes to leave free on its disk, or in Redis's memory
	// Restorable is how long a message that a person discarded can be restored.
	Restorable time.Duration
}

// Default is the configuration without a file.
func Default() *Config {
	return &Config{
		Broker:   Broker{URL: "amqp://guest:guest@127.0.0.1:5672/"},
		Store:    Store{Disk: "./redrive-data", Reserve: 256 << 20, Restorable: 30 * 24 * time.Hour},
		Listen:   "127.0.0.1:8250",
		Log:      Log{Format: "text"},
		Access:   Access{Roles: auth.DefaultGrants(), OIDC: auth.DefaultOIDC(), Bodies: mask.DefaultBodies()},
		Policies: policy.Set{policy.Default()},
		Notify:   notify.DefaultSettings(),

		Ways: map[string]delay.Way{}, Throttle: map[string]throttle.Rules{},
		policyVHosts: map[string][]string{}, routeVHosts: map[string][]string{}, groupVHosts: map[string][]string{},
		proxyVHosts: map[string][]string{},
	}
}

// Load reads a file (none when path is empty), then the environment:
//
//	REDRIVE_BROKER_URL      instead of broker.url; or REDRIVE_BROKER_URL_FILE
//	REDRIVE_MANAGEMENT_URL  instead of broker.management; or …_FILE
//	REDRIVE_BROKER_PASSWORD the password for both; or …_FILE
//	REDRIVE_REDIS_URL       instead of store.redis.url; or …_FILE
//	REDRIVE_REDIS_PASSWORD  its password; or …_FILE
//
// Every other key has a variable too: see Variable. Several URLs are separated by commas. A …_FILE
// variable names a file that holds the value. The URLs of notify's routes, and the passwords of
// further virtual hosts, come from the variables and files that these name.
func Load(path string, getenv func(string) string) (*Config, error) {
	var data []byte
	if path != "" {
		var err error
		data, err = os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("the config file %s does not exist", path)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the config file: %w", err)
		}
	}
	c, err := parse(path, data, getenv)
	if c != nil {
		err = errors.Join(err, c.environment(getenv))
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) environment(getenv func(string) string) error {
	r := &c.Store.Redis
	var wrong []error
	for _, v := range []struct {
		name string
		use  func(string) error
	}{
		{"REDRIVE_BROKER_URL", func(s string) error { c.Broker.URL = s; return CheckBroker(s) }},
		{"REDRIVE_MANAGEMENT_URL", func(s string) error {
			c.Broker.Management = s
			return connect.CheckURLs(s, "http", "https")
		}},
		{"REDRIVE_BROKER_PASSWORD", func(s string) (err error) {
			if c.Broker.URL, err = withPassword(c.Broker.URL, s); err == nil && c.Broker.Management != "" {
				c.Broker.Management, err = withPassword(c.Broker.Management, s)
			}
			return err
		}},
		{"REDRIVE_REDIS_URL", func(s string) error { r.URL = s; return connect.CheckURLs(s, redisSchemes...) }},
		{"REDRIVE_REDIS_PASSWORD", func(s string) (err error) {
			if r.URL == "" {
				return errors.New("there is no store.redis.url that it is for")
			}
			r.URL, err = withPassword(r.URL, s)
			return err
		}},
	} {
		value, from, err := variable(v.name, getenv)
		if err == nil && value != "" {
			if err = v.use(value); err != nil {
				err = fmt.Errorf("%s: %w", from, err)
			}
		}
		wrong = append(wrong, err)
	}
	if c.Broker.Management == "" {
		c.Broker.Management = managementOf(c.Broker.URL)
	}
	if c.sameLogin = connect.User(c.Broker.Management) == ""; c.sameLogin {
		user := url.UserPassword("guest", "guest") // as AMQP has it
		if u, err := url.Parse(connect.SplitURLs(c.Broker.URL)[0]); err == nil && u.User != nil {
			user = u.User
		}
		c.Broker.Management, _ = connect.EachURL(c.Broker.Management, func(u *url.URL) { u.User = user })
	}
	sound := !c.brokerUnsound && errors.Join(wrong...) == nil
	wrong = append(wrong, c.readPasswords(getenv), c.readRouteURLs(getenv))
	if sound {
		wrong = append(wrong, c.credentials(getenv), c.checkVHosts())
	}
	return errors.Join(wrong...)
}

// variable returns the value of an environment variable, or of the file that name_FILE names, and
// the name of the variable that it is from.
func variable(name string, getenv func(string) string) (value, from string, err error) {
	value, file := getenv(name), getenv(name+"_FILE")
	switch {
	case file == "":
		return value, name, nil
	case value != "":
		return "", "", hint.Errorf("use one", "both %s and %s_FILE are set", name, name)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("%s_FILE: %w", name, err)
	}
	return strings.TrimSpace(string(data)), name + "_FILE", nil
}

// managementOf returns the URLs of the management API at its standard port, with the same hosts; ""
// when the broker's URL is none.
func managementOf(broker string) string {
	text, err := connect.EachURL(broker, func(u *url.URL) {
		m := url.URL{Scheme: "http", Host: net.JoinHostPort(u.Hostname(), "15672")}
		if u.Scheme == "amqps" {
			m.Scheme, m.Host = "https", net.JoinHostPort(u.Hostname(), "15671")
		}
		*u = m
	})
	if err != nil {
		return ""
	}
	return text
}

func withPassword(urls, password string) (string, error) {
	return connect.EachURL(urls, func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), password) })
}

// CheckBroker checks the URLs of a broker. Its error does not repeat them.
func CheckBroker(urls string) error { return connect.CheckURLs(urls, "amqp", "amqps") }

// VHost returns the virtual host that the broker's URL names.
func (c *Config) VHost() string { return connect.VHost(c.Broker.URL) }

// Describe writes for each policy its real waits, where messages wait if that is RabbitMQ, and what
// happens after the last attempt; then Protobuf types by queue, routes of notifications, and what
// else differs from the defaults.
func Describe(w io.Writer, c *Config) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if err := describeVHosts(table, c); err != nil {
		return err
	}
	rest := true // is parked, since no policy matches it
	for i := range c.Policies {
		p := &c.Policies[i]
		rest = rest && (c.policyVHosts[p.Name] != nil || !slices.Contains(p.Queues, "*"))
		fmt.Fprintf(table, "%s\t%s\t%s\n", p.Name, strings.Join(p.Queues, " "),
			waits(p, c.Ways[p.Name])+describeFor(c.policyVHosts[p.Name]))
		var more []string
		for _, set := range p.Settings() {
			more = append(more, set.Key+" "+set.Value)
		}
		if limits := c.Throttle[p.Name].String(); limits != "" {
			more = append(more, "throttle: "+limits)
		}
		if more != nil {
			fmt.Fprintf(table, "\t\t  %s\n", strings.Join(more, " · "))
		}
		for j := range p.Rules {
			r := &p.Rules[j]
			fmt.Fprintf(table, "\t\t  rule %s: %s → %s\n", p.RuleName(j), strings.TrimSpace(r.When.String()),
				cmp.Or(r.Then.String(), "as the policy says"))
		}
	}
	if rest {
		fmt.Fprintln(table, "others\t*\tparked, never retried")
	}
	for _, f := range c.Adopt {
		what := "parked"
		if f.Then == ThenRetry {
			what = "retried by the policy of " + cmp.Or(f.Queue, "the only queue that dead-letters there")
		} else if f.Queue != "" {
			what += ", of " + f.Queue
		}
		fmt.Fprintf(table, "follow\t%s\t%s\n", f.Name, what+describeFor(f.vhost))
	}
	for _, w := range c.Watch {
		fmt.Fprintf(table, "watch\t%s\t%s\n", strings.Join(w.Queues, " "), w.describe())
	}
	for _, m := range c.Mask {
		fmt.Fprintf(table, "mask\t%s\t%s\n", cmp.Or(strings.Join(m.Queues, " "), "*"),
			strings.Join(slices.Concat(m.Paths, m.Patterns), ", "))
	}
	for _, q := range c.Decode.Protobuf.Queues {
		fmt.Fprintf(table, "protobuf\t%s\t%s\n", strings.Join(q.Queues, " "), q.Message)
	}
	for i := range c.Notify.Routes {
		r := &c.Notify.Routes[i]
		fmt.Fprintf(table, "notify\t%s\t%s\n", r.Name, describeRoute(r)+describeFor(c.routeVHosts[r.Name]))
	}
	if c.Store.Restorable != Default().Store.Restorable {
		fmt.Fprintf(table, "\nwhat is discarded can be restored for %s\n", policy.FormatDuration(c.Store.Restorable))
	}
	a := &c.Access
	if who := a.describe(); who != "" {
		fmt.Fprintf(table, "\n%s\n", who)
	}
	if a.Bodies != mask.DefaultBodies() || a.Show != nil {
		fmt.Fprintf(table, "\n%s\n", mask.New(c.Mask, a.Bodies, a.Show...))
	}
	return table.Flush()
}

// maxShownWaits is how many different waits are written out.
const maxShownWaits = 12

func waits(p *policy.Policy, way delay.Way) string {
	all := rounded(p, way)
	var total time.Duration
	for _, w := range all {
		total += w
		if total < 0 {
			total = policy.LongestDelay // past any calendar
		}
	}
	var parts []string
	for i := 0; i < len(all) && len(parts) <= maxShownWaits; {
		n := 1
		for i+n < len(all) && all[i+n] == all[i] {
			n++
		}
		part := policy.FormatDuration(all[i])
		if n > 2 {
			part += fmt.Sprintf(" ×%d", n)
		} else {
			n = 1
		}
		if len(parts) == maxShownWaits {
			part = "…"
		}
		parts = append(parts, part)
		i += n
	}
	then := map[policy.Action]string{policy.Park: "parked", policy.Discard: "discarded",
		policy.Forward: "forwarded to " + p.Exhausted.Destination.String()}[p.Exhausted.Action]
	if len(all) == 0 {
		return then + " after the first attempt"
	}
	s := fmt.Sprintf("%s, %s after %s", strings.Join(parts, ", "), then, policy.FormatDuration(total))
	if j := p.Jitter.String(); j != "none" && slices.Max(all) > 0 {
		s += " (jitter " + j + ")"
	}
	if way != nil {
		s += " (waits in RabbitMQ: " + way.Limits().Name + ")"
	}
	return s
}

// minDynamic is the smallest unit that delays of the way dynamic are rounded up to.
const minDynamic = 100 * time.Millisecond

const maxLevels = 100

func (c *Config) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

// checkWay refuses a policy whose way cannot keep it, and takes away what the way does not have.
func (v value) checkWay(p *policy.Policy, way delay.Way, c *Config) {
	l := way.Limits()
	if err := l.Check(p); err != nil {
		wait, _ := v.at("wait")
		v.refuse(wait.node, err)
	}
	if l.DropsWhenFull {
		c.warn("policy %q: with %s a retry that comes due while its work queue is full or has no leader is lost; "+
			"levels, binary and disk keep it", p.Name, l.Name)
	}
	if !l.Spreads() {
		if _, set := v.at("jitter"); set && p.Jitter != policy.None {
			c.warn("policy %q: its jitter has no effect: %s waits only what it waits", p.Name, l.Name)
		}
		p.Jitter = policy.None
	}
}

// warnOfLimits warns of limits that apply to replays alone, of a max_age that ends before the first delay, and of
// a rate that in_flight does not allow.
func (c *Config) warnOfLimits(p *policy.Policy, way delay.Way, r throttle.Rules) {
	if way != nil && (r.Rate > 0 || r.InFlight > 0 || r.Breaker != nil) {
		c.warn("policy %q: rate, in_flight and breaker apply to replays alone: RabbitMQ itself retries messages that "+
			"wait in it (%s); with wait: disk they apply to all", p.Name, way.Limits().Name)
	}
	if p.MaxAge > 0 && p.Attempts > 1 && p.Jitter.Shortest(p.Backoff.Delay(1)) > p.MaxAge {
		c.warn("policy %q: max_age (%s) is shorter than the first delay of backoff, so only rules and consumers retry",
			p.Name, policy.FormatDuration(p.MaxAge))
	}
	if through := float64(r.InFlight) / r.Settle.Seconds(); r.InFlight > 0 && through < r.Rate {
		c.warn("policy %q: in_flight %d and settle %s allow %s, less than rate: in_flight must be at least rate times "+
			"settle", p.Name, r.InFlight, policy.FormatDuration(r.Settle),
			throttle.FormatRate(math.Round(through*3600)/3600))
	}
}

// warnOfRules warns of rules that can never decide, since one before them matches all that they match.
func (c *Config) warnOfRules(p *policy.Policy) {
	for i := range p.Rules {
		for j := range i {
			rule, before := p.Rules[i].When.(*query.Rule), p.Rules[j].When.(*query.Rule)
			if p.Rules[j].Then.Action != policy.Undecided && before.Covers(rule) {
				c.warn("policy %q: rule %s never decides: rule %s before it matches all of its failures", p.Name,
					p.RuleName(i), p.RuleName(j))
				break
			}
		}
	}
}

// rounded are a policy's waits as its way rounds them.
func rounded(p *policy.Policy, way delay.Way) []time.Duration {
	waits := p.Waits()
	if way == nil {
		return waits
	}
	rounded := slices.Clone(waits)
	for i, w := range waits {
		if i > 0 && w == waits[i-1] {
			rounded[i] = rounded[i-1]
		} else if t, err := way.Ticket("", w); err == nil {
			rounded[i] = t.Delay
		}
	}
	return rounded
}
