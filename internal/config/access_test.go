package config

import (
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/testenv/authority"
)

const cert = "\ntls: {cert: c.pem, key: k.pem}\n"

// A service that others can reach, and that lets in whoever asks, or shows their
// password to the network, does not start.
func TestAServiceThatOthersReachIsClosed(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"listen: 127.0.0.1:1", ""},
		{"listen: '[::1]:1'", ""},
		{"listen: localhost:1", ""},
		{"auth: {}", ""},
		{"listen: 127.0.0.1:1" + cert, ""},
		{"listen: 0.0.0.0:1", `f.yaml:1:9: listen is "0.0.0.0:1", which other machines can reach, and no one has to sign in; set ` + "`auth: {}`"},
		{"listen: :1", "no one has to sign in"},
		{"listen: '[::]:1'", "no one has to sign in"},
		{"listen: redrive.example:1", "no one has to sign in"},
		{"listen: 10.0.0.7:1" + cert, "no one has to sign in"},
		{"listen: 10.0.0.7:1\nauth: {}", "f.yaml:1:9: listen is \"10.0.0.7:1\", which other machines can reach, and passwords and tokens would go there in the clear; set tls.cert and tls.key"},
		{"auth: {}\nlisten: 10.0.0.7:1\ntls: behind-proxy", ""},
		{"auth: {}\nlisten: 10.0.0.7:1" + cert, ""},
		{"tls: behind-proxy", "tls is behind-proxy, so that others can reach the service"},
	} {
		_, err := Parse("f.yaml", []byte(c.yaml))
		if err == nil && c.want != "" || err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q\n gives %v\n want  %s", c.yaml, err, c.want)
		}
	}
}

func TestAccess(t *testing.T) {
	c := parsed(t, `
auth:
  roles: {administrator: admin, shop: {role: operator, queues: ["orders.*", mail]}}
  metrics: open
  proxies: [10.1.2.3/8, 192.0.2.7, "::1"]
tls: {cert: c.pem, key: k.pem, client_ca: ca.pem}
read_only: true
audit: {folder: /var/log/redrive}
`)
	a := c.Access
	if want := map[string]auth.Grant{"administrator": {Role: auth.Admin}, "shop": {Role: auth.Operator, Queues: []string{"orders.*", "mail"}}}; !reflect.DeepEqual(a.Roles, want) {
		t.Errorf("the roles are %+v", a.Roles)
	}
	if !a.SignIn || !a.OpenMetrics || !a.ReadOnly || a.BehindProxy || a.TLS != (auth.TLSFiles{Cert: "c.pem", Key: "k.pem", ClientCA: "ca.pem"}) || c.Audit() != "/var/log/redrive" {
		t.Errorf("%+v", a)
	}
	if len(a.Proxies) != 3 || a.Proxies[0].String() != "10.0.0.0/8" || a.Proxies[1].String() != "192.0.2.7/32" || a.Proxies[2].String() != "::1/128" {
		t.Errorf("the proxies are %v", a.Proxies)
	}
	b := described(t, c)
	if !strings.Contains(b, "(administrator: admin, shop: operator of orders.* mail); read-only, whoever calls\n") {
		t.Errorf("it is described as %s", b)
	}
	if c, err := Parse("f.yaml", []byte("auth: {metrics: viewer}\n")); err != nil || c.Access.OpenMetrics || !c.Access.SignIn {
		t.Errorf("metrics for viewers: %+v, %v", c, err)
	}
	d := Default()
	if d.Access.SignIn || d.Access.ReadOnly || d.Audit() != "redrive-data/audit" || d.Access.Roles["monitoring"].Role != auth.Viewer || d.Access.describe() != "" {
		t.Errorf("by default: %+v", d.Access)
	}
}

