package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/credentials"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/policy"
)

// VHost is a virtual host that is served beside the one that Broker.URL names, on the same servers
// or on those of another cluster.
type VHost struct {
	Name  string // on page, API, metrics, and of its places
	VHost string // its name in RabbitMQ; "": Name
	// URL has the nodes of another cluster, whatever virtual host it names; "": those of Broker.URL.
	URL        string
	Management string          // of URL; "": its hosts at the standard port
	TLS        credentials.TLS // of both
	// User and Password are for URL and Management, unless these have their own; with URL "" they
	// are instead of those of Broker. "": none.
	User, Password string
	PasswordFile   string // has Password, and is read again for each connection; "": none
}

// PerVHost returns a configuration for each virtual host, as of a service that serves it alone:
// that of Broker.URL first, then those of Broker.VHosts. So the code that gets one need not know
// of the others.
func (c *Config) PerVHost() ([]*Config, error) {
	all := []*Config{c.restrictedTo(c.Name())}
	for i, v := range c.Broker.VHosts {
		var at secretSource
		if i < len(c.vhosts) {
			at = c.vhosts[i]
		}
		if slices.ContainsFunc(all, func(c *Config) bool { return c.Name() == v.Name }) {
			return nil, at.wrong("%s", v.nameTaken(c.Name()))
		}
		t := c.restrictedTo(v.Name)
		if err := t.connectTo(v); err != nil {
			return nil, err
		}
		if as := slices.IndexFunc(all, t.servesSame); as >= 0 {
			return nil, at.wrong("broker.vhosts has %q, which is the virtual host %q of the same servers as %q; expected each virtual host once", v.Name, t.VHost(), all[as].Name())
		}
		t.moveTo(v.Name)
		all = append(all, t)
	}
	return all, nil
}

// nameTaken says that another virtual host has its name; first is that of Broker.URL.
func (v VHost) nameTaken(first string) string {
	switch {
	case v.Name != first:
		return fmt.Sprintf("broker.vhosts has %q twice", v.Name)
	case v.URL != "":
		return fmt.Sprintf("broker.vhosts has %q, which is the name of the one of broker.url; expected another name, with vhost: %s", v.Name, v.Name)
	}
	return fmt.Sprintf("broker.vhosts has %q, which broker.url names already; expected further virtual hosts only", v.Name)
}

// Name is what the virtual host is called on page, API, metrics and command line. Two of different
// clusters may have the same VHost, and never the same Name.
func (c *Config) Name() string { return cmp.Or(c.name, c.VHost()) }

// ErrNoVHost: a configuration serves no such virtual host.
var ErrNoVHost = errors.New("serves no virtual host")

// ForVHost returns one of PerVHost; "" is the first.
func (c *Config) ForVHost(vhost string) (*Config, error) {
	all, err := c.PerVHost()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range all {
		if name := t.Name(); vhost == "" || name == vhost {
			return t, nil
		} else {
			names = append(names, strconv.Quote(name))
		}
	}
	return nil, fmt.Errorf("the config %w %q; it serves %s", ErrNoVHost, vhost, strings.Join(names, ", "))
}

// restrictedTo returns a configuration with the policies and routes of one virtual host.
func (c *Config) restrictedTo(vhost string) *Config {
	t := *c
	t.name = vhost
	t.Broker.VHosts, t.Warnings, t.routeSecrets, t.vhosts = nil, nil, nil, nil
	t.policyVHosts, t.routeVHosts = nil, nil
	t.Policies = slices.DeleteFunc(slices.Clone(c.Policies), func(p policy.Policy) bool { return !isFor(c.policyVHosts[p.Name], vhost) })
	t.Notify.Routes = slices.DeleteFunc(slices.Clone(c.Notify.Routes), func(r notify.Route) bool { return !isFor(c.routeVHosts[r.Name], vhost) })
	if len(c.Broker.VHosts) > 0 {
		t.Notify.VHost = vhost
	}
	t.Ways = map[string]delay.Way{}
	for _, p := range t.Policies {
		if way, ok := c.Ways[p.Name]; ok {
			t.Ways[p.Name] = way
		}
	}
	return &t
}

// isFor tells whether one of the patterns matches a virtual host; nil: all do.
func isFor(only []string, vhost string) bool {
	return only == nil || slices.ContainsFunc(only, func(pattern string) bool { return policy.MatchQueue(pattern, vhost) })
}

// moveTo gives a further virtual host places of its own: store, audit log, page.
func (c *Config) moveTo(vhost string) {
	folder := filepath.Join("vhosts", folderOf(vhost))
	c.Store.Disk = filepath.Join(c.Store.Disk, folder)
	if !c.Store.OnDisk() {
		c.Store.Redis.Prefix = cmp.Or(c.Store.Redis.Prefix, "redrive") + ":vhost:" + addresses.PathPart(vhost)
	}
	if c.Access.AuditFolder != "" {
		c.Access.AuditFolder = filepath.Join(c.Access.AuditFolder, folder)
	}
	if c.Notify.Page != "" {
		c.Notify.Page = strings.TrimSuffix(c.Notify.Page, "/") + "/v/" + addresses.PathPart(vhost)
	}
}

