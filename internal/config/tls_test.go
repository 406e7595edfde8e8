package config

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/authority"
)

// broker.tls names files that must be there and usable; errors name the place.
func TestBrokerTLS(t *testing.T) {
	dir := t.TempDir()
	ca, err := authority.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	other, err := authority.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		ca.Issue(authority.Leaf{User: "redrive"}, at("cert.pem"), at("key.pem")),
		ca.Issue(authority.Leaf{User: "redrive", NotAfter: time.Now().Add(-time.Hour)}, at("old.pem"), at("old-key.pem")),
		other.Issue(authority.Leaf{User: "redrive"}, at("other.pem"), at("other-key.pem")),
		os.WriteFile(at("empty.pem"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	file := at("redrive.yaml")
	load := func(url, tls string) (*Config, error) {
		if err := os.WriteFile(file, []byte("broker:\n  url: "+url+"\n  tls: {"+tls+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(file, func(string) string { return "" })
	}
	const secure = "amqps://redrive@h:5671/"
	c, err := load(secure, "ca: ca.pem, cert: cert.pem, key: "+at("key.pem")+", server_name: rabbit.example")
	if err != nil {
		t.Fatal(err)
	}
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
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := at("redrive.yaml", "broker:\n  url: amqp://shop:x@h/\n  vhosts:\n    - {name: crm, user: crm, password_file: crm}\n    - billing\n")
	at("crm", "c1")
	password, whole := at("password", "p1"), at("url", "amqp://svc:u1@h/")
	load := func(env map[string]string) []*Config {
		t.Helper()
		c, err := Load(file, func(name string) string { return env[name] })
		if err != nil {
			t.Fatal(err)
		}
		all, err := c.PerVHost()
		if err != nil {
			t.Fatal(err)
		}
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
	if err := os.Remove(password); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if r := c.Store.Redis; r.CA != "etc/ca.pem" || r.Cert != "etc/c.pem" || r.Key != "/k.pem" {
		t.Errorf("Redis: %+v", r)
	}
	if a := c.Access.TLS; a.Cert != "etc/c.pem" || a.Key != "etc/k.pem" || a.ClientCA != "/ca.pem" {
		t.Errorf("tls: %+v", a)
	}
}
