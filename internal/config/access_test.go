package config

import (
	"reflect"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/auth"
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
	c, err := Parse("f.yaml", []byte(`
auth:
  roles: {administrator: admin, shop: {role: operator, queues: ["orders.*", mail]}}
  metrics: open
  proxies: [10.1.2.3/8, 192.0.2.7, "::1"]
tls: {cert: c.pem, key: k.pem, client_ca: ca.pem}
read_only: true
audit: {folder: /var/log/redrive}
`))
	if err != nil {
		t.Fatal(err)
	}
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
	var b strings.Builder
	if err := Describe(&b, c); err != nil || !strings.Contains(b.String(), "(administrator: admin, shop: operator of orders.* mail); read-only, whoever calls\n") {
		t.Errorf("it is described as %s: %v", b.String(), err)
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
	for _, c := range []struct{ yaml, want string }{
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
	} {
		if _, err := Parse("f.yaml", []byte(c.yaml)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q\n gives %v\n want  %s", c.yaml, err, c.want)
		}
	}
}
