package auth

import (
	"encoding/json"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

func usersAt(api, vhost string, grants map[string]Grant) (*Users, error) {
	client, err := management.New(api, vhost)
	return NewUsers(client, vhost, grants), err
}

// user makes one with tags and rights in the virtual host, and returns its name.
func user(v *brokertest.VHost, tags string, granted bool) string {
	name := "user-" + uuid.NewString()
	v.User(name, "s3cret")
	v.Must("PUT", "users/"+name, map[string]any{"password": "s3cret", "tags": tags})
	if granted {
		v.Grant(name, "^$", "^$", ".*")
	}
	return name
}

func users(t *testing.T, v *brokertest.VHost, grants map[string]Grant) *Users {
	t.Helper()
	u, err := usersAt(v.Management, v.Name, grants)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestRabbitMQsUsersSignIn(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		grants := DefaultGrants()
		grants["shop"] = Grant{Operator, []string{"orders.*"}}
		grants["post"] = Grant{Operator, []string{"mail"}}
		grants["all"] = Grant{Operator, nil}
		u := users(t, v, grants)
		for _, c := range []struct {
			tags    string
			granted bool
			role    Role
			queues  []string
			err     error
		}{
			{"administrator", true, Admin, nil, nil},
			{"administrator", false, Admin, nil, nil}, // who can give themselves rights anyway
			{"monitoring", true, Viewer, nil, nil},
			{"policymaker", true, Viewer, nil, nil},
			{"management", true, Viewer, nil, nil},
			{"monitoring", false, NoRole, nil, ErrForbidden}, // another tenant's
			{"management", false, NoRole, nil, ErrForbidden},
			{"management,shop", true, Operator, []string{"orders.*"}, nil},
			{"management,shop,post", true, Operator, []string{"mail", "orders.*"}, nil},
			{"management,shop,all,post", true, Operator, nil, nil},
			{"administrator,shop", true, Admin, nil, nil},
			{"shop", true, NoRole, nil, ErrSignIn}, // RabbitMQ's management does not let it in
			{"", true, NoRole, nil, ErrSignIn},
		} {
			name := user(v, c.tags, c.granted)
			got, err := u.SignIn(t.Context(), name, "s3cret", "192.0.2.1")
			slices.Sort(got.Queues)
			if !errors.Is(err, c.err) || got.Role != c.role || !slices.Equal(got.Queues, c.queues) || err == nil && (got.Name != name || got.How != "rabbitmq") {
				t.Errorf("tags %q, granted %v: %+v, %v", c.tags, c.granted, got, err)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error shows the password: %v", err)
			}
		}
		if _, err := users(t, v, map[string]Grant{"shop": {Viewer, nil}}).SignIn(t.Context(), user(v, "administrator", true), "s3cret", "192.0.2.1"); !errors.Is(err, ErrForbidden) {
			t.Errorf("no tag has a role: %v", err)
		}
	})
}

func TestWhoIsWrongDoesNotSignIn(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		u, name := users(t, v, DefaultGrants()), user(v, "monitoring", true)
		signIn := func(name, password, from string) error {
			_, err := u.SignIn(t.Context(), name, password, from)
			return err
		}
		for _, c := range [][2]string{{name, "S3cret"}, {name, "s3cret "}, {name, ""}, {"", "s3cret"}, {"nobody-" + name, "s3cret"}, {"guest", "guest"}, {name + "\x00", "s3cret"}, {"../" + name, "x"}} {
			if err := signIn(c[0], c[1], c[0]+c[1]); !errors.Is(err, ErrSignIn) {
				t.Errorf("%q with %q: %v", c[0], c[1], err)
			}
		}
		if err := signIn(name, "s3cret", "192.0.2.1"); err != nil {
			t.Fatal(err)
		}
		other := user(v, "monitoring", true)
		var many *TooMany
		var err error
		for range 11 {
			err = signIn(other, "wrong", "192.0.2.9")
		}
		if !errors.As(err, &many) || many.Wait <= 0 || many.Wait > 30*time.Second {
			t.Errorf("after ten failures from an address: %v", err)
		}
		if err := signIn(other, "s3cret", "192.0.2.9"); !errors.As(err, &many) {
			t.Errorf("with the right password then, which a guess might be: %v", err)
		}
		if err := signIn(name, "s3cret", "192.0.2.9"); err != nil {
			t.Errorf("who was right before is stopped by another at the address: %v", err)
		}
		for i := range 31 {
			err = signIn(name, "wrong", "198.51.100."+string(rune('a'+i)))
		}
		if !errors.As(err, &many) {
			t.Errorf("after thirty failures of a name from as many addresses: %v", err)
		}
		if err := signIn(name, "s3cret", "192.0.2.1"); err != nil {
			t.Errorf("who was right before is stopped by guesses of others: %v", err)
		}
		if err := signIn(other, "s3cret", "192.0.2.1"); err != nil {
			t.Errorf("another name at another address: %v", err)
		}
	})
}

func TestNobodySignsInWhileRabbitMQDoesNotAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	u, err := usersAt("http://"+l.Addr().String(), "/", DefaultGrants())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // which counts as no one's failure
		if _, err := u.SignIn(t.Context(), "ann", "s3cret", "192.0.2.1"); !errors.Is(err, ErrUnchecked) || errors.Is(err, ErrSignIn) || strings.Contains(err.Error(), "s3cret") {
			t.Fatal(err)
		}
	}
}

// Versions differ.
func TestTags(t *testing.T) {
	for text, want := range map[string][]string{`["a","b"]`: {"a", "b"}, `"a,b"`: {"a", "b"}, `"a, b"`: {"a", "b"}, `""`: nil, `[]`: nil} {
		var got tags
		if err := json.Unmarshal([]byte(text), &got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	var got tags
	if err := json.Unmarshal([]byte(`{"a":1}`), &got); err == nil {
		t.Errorf("no tags: %q", got)
	}
}

// Of several tags the highest role counts, in whatever order, with its own queues.
func TestTheHighestRoleOfSeveralTagsCounts(t *testing.T) {
	u := NewUsers(nil, "/", map[string]Grant{"see": {Role: Viewer}, "shop": {Operator, []string{"orders.*"}}, "post": {Operator, []string{"mail"}}, "all": {Role: Operator}})
	for text, want := range map[string]Grant{
		"": {}, "none": {}, "see": {Role: Viewer}, "see shop": {Operator, []string{"orders.*"}}, "shop see": {Operator, []string{"orders.*"}},
		"shop post": {Operator, []string{"orders.*", "mail"}}, "shop all": {Role: Operator}, "all shop": {Role: Operator},
	} {
		if got := u.grant(strings.Fields(text)); got.Role != want.Role || !slices.Equal(got.Queues, want.Queues) || (got.Queues == nil) != (want.Queues == nil) {
			t.Errorf("tags %q: %+v, want %+v", text, got, want)
		}
	}
}
