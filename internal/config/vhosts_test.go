package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/addresses"
)

const several = `
broker:
  url: amqp://svc:s3cret@h1:5672/shop
  management: http://look:s3cret@h1:15672
  vhosts:
    - billing
    - {name: "a/b %", user: own, password_env: OWN}
    - {name: "..", user: other, password_file: other.txt}
store: {disk: /data, redis: {url: "redis://h2", prefix: r}}
audit: {folder: /audit}
policies:
  - {name: orders, queues: ["orders.*"], wait: levels}
  - {name: billing only, queues: ["bill.*"], vhosts: ["bill*"], wait: dynamic}
  - {name: not there, queues: ["x"], vhosts: [shop, billing]}
notify:
  page: https://redrive.example.com/
  routes:
    - {name: all, url: "generic+https://h/"}
    - {name: shop, url: "generic+https://h/", vhosts: [shop]}
`

func TestEachVirtualHostHasAWholeConfigurationOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	password := filepath.Join(dir, "other.txt")
	must(t, os.WriteFile(password, []byte(" o:th@er\n"), 0o600))
	c, err := load(t, strings.Replace(several, "other.txt", password, 1), map[string]string{"OWN": "own/secret"})
	must(t, err)
	all, err := c.PerVHost()
	if err != nil || len(all) != 4 {
		t.Fatal(len(all), err)
	}
	type want struct{ vhost, url, management, disk, prefix, audit, policies, ways, routes, page string }
	for i, w := range []want{
		{"shop", "amqp://svc:s3cret@h1:5672/shop", "http://look:s3cret@h1:15672", "/data", "r", "/audit", "orders, not there", "orders", "all, shop", "https://redrive.example.com/"},
		{"billing", "amqp://svc:s3cret@h1:5672/billing", "http://look:s3cret@h1:15672", "/data/vhosts/billing", "r:vhost:billing", "/audit/vhosts/billing",
			"orders, billing only, not there", "billing only, orders", "all", "https://redrive.example.com/v/billing"},
		{"a/b %", "amqp://own:own%2Fsecret@h1:5672/a%2Fb%20%25", "http://own:own%2Fsecret@h1:15672", "/data/vhosts/a%2Fb%20%25", "r:vhost:a%2Fb%20%25", "/audit/vhosts/a%2Fb%20%25",
			"orders", "orders", "all", "https://redrive.example.com/v/a%2Fb%20%25"},
		{"..", "amqp://other:o%3Ath%40er@h1:5672/%2E%2E", "http://other:o%3Ath%40er@h1:15672", "/data/vhosts/%2E%2E", "r:vhost:%2E%2E", "/audit/vhosts/%2E%2E",
			"orders", "orders", "all", "https://redrive.example.com/v/%2E%2E"},
	} {
		c := all[i]
		var policies, ways, routes []string
		for _, p := range c.Policies {
			policies = append(policies, p.Name)
		}
		for name := range c.Ways {
			ways = append(ways, name)
		}
		slices.Sort(ways)
		for _, r := range c.Notify.Routes {
			routes = append(routes, r.Name)
		}
		got := want{c.VHost(), c.Broker.URL, c.Broker.Management, c.Store.Disk, c.Store.Redis.Prefix, c.Access.AuditFolder,
			strings.Join(policies, ", "), strings.Join(ways, ", "), strings.Join(routes, ", "), c.Notify.Page}
		if got != w {
			t.Errorf("%d is\n%+v\nwant\n%+v", i, got, w)
		}
		if again, err := c.PerVHost(); err != nil || len(again) != 1 || again[0].Store != c.Store {
			t.Errorf("%d is no configuration of one virtual host: %d, %v", i, len(again), err)
		}
		if err := addresses.Check(c.Broker.URL, "amqp"); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	b := described(t, c)
	for _, line := range []string{"virtual host  a/b %", "as own, in prefix r:vhost:a%2Fb%20%25, policies: orders", "(virtual hosts: bill*)", "all events of all queues (virtual hosts: shop)"} {
		if !strings.Contains(b, line) {
			t.Errorf("%q is not in:\n%s", line, b)
		}
	}
	if strings.Contains(b, "s3cret") || strings.Contains(b, "own/secret") {
		t.Errorf("it shows a password:\n%s", b)
	}
}

// Adding virtual hosts moves nothing of the first.
func TestOneVirtualHostIsAsBefore(t *testing.T) {
	c, err := load(t, "broker: {url: 'amqp://h/shop'}\nnotify: {page: 'https://h/'}\naudit: {folder: a}", nil)
	must(t, err)
	all, err := c.PerVHost()
	if err != nil || len(all) != 1 {
		t.Fatal(len(all), err)
	}
	if a := all[0]; a.Broker.URL != c.Broker.URL || a.Broker.Management != c.Broker.Management || a.Store != c.Store || a.Audit() != c.Audit() || a.Notify.Page != c.Notify.Page {
		t.Errorf("%+v, want %+v", a, c)
	}
}

