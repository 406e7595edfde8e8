package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/wire"
)

// example runs a recipe on real brokers, as a reader would: it must fail twice, with these waits at least, and
// then succeed.
type example struct {
	name    string
	waits   [2]time.Duration
	noError bool                           // the message does not bring the last error along
	refused func(*brokertest.VHost) string // what it must say where it cannot run; "" where it can
	before  func(*testing.T, *brokertest.VHost, string)
}

var examples = []example{
	{name: "fixed", waits: [2]time.Duration{time.Second, time.Second}},
	{name: "levels", waits: [2]time.Duration{time.Second, 2 * time.Second}},
	{name: "dynamic", waits: [2]time.Duration{800 * time.Millisecond, 1200 * time.Millisecond}},
	{name: "messagettl", waits: [2]time.Duration{time.Second, time.Second}},
	{name: "service", waits: [2]time.Duration{time.Second, time.Second}, before: serve},
	{name: "delayedexchange", waits: [2]time.Duration{800 * time.Millisecond, 1600 * time.Millisecond},
		refused: noPlugin},
	{name: "binary", waits: [2]time.Duration{800 * time.Millisecond, 1600 * time.Millisecond}},
	{name: "native", waits: [2]time.Duration{time.Second, 2 * time.Second}, noError: true, refused: older},
}

func TestExamples(t *testing.T) {
	program := filepath.Join(t.TempDir(), "examples")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, e := range examples {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) { e.run(t, v, program) })
		})
	}
}

// Each recipe is a row of the table.
func TestAllExamplesAreRun(t *testing.T) {
	for name := range recipes {
		if !slices.ContainsFunc(examples, func(e example) bool { return e.name == name }) {
			t.Errorf("%s is not run", name)
		}
	}
	if err := run(t.Context(), []string{"none"}); err == nil || !strings.Contains(err.Error(), `"binary"`) {
		t.Errorf("a recipe that there is not: %v", err)
	}
}

func (e example) run(t *testing.T, v *brokertest.VHost, program string) {
	if e.before != nil {
		e.before(t, v, brokertest.Redrive(t))
	}
	// A program that goes on for ever fails the test, and does not hang it.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, program, e.name)
	c.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+v.URL())
	out, in := io.Pipe()
	c.Stdout, c.Stderr = in, in
	expect.NoError(t, c.Start())
	ended := make(chan error, 1)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	waiting.Go(func() { ended <- c.Wait(); in.Close() })
	var said []string
	var at []time.Time
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
		if when, _, ok := strings.Cut(lines.Text(), " order 1: attempt "); ok {
			clock, err := time.Parse("15:04:05.000000", when)
			if err != nil {
				t.Error(err)
			}
			at = append(at, clock)
		}
		if strings.Contains(lines.Text(), "succeeds") {
			_ = c.Process.Signal(os.Interrupt)
		}
	}
	err, all := <-ended, strings.Join(said, "\n")
	if e.refused != nil {
		if why := e.refused(v); why != "" {
			t.Logf("not run: RabbitMQ %s cannot; that it says so is tested instead", v.Version)
			if err == nil || !strings.Contains(all, why) {
				t.Errorf("it ended with %v, without saying %q:\n%s", err, why, all)
			}
			return
		}
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, all)
	}
	last := regexp.QuoteMeta(`"the payment service does not answer"`)
	if e.noError {
		last = `""`
	}
	want := regexp.MustCompile(`(?s)attempt 1 fails \(the one before: ""\).*attempt 2 fails \(the one before: ` + last +
		`\).*attempt 3 succeeds`)
	if !want.MatchString(all) || len(at) != 3 {
		t.Fatalf("it said:\n%s", all)
	}
	for i, wait := range e.waits {
		if took := (at[i+1].Sub(at[i]) +
			24*time.Hour) % (24 * time.Hour); took < wait-time.Millisecond { // it may have become midnight
			t.Errorf("attempt %d came after %s, and was due after %s", i+2, took, wait)
		}
	}
	for _, queue := range []string{"orders", wire.QueueParked} {
		brokertest.Eventually(t, queue+" is empty", func() bool { return v.Messages(queue) == 0 })
	}
}

// serve runs the service with a policy for the queue.
func serve(t *testing.T, v *brokertest.VHost, program string) {
	address, dir := brokertest.Address(t), t.TempDir()
	file := filepath.Join(dir, "redrive.yaml")
	yaml := fmt.Sprintf("store: {disk: %s}\nlisten: %s\npolicies:\n- {name: orders, queues: [orders], attempts: 4, backoff: {fixed: 1s}, jitter: none}\n", filepath.Join(dir, "data"), address)
	expect.NoError(t, os.WriteFile(file, []byte(yaml), 0o600))
	c := exec.Command(program, "serve", "--config", file)
	c.Env = append(os.Environ(), "REDRIVE_BROKER_URL="+v.URL())
	expect.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	})
	brokertest.Eventually(t, "the service is ready", func() bool {
		resp, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// noPlugin is the error of a broker without the delayed-message plugin.
func noPlugin(v *brokertest.VHost) string {
	var overview struct {
		Types []struct{ Name string } `json:"exchange_types"`
	}
	if err := v.API().Call(context.Background(), http.MethodGet, "overview", nil, &overview); err != nil {
		return err.Error()
	}
	for _, t := range overview.Types {
		if t.Name == "x-delayed-message" {
			return ""
		}
	}
	return "its plugin is missing or not enabled"
}

// older is the error of a broker before delayed retry.
func older(v *brokertest.VHost) string {
	var major, minor int
	if _, err := fmt.Sscanf(v.Version, "%d.%d", &major, &minor); err != nil || major > 4 || major == 4 && minor >= 3 {
		return ""
	}
	return "native needs RabbitMQ 4.3"
}
