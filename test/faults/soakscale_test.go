package faults_test

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

var soakScale = flag.Float64("scale", 1, "TestSoak: the size of the rows of scale; 0.1: a tenth")

// mostMemory is what a service may have resident at most, in MiB, whatever there is to do.
const mostMemory = 256

// soakBound is what was measured, and the most that it may be.
type soakBound struct {
	What     string  `json:"what"`
	Measured float64 `json:"measured"`
	Bound    float64 `json:"bound,omitempty"` // 0: it is measured, and has no bound
	Unit     string  `json:"unit"`
}

// size is a share of n, as -scale says; within `make test` a hundredth.
func (r *soakRow) size(n int) int {
	if *soakBudget == 0 {
		return n / 100
	}
	return max(1, int(float64(n)**soakScale))
}

// onceOnEach runs an episode on one broker after the other: beside another it would be slower.
// Within `make test` the latest version will do.
func (r *soakRow) onceOnEach(t *testing.T, what string, episode func(t *testing.T, v *brokertest.VHost, p *soakPart)) {
	brokers := brokertest.All(t)
	if *soakBudget == 0 {
		brokers = brokers[len(brokers)-1:]
	}
	for _, b := range brokers {
		t.Run("RabbitMQ "+b.Version, func(t *testing.T) {
			r.once(t, brokertest.NewVHost(t, b), what, episode)
		})
	}
}

// once runs an episode that is done when it ends.
func (r *soakRow) once(t *testing.T, v *brokertest.VHost, what string, episode func(t *testing.T, v *brokertest.VHost, p *soakPart)) {
	p, began := r.part(t, fmt.Sprintf("RabbitMQ %s, %s", v.Version, what), 1), time.Now()
	defer func() {
		if p.Seconds = time.Since(began).Seconds(); t.Failed() {
			p.Failed = 1
		}
		if p.crowd != nil {
			p.add(p.crowd.result())
		}
		t.Log("\n" + soakReport{Parts: []*soakPart{p}}.markdown()) // at once: the rows after it may take long
	}()
	episode(t, v, p)
	p.Done++
}

// oneAtATime is for nodes of two versions, which are tried at once.
var oneAtATime sync.Mutex

// ofCrowd is a crowd that counts for the part.
func (p *soakPart) ofCrowd(c *crowd) *crowd {
	p.crowd = c
	return c
}

// measured notes what has no bound.
func (p *soakPart) measured(what string, is float64, unit string) { p.atMost(nil, what, is, 0, unit) }

// atMost notes what was measured, and fails the test when that is more than the bound. Times are
// not held to theirs within `make test`, where others use the machine too.
func (p *soakPart) atMost(t *testing.T, what string, is, bound float64, unit string) {
	p.Bounds = append(p.Bounds, soakBound{what, is, bound, unit})
	if t == nil || is >= 0 && is <= bound || *soakBudget == 0 && unit == "s" {
		return
	}
	t.Errorf("%s, %s, %s: %.2f %s, and its bound is %.0f", p.Fault, p.On, what, is, unit, bound)
}

// memory is how much of a service was resident at most since it was started, in MiB.
func (p *process) memory() float64 {
	p.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(p.t, err)
	_, line, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.ParseFloat(strings.Fields(line)[0], 64)
	must(p.t, err)
	return kib / 1024
}

// ready waits until it is ready, and returns how many seconds that took. Queues with troubles of
// their own are no reason to wait.
func (p *process) ready() float64 {
	p.t.Helper()
	began := time.Now()
	brokertest.Eventually(p.t, "the service is ready", p.answersReady)
	return time.Since(began).Seconds()
}

func (p *process) answersReady() bool {
	resp, err := http.Get("http://" + p.listen + "/readyz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// bounds is a table of what was measured.
func (r soakReport) bounds() string {
	var b strings.Builder
	for _, p := range r.Parts {
		for _, m := range p.Bounds {
			bound := ""
			if m.Bound > 0 {
				bound = amount(m.Bound, m.Unit)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", p.Fault, p.On, m.What, amount(m.Measured, m.Unit), bound)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n| fault | on | what | measured | at most |\n|---|---|---|---|---|\n" + b.String()
}

// amount is a number with its unit: small ones with two digits.
func amount(n float64, unit string) string {
	if n < 10 && n != float64(int(n)) {
		return fmt.Sprintf("%.2f %s", n, unit)
	}
	return thousands(int(n+0.5)) + " " + unit
}

// balances fails the test when the service's own account of its messages does not balance.
func (p *process) balances() {
	p.t.Helper()
	p.cli("ledger", "--recount")
}
