package faults_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// soakReport is what one run found, or all that were continued. It is the file of -continue:
// of each row what was done so far, so that the goals, which take a day, are met in as many runs
// as it needs.
type soakReport struct {
	RabbitMQ []string    `json:"rabbitmq"` // the versions
	Runs     []soakRun   `json:"runs"`
	Parts    []*soakPart `json:"rows"`
}

// soakRun is one run of `make soak`.
type soakRun struct {
	Began   time.Time `json:"began"`
	Commit  string    `json:"commit"`
	Command string    `json:"command"`
	On      string    `json:"on"`
	Seconds float64   `json:"seconds"`
}

// newSoak begins a run on these versions of RabbitMQ, with what is in the file; "": nothing.
func newSoak(file string, versions []string) (*soak, error) {
	s := &soak{began: time.Now(), file: file, known: soakReport{RabbitMQ: versions}}
	for _, r := range soakRows {
		s.rows = append(s.rows, r.name)
	}
	return s, s.keep(nil)
}

// soakFromFlags begins the run that the flags ask for.
func soakFromFlags(t *testing.T) *soak {
	file := *soakContinue
	if file != "" && *soakBudget == 0 {
		t.Fatal("-continue needs -budget")
	}
	if file != "" && !filepath.IsAbs(file) { // as seen from where make runs; a test runs in its package's folder
		file = filepath.Join("../..", file)
	}
	var versions []string
	for _, b := range brokertest.All(t) {
		versions = append(versions, b.Version)
	}
	s, err := newSoak(file, versions)
	must(t, err)
	return s
}

var commit = sync.OnceValue(func() string {
	name, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
	return strings.TrimSpace(string(name))
})

// run is this one, so far.
func (s *soak) run() soakRun {
	return soakRun{Began: s.began.UTC(), Commit: commit(), Command: soakCommand(),
		On: fmt.Sprintf("%s, %d cores", runtime.Version(), runtime.NumCPU()), Seconds: time.Since(s.began).Seconds()}
}

// isLeft tells whether a row has something left to do.
func (s *soak) isLeft(row string) bool {
	if s.file == "" {
		return true
	}
	parts, met := 0, 0
	for _, p := range s.known.Parts {
		if p.Fault == row {
			if parts++; p.isMet() {
				met++
			}
		}
	}
	return parts == 0 || met < parts
}

// begin begins a part where the runs before this one left it.
func (r *soakRow) begin(on string, goal int) (p *soakPart, end func(failed bool) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p = &soakPart{Fault: r.name, On: on}
	for _, is := range r.known.Parts {
		if is.Fault == r.name && is.On == on {
			p = is
		}
	}
	if goal > 0 {
		p.Goal = goal
	}
	p.until, p.begun = r.until, p.Done
	began, seconds, runs := time.Now(), p.Seconds, p.Failed
	return p, func(failed bool) error {
		p.Seconds = seconds + time.Since(began).Seconds()
		if failed {
			p.Failed = runs + 1
		}
		return r.keep(p)
	}
}

// keep adds a part that is over to what is known, and to the file. Without a part it only notes
// the run.
func (s *soak) keep(p *soakPart) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change := func(all *soakReport) { all.put(s.run(), p, s.rows) }
	if s.file == "" {
		change(&s.known)
		return nil
	}
	all, err := changeSoakFile(s.file, s.known.RabbitMQ, change)
	if err != nil {
		return fmt.Errorf("-continue: %w", err)
	}
	s.known = all
	return nil
}

// put replaces what it had of a run, and of a part. Its rows are in that order.
func (all *soakReport) put(run soakRun, p *soakPart, rows []string) {
	all.Runs = slices.DeleteFunc(all.Runs, func(r soakRun) bool { return r.Began.Equal(run.Began) })
	all.Runs = append(all.Runs, run)
	if p == nil {
		return
	}
	all.Parts = slices.DeleteFunc(all.Parts, func(is *soakPart) bool { return is.Fault == p.Fault && is.On == p.On })
	all.Parts = append(all.Parts, p)
	slices.SortStableFunc(all.Parts, func(a, b *soakPart) int {
		if a.Fault == b.Fault {
			return strings.Compare(a.On, b.On)
		}
		return slices.Index(rows, a.Fault) - slices.Index(rows, b.Fault)
	})
}

// changeSoakFile reads a file again, changes what it has, and writes it in one step. A run that
// is killed then leaves it as it was, and two runs of different rows may have it at once.
func changeSoakFile(path string, versions []string, change func(*soakReport)) (all soakReport, err error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return all, err
	}
	defer lock.Close() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return all, err
	}
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		all.RabbitMQ = versions
	case err != nil:
		return all, err
	default:
		if err := json.Unmarshal(data, &all); err != nil {
			return all, fmt.Errorf("%s: %w", path, err)
		}
	}
	if !slices.Equal(all.RabbitMQ, versions) {
		return all, fmt.Errorf("%s is of RabbitMQ %s, and this run is on %s: name another file", path, strings.Join(all.RabbitMQ, " and "), strings.Join(versions, " and "))
	}
	change(&all)
	if data, err = json.MarshalIndent(all, "", "  "); err != nil {
		return all, err
	}
	written, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return all, err
	}
	_, err = written.Write(append(data, '\n'))
	err = errors.Join(err, written.Close())
	if err == nil {
		err = os.Rename(written.Name(), path)
	}
	if err != nil {
		_ = os.Remove(written.Name())
	}
	return all, err
}
