package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/policy"
)

// VHost is a virtual host that is served beside the one that Broker.URL names, on the
// same servers.
type VHost struct {
	Name           string
	User, Password string // "": those of Broker.URL and Broker.Management
}

// PerVHost returns a configuration for each virtual host, as of a service that serves it alone:
// that of Broker.URL first, then those of Broker.VHosts. So the code that gets one need not know
// of the others.
func (c *Config) PerVHost() ([]*Config, error) {
	first := c.VHost()
	all := []*Config{c.restrictedTo(first)}
	for i, v := range c.Broker.VHosts {
		if slices.ContainsFunc(all, func(c *Config) bool { return c.VHost() == v.Name }) {
			var at secretSource
			if i < len(c.vhosts) {
				at = c.vhosts[i]
			}
			if v.Name == first {
				return nil, at.wrong("broker.vhosts has %q, which broker.url names already; expected further virtual "+
					"hosts only", v.Name)
			}
			return nil, at.wrong("broker.vhosts has %q twice", v.Name)
		}
		t := c.restrictedTo(v.Name)
		var err error
		if t.Broker.URL, err = connect.EachURL(t.Broker.URL, v.setVHost); err != nil {
			return nil, fmt.Errorf("broker.url %w", err)
		}
		if t.Broker.Management != "" && v.User != "" {
			if t.Broker.Management, err = connect.EachURL(t.Broker.Management, v.setUser); err != nil {
				return nil, fmt.Errorf("broker.management %w", err)
			}
		}
		if v.User != "" && i < len(c.vhosts) {
			login := connect.Login{User: v.User, PasswordFile: c.vhosts[i].file}
			t.Broker.Credentials.Login, t.Broker.ManagementLogin = login, login
		}
		t.moveTo(v.Name)
		all = append(all, t)
	}
	return all, nil
}

// ErrNoVHost: a configuration serves no such virtual host.
var ErrNoVHost = hint.New("missing", "serves no virtual host")

// ForVHost returns one of PerVHost; "" is the first.
func (c *Config) ForVHost(vhost string) (*Config, error) {
	all, err := c.PerVHost()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range all {
		if name := t.VHost(); vhost == "" || name == vhost {
			return t, nil
		} else {
			names = append(names, strconv.Quote(name))
		}
	}
	return nil, fmt.Errorf("the config %w %q; it serves %s", ErrNoVHost, vhost, strings.Join(names, ", "))
}

// setVHost makes a URL that of the virtual host.
func (v VHost) setVHost(u *url.URL) {
	u.Path, u.RawPath = "/"+v.Name, "/"+connect.PathPart(v.Name)
	if v.User != "" {
		v.setUser(u)
	}
}

func (v VHost) setUser(u *url.URL) { u.User = url.UserPassword(v.User, v.Password) }

// restrictedTo returns a configuration with the policies and routes of one virtual host.
func (c *Config) restrictedTo(vhost string) *Config {
	t := *c
	t.Broker.VHosts, t.Warnings, t.routeURLs, t.vhosts = nil, nil, nil, nil
	t.policyVHosts, t.routeVHosts, t.groupVHosts, t.proxyVHosts = nil, nil, nil, nil
	groupsOf := func(all map[string]auth.Grant, only map[string][]string) map[string]auth.Grant {
		all = maps.Clone(all)
		maps.DeleteFunc(all, func(group string, _ auth.Grant) bool { return !isFor(only[group], vhost) })
		return all
	}
	t.Access.OIDC.Groups = groupsOf(c.Access.OIDC.Groups, c.groupVHosts)
	t.Access.Proxy.Groups = groupsOf(c.Access.Proxy.Groups, c.proxyVHosts)
	t.Policies = slices.DeleteFunc(slices.Clone(c.Policies),
		func(p policy.Policy) bool { return !isFor(c.policyVHosts[p.Name], vhost) })
	t.Notify.Routes = slices.DeleteFunc(slices.Clone(c.Notify.Routes),
		func(r notify.Route) bool { return !isFor(c.routeVHosts[r.Name], vhost) })
	if len(c.Broker.VHosts) > 0 {
		t.Notify.VHost = vhost
	}
	t.Adopt = slices.DeleteFunc(slices.Clone(c.Adopt), func(f Followed) bool { return !isFor(f.vhost, vhost) })
	t.Ways = maps.Clone(c.Ways)
	maps.DeleteFunc(t.Ways, func(name string, _ delay.Way) bool { return !isFor(c.policyVHosts[name], vhost) })
	return &t
}