// longestFolder is less than the longest name that file systems allow.
const longestFolder = 200

// folderOf returns the name of a virtual host's folder.
func folderOf(vhost string) string {
	name := addresses.PathPart(vhost)
	if len(name) > longestFolder {
		sum := sha256.Sum256([]byte(vhost))
		name = name[:longestFolder-17] + "-" + hex.EncodeToString(sum[:8])
	}
	return name
}

// warnOfOverlaps warns of queues that an earlier policy matches too, in a virtual host that both
// are for.
func (c *Config) warnOfOverlaps() {
	for i, p := range c.Policies {
		for _, q := range p.Queues {
			for _, earlier := range c.Policies[:i] {
				if _, ok := (policy.Set{earlier}).Match(q); ok && c.overlap(p.Name, earlier.Name) {
					c.Warnings = append(c.Warnings, fmt.Sprintf("policy %q: queues %q: policy %q comes first and matches some or all of them", p.Name, q, earlier.Name))
					break
				}
			}
		}
	}
}

// warnOfTopicPatterns warns of # in patterns of queues, which is of topic exchanges: here it is a
// character like any other.
func (c *Config) warnOfTopicPatterns() {
	warn := func(where string, patterns []string) {
		for _, q := range patterns {
			if q == "#" || strings.HasPrefix(q, "#.") || strings.HasSuffix(q, ".#") || strings.Contains(q, ".#.") {
				c.Warnings = append(c.Warnings, fmt.Sprintf("%s: queues %q: # is a wildcard of topic exchanges, and matches only itself here: %q matches any characters", where, q, strings.ReplaceAll(q, "#", "*")))
			}
		}
	}
	for _, p := range c.Policies {
		warn(fmt.Sprintf("policy %q", p.Name), p.Queues)
	}
	warn("notify.critical", c.Notify.Critical)
	warn("notify.watch", c.Notify.Watch)
	for _, r := range c.Notify.Routes {
		warn(fmt.Sprintf("route %q", r.Name), r.Queues)
	}
}

func (c *Config) overlap(a, b string) bool {
	names := []string{c.Name()}
	for _, v := range c.Broker.VHosts {
		names = append(names, v.Name)
	}
	one, other := c.policyVHosts[a], c.policyVHosts[b]
	return one == nil || other == nil || slices.ContainsFunc(names, func(name string) bool { return isFor(one, name) && isFor(other, name) })
}

// readPasswords reads the passwords of virtual hosts from variables and files.
func (c *Config) readPasswords(getenv func(string) string) error {
	for i := range c.vhosts {
		v, at := &c.Broker.VHosts[i], &c.vhosts[i]
		if v.User == "" {
			continue
		}
		of := fmt.Sprintf("virtual host %q: ", v.Name)
		value, what, err := at.read(getenv, of+"its password")
		if err != nil {
			return err
		}
		if value == "" {
			return at.wrong("%s%s is empty; expected the password of %q", of, what, v.User)
		}
		v.Password = value
	}
	return nil
}

// checkVHosts returns what is wrong with the virtual hosts, and warns of those without a policy. It
// comes after the environment, which may name the first one.
func (c *Config) checkVHosts() error {
	all, err := c.PerVHost()
	if err != nil {
		return err
	}
	for _, t := range all {
		if len(t.Policies) == 0 {
			c.Warnings = append(c.Warnings, fmt.Sprintf("virtual host %q: no policy is for it, so all that fails there is parked", t.Name()))
		}
	}
	return nil
}

// describeVHosts describes the virtual hosts, when there are several.
func describeVHosts(w io.Writer, c *Config) error {
	all, err := c.PerVHost()
	if err != nil || len(all) == 1 {
		return err
	}
	for _, t := range all {
		var names []string
		for _, p := range t.Policies {
			names = append(names, p.Name)
		}
		policies := cmp.Or(strings.Join(names, ", "), "none")
		place := t.Store.Disk
		if !t.Store.OnDisk() {
			place = "prefix " + cmp.Or(t.Store.Redis.Prefix, "redrive")
		}
		fmt.Fprintf(w, "virtual host\t%s\t%sas %s%s, in %s, policies: %s\n", t.Name(), t.describeServers(all[0]), addresses.User(t.Broker.URL), describeTLS(t.Broker.Credentials.TLS), place, policies)
	}
	return nil
}

// describeFor says in words that something is only for some virtual hosts.
func describeFor(only []string) string {
	if only == nil {
		return ""
	}
	return " (virtual hosts: " + strings.Join(only, " ") + ")"
}