func TestErrorsOfVirtualHostsNameThePlace(t *testing.T) {
	env := map[string]string{"PW": "s3cret", "EMPTY": "  "}
	broker := func(item string) string {
		return "broker:\n  url: amqp://h/shop\n  vhosts:\n    - billing\n    - " + item + "\n"
	}
	for yaml, want := range map[string]string{
		broker("shop"):                                 `redrive.yaml:5:7: broker.vhosts has "shop", which broker.url names already; expected further virtual hosts only`,
		broker("billing"):                              `redrive.yaml:5:7: broker.vhosts has "billing" twice`,
		broker("{name: billing}"):                      `redrive.yaml:5:14: broker.vhosts has "billing" twice`,
		broker("''"):                                   `redrive.yaml:5:7: broker.vhosts[1] has no name; expected a virtual host's, such as billing`,
		broker("{user: u, password_env: PW}"):          `broker.vhosts[1] has no name`,
		broker("{name: x, user: u}"):                   `broker.vhosts[1] has only one of a user and a password`,
		broker("{name: x, password_env: PW}"):          `broker.vhosts[1] has only one of a user and a password`,
		broker("{name: x, user: u, password: s3cret}"): `broker.vhosts[1] has no key "password"`,
		broker("{name: x, user: u, password_env: PW, password_file: f}"):         `broker.vhosts[1] has password_env and password_file; expected one of them`,
		broker("{name: x, user: u, password_env: EMPTY}"):                        `redrive.yaml:5:14: virtual host "x": the environment variable EMPTY is empty; expected the password of "u"`,
		broker("{name: x, user: u, password_file: none}"):                        `redrive.yaml:5:14: virtual host "x": its password cannot be read: open none`,
		"broker: {vhosts: billing}":                                              `redrive.yaml:1:18: broker.vhosts is "billing"; expected a list of virtual hosts`,
		"policies: [{queues: [a], vhosts: []}]":                                  `policies[0].vhosts is empty; leave the key out for all virtual hosts`,
		"notify: {routes: [{name: r, url: 'generic+https://h/', vhosts: shop}]}": `notify.routes[0].vhosts is "shop"; expected a list of virtual hosts or patterns`,
	} {
		if _, err := load(t, yaml, env); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s\n%v\nwant %s", yaml, err, want)
		}
	}
	// The environment may say which is the first.
	env["REDRIVE_BROKER_URL"] = "amqp://h/billing"
	if _, err := load(t, broker("crm"), env); err == nil || !strings.Contains(err.Error(), `redrive.yaml:4:7: broker.vhosts has "billing", which broker.url names already`) {
		t.Errorf("the first again, by the environment: %v", err)
	}
	if c, err := load(t, broker("shop"), map[string]string{"REDRIVE_BROKER_URL": "amqp://h/crm"}); err != nil || len(c.Broker.VHosts) != 2 {
		t.Errorf("another first: %v", err)
	}
}

func TestWarningsOfVirtualHosts(t *testing.T) {
	const head = "broker: {url: 'amqp://h/shop', vhosts: [billing, crm]}\n"
	for yaml, want := range map[string][]string{
		head: nil,
		head + "policies: [{name: a, queues: [q], vhosts: [shop]}, {name: b, queues: [q], vhosts: [billing, crm]}]": nil,
		head + "policies: [{name: a, queues: [q], vhosts: [shop]}, {name: b, queues: [q], vhosts: ['*']}]":          {`policy "b": queues "q": policy "a" comes first`},
		head + "policies: [{name: a, queues: [q], vhosts: [none]}, {name: b, queues: [q], vhosts: [none, shop]}]": {
			`virtual host "billing": no policy is for it, so all that fails there is parked`, `virtual host "crm": no policy is for it`},
	} {
		c, err := load(t, yaml, nil)
		must(t, err)
		if len(c.Warnings) != len(want) {
			t.Errorf("%s: %q, want %q", yaml, c.Warnings, want)
			continue
		}
		for i := range want {
			if !strings.Contains(c.Warnings[i], want[i]) {
				t.Errorf("%s: %q, want %q", yaml, c.Warnings, want)
			}
		}
	}
}

// Names that file systems, URLs or Redis would take for something else stay apart.
func TestPlacesOfVirtualHostsStayApart(t *testing.T) {
	long := strings.Repeat("é", 127)
	names := []string{"/", ".", "..", "a", "A", "a/b", "a%2Fb", "a b", "{0}", "a*", "[a]", "a:vhost:b", long, long[:252] + "e"}
	c := Default()
	for _, n := range names {
		c.Broker.VHosts = append(c.Broker.VHosts, VHost{Name: n})
	}
	c.Broker.URL = "amqp://h/first"
	all, err := c.PerVHost()
	must(t, err)
	c.Store.Redis.URL = "redis://h"
	onRedis, err := c.PerVHost()
	must(t, err)
	folders, prefixes := map[string]bool{}, map[string]bool{}
	for i, n := range names {
		folder, prefix := filepath.Clean(all[i+1].Store.Disk), onRedis[i+1].Store.Redis.Prefix
		if is := all[i+1].VHost(); is != n {
			t.Errorf("%q is served as %q", n, is)
		}
		if filepath.Dir(folder) != filepath.Join(c.Store.Disk, "vhosts") || folders[folder] || len(filepath.Base(folder)) > 255 {
			t.Errorf("%q is in %s", n, folder)
		}
		if strings.ContainsAny(prefix, "{}*?[] ") || prefixes[prefix] {
			t.Errorf("%q has the prefix %s", n, prefix)
		}
		folders[folder], prefixes[prefix] = true, true
	}
}
