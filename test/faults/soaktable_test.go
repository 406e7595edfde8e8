package faults_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// soakReport is what a run found.
type soakReport struct {
	Date    string      `json:"date"`
	Command string      `json:"command"`
	Commit  string      `json:"commit"`
	On      string      `json:"on"`
	Seconds float64     `json:"seconds"`
	Parts   []*soakPart `json:"rows"`
}

func (s *soak) report() soakReport {
	var versions []string
	if brokers, err := brokertest.FromEnv(); err == nil {
		for _, b := range brokers {
			versions = append(versions, "RabbitMQ "+b.Version)
		}
	}
	commit, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
	versions = append(versions, runtime.Version(), fmt.Sprintf("%d cores", runtime.NumCPU()))
	return soakReport{Date: s.began.UTC().Format("2006-01-02 15:04 UTC"), Command: soakCommand(), Commit: strings.TrimSpace(string(commit)),
		On: strings.Join(versions, ", "), Seconds: time.Since(s.began).Seconds(), Parts: s.parts}
}

// print prints the report of a run, and logs that of `make test`.
func (s *soak) print(t *testing.T) {
	r := s.report()
	text := r.markdown()
	if *soakJSON {
		data, err := json.MarshalIndent(r, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		text = string(data)
	}
	if *soakBudget == 0 {
		t.Log("\n" + text)
		return
	}
	fmt.Println(text)
}

func (r soakReport) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, commit %s, %s, %s:\n\n    %s\n\n", r.Date, r.Commit, r.On, seconds(r.Seconds), r.Command)
	b.WriteString("| fault | on | done, of the goal | messages | lost | early | changed | doubled | doubled without a fault that explains it | took |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, p := range r.Parts {
		done := fmt.Sprintf("%s of %s", thousands(p.Done), thousands(p.Goal))
		if p.Done == 0 {
			done = "not measured"
		}
		if p.Failed {
			done += ", then it failed"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", p.Fault, p.On, done,
			thousands(p.Messages), thousands(p.Lost), thousands(p.Early), thousands(p.Changed), thousands(p.Doubled), thousands(p.Unexplained), seconds(p.Seconds))
	}
	b.WriteString(r.bounds())
	for _, p := range r.Parts {
		if p.Note != "" {
			fmt.Fprintf(&b, "\n- %s, %s: %s\n", p.Fault, p.On, p.Note)
		}
	}
	return b.String()
}

// seconds is so long, as people read it.
func seconds(s float64) string {
	if s < 120 {
		return fmt.Sprintf("%.0f s", s)
	}
	return fmt.Sprintf("%.0f min", s/60)
}

// thousands is a number with its commas.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
