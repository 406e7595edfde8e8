package doctor

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

const everyQueue = `policies: [{name: p, queues: ["*"], attempts: 8, backoff: {fixed: 1m}}]`

func configFor(t *testing.T, v *brokertest.VHost, yaml string) *config.Config {
	t.Helper()
	c, err := config.Parse("test.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	c.Broker.URL, c.Broker.Management, c.Store.Disk = v.URL(), v.Management, t.TempDir()
	return c
}

func gather(t *testing.T, c *config.Config) *Scene {
	t.Helper()
	// The tests' RabbitMQ tells more often how it is.
	s, err := Gather(context.Background(), Options{Config: c, Standing: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func check(name string) Check {
	for _, c := range Checks {
		if c.Name == name {
			return c
		}
	}
	panic("no check " + name)
}

// ills are what a check finds that is not ok, a line each.
func ills(s *Scene, name string) string {
	var lines []string
	c := check(name)
	for _, f := range c.make(s) {
		if f.Status != OK {
			lines = append(lines, strings.TrimSpace(string(f.Status)+" "+f.Queue)+": "+f.What+" $ "+strings.Join(f.Commands, " $ "))
		}
	}
	return strings.Join(lines, "\n")
}

// finds waits until a check says all of the wants, and nothing when there are none:
// what the management API knows of a queue is some seconds old.
func finds(t *testing.T, c *config.Config, name string, wants ...string) {
	t.Helper()
	var said string
	brokertest.Eventually(&saying{t, func() string { return name + " says: " + said }}, "the check "+name+" says "+strings.Join(wants, " and "), func() bool {
		said = ills(gather(t, c), name)
		is := len(wants) > 0 || said == ""
		for _, want := range wants {
			is = is && strings.Contains(said, want)
		}
		if !is {
			<-time.After(200 * time.Millisecond) // each look is a dozen requests
		}
		return is
	})
}

// saying adds what was said last to a failure.
type saying struct {
	testing.TB
	last func() string
}

func (s *saying) Fatalf(format string, args ...any) {
	s.TB.Helper()
	s.TB.Fatalf(format+"\n%s", append(args, s.last())...)
}

func mendAll(t *testing.T, c *config.Config) {
	t.Helper()
	r := Examine(gather(t, c))
	if err := r.Plan().Apply(context.Background(), c); err != nil {
		t.Fatal(err)
	}
}

// deleted does what a command with curl says.
func deleted(t *testing.T, v *brokertest.VHost, said string) {
	t.Helper()
	_, path, ok := strings.Cut(said, "/api/")
	if !ok {
		t.Fatalf("no command in %q", said)
	}
	path, _, _ = strings.Cut(path, " ")
	path = strings.TrimSuffix(path, "'")
	v.Must(http.MethodDelete, path, nil)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
