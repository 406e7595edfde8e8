package image_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/rabbitnode"
)

// compose is a copy of deploy/compose with the secrets made.
type compose struct {
	t   *testing.T
	dir string
}

func prepareCompose(t *testing.T) compose {
	t.Helper()
	c := compose{t, t.TempDir()}
	if err := os.CopyFS(c.dir, os.DirFS(root+"/deploy/compose")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(c.dir, "secrets")); err != nil { // a person's own
		t.Fatal(err)
	}
	c.prepare()
	return c
}

func (c compose) prepare() {
	c.t.Helper()
	if out, err := exec.Command(filepath.Join(c.dir, "prepare")).CombinedOutput(); err != nil {
		c.t.Fatalf("prepare: %v\n%s", err, out)
	}
}

func (c compose) read(name string) string {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// users makes the file's users in a RabbitMQ.
func (c compose) users(v *brokertest.VHost) {
	v.Must("POST", "definitions", json.RawMessage(c.read("secrets/rabbitmq-definitions.json")))
}

// The users that deploy/compose/prepare makes get in, with the passwords that it wrote,
// and no one else does.
func TestTheUsersOfTheComposeFile(t *testing.T) {
	files := prepareCompose(t)
	definitions := files.read("secrets/rabbitmq-definitions.json")
	files.prepare()
	if files.read("secrets/rabbitmq-definitions.json") != definitions {
		t.Error("made again, the secrets are others, which a RabbitMQ with data does not read")
	}
	brokertest.EachPrivate(t, "", func(t *testing.T, v *brokertest.VHost, _ *rabbitnode.Node) {
		files.users(v)
		dial := func(user, password string) error {
			u, err := url.Parse(v.URL())
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.UserPassword(user, password)
			c, err := amqp.Dial(u.String())
			if err == nil {
				defer c.Close()
				var ch *amqp.Channel
				if ch, err = c.Channel(); err == nil {
					err = ch.ExchangeDeclare("redrive.test", "direct", false, true, false, false, nil)
				}
			}
			return err
		}
		if err := dial("redrive", files.read("secrets/broker-password")); err != nil {
			t.Errorf("redrive does not get in: %v", err)
		}
		if err := dial("redrive", files.read("secrets/admin-password")); err == nil {
			t.Error("redrive gets in with another's password")
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.Management+"/api/whoami", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("admin", files.read("secrets/admin-password"))
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var who struct{ Tags []string }
		if err := json.NewDecoder(resp.Body).Decode(&who); err != nil || resp.StatusCode != http.StatusOK || strings.Join(who.Tags, " ") != "administrator" {
			t.Errorf("admin is %+v: %s, %v", who, resp.Status, err)
		}
	})
}