// isFor reports whether one of the patterns matches a virtual host; nil: all do.
func isFor(only []string, vhost string) bool {
	return only == nil || slices.ContainsFunc(only,
		func(pattern string) bool { return policy.MatchQueue(pattern, vhost) })
}

// moveTo gives a further virtual host places of its own: store, page.
func (c *Config) moveTo(vhost string) {
	folder := filepath.Join("vhosts", folderOf(vhost))
	c.Store.Disk = filepath.Join(c.Store.Disk, folder)
	if !c.Store.OnDisk() {
		c.Store.Redis.Prefix = cmp.Or(c.Store.Redis.Prefix, "redrive") + ":vhost:" + connect.PathPart(vhost)
	}
	if c.Notify.Page != "" {
		c.Notify.Page = strings.TrimSuffix(c.Notify.Page, "/") + "/v/" + connect.PathPart(vhost)
	}
}

// maxFolderLen is less than the longest name that file systems allow.
const maxFolderLen = 200

// folderOf returns the name of a virtual host's folder.
func folderOf(vhost string) string {
	name := connect.PathPart(vhost)
	if len(name) > maxFolderLen {
		sum := sha256.Sum256([]byte(vhost))
		name = name[:maxFolderLen-17] + "-" + hex.EncodeToString(sum[:8])
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
					c.warn("policy %q: queues %q: policy %q comes first and matches some or all of them", p.Name, q,
						earlier.Name)
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
				c.warn("%s: queues %q: # is a wildcard of topic exchanges, and matches only itself here: %q matches "+
					"any characters", where, q, strings.ReplaceAll(q, "#", "*"))
			}
		}
	}
	for _, p := range c.Policies {
		warn(fmt.Sprintf("policy %q", p.Name), p.Queues)
	}
	for _, w := range c.Watch {
		warn("watch", w.Queues)
	}
	for _, r := range c.Notify.Routes {
		warn(fmt.Sprintf("route %q", r.Name), r.Queues)
	}
}

func (c *Config) overlap(a, b string) bool {
	names := []string{c.VHost()}
	for _, v := range c.Broker.VHosts {
		names = append(names, v.Name)
	}
	one, other := c.policyVHosts[a], c.policyVHosts[b]
	return one == nil || other == nil ||
		slices.ContainsFunc(names, func(name string) bool { return isFor(one, name) && isFor(other, name) })
}

// readPasswords reads the passwords of virtual hosts from variables and files.
func (c *Config) readPasswords(getenv func(string) string) error {
	var wrong []error
	for i := range c.Broker.VHosts {
		v, at := &c.Broker.VHosts[i], &c.vhosts[i]
		if v.User == "" {
			continue
		}
		of := fmt.Sprintf("virtual host %q: ", v.Name)
		value, what, err := at.read(getenv, of+"its password")
		if err == nil && value == "" {
			err = at.wrong("%s%s is empty; expected the password of %q", of, what, v.User)
		}
		v.Password, wrong = value, append(wrong, err)
	}
	return errors.Join(wrong...)
}

// checkVHosts checks the virtual hosts, and warns of those without a policy. Call it after the environment
// variables are applied: they may name the first virtual host.
func (c *Config) checkVHosts() error {
	all, err := c.PerVHost()
	if err != nil {
		return err
	}
	for _, t := range all {
		if len(t.Policies) == 0 {
			c.warn("virtual host %q: no policy is for it, so all that fails there is parked", t.VHost())
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
		fmt.Fprintf(w, "virtual host\t%s\tas %s, in %s, policies: %s\n", t.VHost(), connect.User(t.Broker.URL), place,
			policies)
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
