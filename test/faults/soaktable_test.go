package faults_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "TestTheTableInDocsIsOfItsFile: write the table into the page")

// The page has the table of the file beside it, in which runs with -continue add up.
func TestTheTableInDocsIsOfItsFile(t *testing.T) {
	const page, file, begin, end = "../../docs/explanation/proof.md", "../../docs/explanation/proof.json", "-update writes this table -->\n", "<!-- end"
	data, err := os.ReadFile(file)
	must(t, err)
	var r soakReport
	must(t, json.Unmarshal(data, &r))
	text, err := os.ReadFile(page)
	must(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	_, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		t.Fatalf("%s has no place for its table", page)
	}
	want := before + begin + "\n" + r.markdown() + "\n" + end + after
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatalf("the table of %s is not of %s; go test ./test/faults -run TheTableInDocs -update writes it", page, file)
	}
	must(t, os.WriteFile(page, []byte(want), 0o644))
}

// print prints the report of a run, and logs that of `make test`.
func (s *soak) print(t *testing.T) {
	must(t, s.keep(nil)) // how long it took
	r := s.known
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
	b.WriteString(r.heading())
	b.WriteString("| fault | on | done, of the goal | messages | lost | early | changed | doubled | doubled without a fault that explains it | took |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, p := range r.Parts {
		done := fmt.Sprintf("%s of %s", thousands(p.Done), thousands(p.Goal))
		if p.Done == 0 {
			done = "not measured"
		}
		if p.Failed > 0 {
			done += fmt.Sprintf(", failed in %d of its runs", p.Failed)
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

// heading says which runs it is of.
func (r soakReport) heading() string {
	if len(r.Runs) == 0 {
		return ""
	}
	var took float64
	var commits, on, commands []string
	once := func(all *[]string, s string) {
		if !slices.Contains(*all, s) {
			*all = append(*all, s)
		}
	}
	for _, run := range r.Runs {
		took += run.Seconds
		once(&commits, run.Commit)
		once(&on, run.On)
		once(&commands, "    "+run.Command+"\n")
	}
	const date = "2006-01-02 15:04 UTC"
	when := r.Runs[0].Began.Format(date)
	if n := len(r.Runs); n > 1 {
		when = fmt.Sprintf("%d runs, from %s to %s", n, when, r.Runs[n-1].Began.Format(date))
	}
	return fmt.Sprintf("%s, commit %s, RabbitMQ %s, %s, %s:\n\n%s\n", when, strings.Join(commits, ", "), strings.Join(r.RabbitMQ, " and "), strings.Join(on, ", "), seconds(took), strings.Join(commands, ""))
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