func TestErrorsOfAccess(t *testing.T) {
	areRefused(t, []string{"f.yaml:1:"}, []refusal{
		{"auth:", "auth has no value"},
		{"auth: on", `f.yaml:1:7: auth is "on"; expected keys: metrics, proxies, roles`},
		{"auth: {role: {}}", `auth has no key "role" (did you mean "roles"?)`},
		{"auth: {roles: {}}", "expected tags of RabbitMQ's users with a role each"},
		{"auth: {roles: [admin]}", "auth.roles is a list; expected tags"},
		{"auth: {roles: {ops: boss}}", `f.yaml:1:21: auth.roles.ops: "boss" is not a role: expected viewer, operator, editor or admin`},
		{"auth: {roles: {ops: nobody}}", "is not a role"},
		{"auth: {roles: {ops: {queues: [a]}}}", "auth.roles.ops names no role"},
		{"auth: {roles: {ops: {role: viewer, queues: []}}}", "auth.roles.ops.queues is empty"},
		{"auth: {roles: {ops: {role: viewer, queue: a}}}", `auth.roles.ops has no key "queue" (did you mean "queues"?)`},
		{"auth: {metrics: yes}", `auth.metrics is "yes"; expected open, for everybody, or viewer`},
		{"auth: {proxies: [10.0.0.0/40]}", `auth.proxies has "10.0.0.0/40"; expected an address or network`},
		{"tls: off", `f.yaml:1:6: tls is "off"; expected keys`},
		{"tls: {cert: c.pem}", "tls needs both cert and key"},
		{"tls: {}", "tls needs both cert and key"},
		{"read_only: yes please", `read_only is "yes please"; expected true or false`},
		{"audit: {file: x}", `audit has no key "file"; expected one of: folder`},
	})
}

// broker.tls names files that must be there and usable; errors name the place.
func TestBrokerTLS(t *testing.T) {
	dir := t.TempDir()
	ca, err := authority.New(dir)
	must(t, err)
	other, err := authority.New(t.TempDir())
	must(t, err)
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		ca.Issue(authority.Leaf{User: "redrive"}, at("cert.pem"), at("key.pem")),
		ca.Issue(authority.Leaf{User: "redrive", NotAfter: time.Now().Add(-time.Hour)}, at("old.pem"), at("old-key.pem")),
		other.Issue(authority.Leaf{User: "redrive"}, at("other.pem"), at("other-key.pem")),
		os.WriteFile(at("empty.pem"), nil, 0o600),
	} {
		must(t, err)
	}
	file := at("redrive.yaml")
	load := func(url, tls string) (*Config, error) {
		must(t, os.WriteFile(file, []byte("broker:\n  url: "+url+"\n  tls: {"+tls+"}\n"), 0o600))
		return Load(file, func(string) string { return "" })
	}
	const secure = "amqps://redrive@h:5671/"
	c, err := load(secure, "ca: ca.pem, cert: cert.pem, key: "+at("key.pem")+", server_name: rabbit.example")
	must(t, err)
	if got := c.Broker.Credentials.TLS; got.CA != at("ca.pem") || got.Cert != at("cert.pem") || got.Key != at("key.pem") || got.ServerName != "rabbit.example" {
		t.Errorf("%+v", got)
	}
	if got := c.Broker.Management; got != "https://redrive@h:15671" || len(c.Warnings) > 0 {
		t.Errorf("management at %s, warnings %q", got, c.Warnings)
	}
	if c, err = load(secure, "ca: ca.pem, cert: old.pem, key: old-key.pem"); err != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "old.pem is valid from") {
		t.Errorf("an expired certificate: %v, %q", err, c.Warnings)
	}
	if _, err := Load("", func(name string) string {
		return map[string]string{"REDRIVE_MANAGEMENT_URL": "https://u:s3cret@h:15671/?cacertfile=ca.pem"}[name]
	}); err == nil || !strings.Contains(err.Error(), "at h:15671 has parameters") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("parameters of management: %v", err)
	}
	for _, c := range []struct{ url, tls, want string }{
		{secure, "ca: nowhere.pem", "redrive.yaml:3:13: broker.tls.ca: TLS: CA: open " + at("nowhere.pem")},
		{secure, "ca: empty.pem", "redrive.yaml:3:13: broker.tls.ca: TLS: CA " + at("empty.pem") + " has no certificate in PEM"},
		{secure, "cert: cert.pem", "redrive.yaml:3:15: broker.tls: TLS: a client certificate needs both"},
		{secure, "cert: cert.pem, key: other-key.pem", "redrive.yaml:3:30: broker.tls: TLS: certificate " + at("cert.pem") + " and key " + at("other-key.pem") + ": tls: private key does not match"},
		{secure, "verify: none", `redrive.yaml:3:9: broker.tls has no key "verify"`},
		{secure, "", "redrive.yaml:3:8: broker.tls is empty"},
		{"amqp://h/", "ca: ca.pem", "redrive.yaml:3:8: broker.tls is set, and neither broker.url"},
		{secure + "?cacertfile=/ca.pem", "ca: ca.pem", "redrive.yaml:3:8: broker.tls is set, and the URL of RabbitMQ at h:5671 has cacertfile"},
	} {
		if _, err := load(c.url, c.tls); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v, want %s", c.url, c.tls, err, c.want)
		}
	}
}

// A password in a file is read again for each connection: of the file that says it last,
// and of a virtual host of its own.
func TestWherePasswordsAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	at := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	file := at("redrive.yaml", "broker:\n  url: amqp://shop:x@h/\n  vhosts:\n    - {name: crm, user: crm, password_file: crm}\n    - billing\n")
	at("crm", "c1")
	password, whole := at("password", "p1"), at("url", "amqp://svc:u1@h/")
	load := func(env map[string]string) []*Config {
		t.Helper()
		c, err := Load(file, func(name string) string { return env[name] })
		must(t, err)
		all, err := c.PerVHost()
		must(t, err)
		return all
	}
	check := func(env map[string]string, broker, management, crm string) {
		t.Helper()
		for i, want := range []string{broker, crm, broker} {
			b := load(env)[i].Broker
			at("password", "p2")
			at("url", "amqp://other:u2@h/")
			at("crm", "c2")
			was, _ := url.Parse(b.URL)
			if got := b.Credentials.Login.Current(was.User); got.String() != want {
				t.Errorf("%v: virtual host %d connects as %s, want %s", env, i, got, want)
			}
			was, _ = url.Parse(b.Management)
			if got := b.ManagementLogin.Current(was.User); i == 0 && got.String() != management {
				t.Errorf("%v: it asks as %s, want %s", env, got, management)
			}
			at("password", "p1")
			at("url", "amqp://svc:u1@h/")
			at("crm", "c1")
		}
	}
	check(nil, "shop:x", "shop:x", "crm:c2")
	check(map[string]string{"REDRIVE_BROKER_PASSWORD_FILE": password}, "shop:p2", "shop:p2", "crm:c2")
	check(map[string]string{"REDRIVE_BROKER_PASSWORD_FILE": password, "REDRIVE_MANAGEMENT_URL": "http://monitor:m@h:1"}, "shop:p2", "monitor:p2", "crm:c2")
	check(map[string]string{"REDRIVE_BROKER_URL_FILE": whole}, "other:u2", "other:u2", "crm:c2")
	check(map[string]string{"REDRIVE_BROKER_URL_FILE": whole, "REDRIVE_BROKER_PASSWORD": "fixed"}, "svc:fixed", "svc:fixed", "crm:c2")

	env := map[string]string{"REDRIVE_BROKER_PASSWORD_FILE": password}
	before := load(env)[0].Broker
	at("password", "p2")
	if after := load(env)[0].Broker; !after.Same(before) || after.Same(load(nil)[0].Broker) {
		t.Error("a changed password is taken for a changed config, or another config for the same")
	}
	must(t, os.Remove(password))
	if got := before.Credentials.Login.Current(url.UserPassword("shop", "p1")).String(); got != "shop:p1" {
		t.Errorf("with the file gone it is %s", got)
	}
}

// Files are looked for beside the config file, all of them.
func TestFilesAreBesideTheConfig(t *testing.T) {
	c, err := Parse("etc/f.yaml", []byte(`
store: {redis: {url: "rediss://h:1", tls: {ca: ca.pem, cert: c.pem, key: /k.pem}}}
tls: {cert: c.pem, key: k.pem, client_ca: /ca.pem}
`))
	must(t, err)
	if r := c.Store.Redis; r.CA != "etc/ca.pem" || r.Cert != "etc/c.pem" || r.Key != "/k.pem" {
		t.Errorf("Redis: %+v", r)
	}
	if a := c.Access.TLS; a.Cert != "etc/c.pem" || a.Key != "etc/k.pem" || a.ClientCA != "/ca.pem" {
		t.Errorf("tls: %+v", a)
	}
}
