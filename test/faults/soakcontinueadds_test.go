package faults_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

var bothVersions = []string{"3.10.8", "4.3.6"}

// continued is a run that does so many faults of a part, with ten messages each.
func continued(t *testing.T, file, row, on string, goal, faults int, failed bool) *soakPart {
	t.Helper()
	s, err := newSoak(file, bothVersions)
	must(t, err)
	p, end := (&soakRow{soak: s, name: row, until: time.Now().Add(time.Hour)}).begin(on, goal)
	for range faults {
		if p.over() {
			break
		}
		p.begun++
		p.count(1, 10, 1)
		p.add(sums{Early: 1, Changed: 2, Doubled: 3, Unexplained: 4})
	}
	if p.CutAt == nil {
		p.CutAt = &placeSet{}
	}
	p.CutAt.add(place{true, int64(p.Done)})
	must(t, end(failed))
	return p
}

// What runs did adds up in their file, to the goal and no further.
func TestContinuedRunsAddUp(t *testing.T) {
	const row, other, on = "power cut", "kill -9 of Redis", "RabbitMQ 3.10.8"
	file := filepath.Join(t.TempDir(), "soak.json")
	continued(t, file, row, on, 25, 10, false)
	continued(t, file, row, on, 25, 5, true)
	continued(t, file, other, on, 3, 2, false)
	s, err := newSoak(file, bothVersions)
	must(t, err)
	if !s.isLeft(row) || !s.isLeft(other) || !s.isLeft("kill -9 of RabbitMQ") {
		t.Error("each row has something left to do")
	}
	p := continued(t, file, row, on, 25, 100, false)
	want := sums{Messages: 250, Lost: 25, Early: 25, Changed: 50, Doubled: 75, Unexplained: 100}
	if p.Done != 25 || p.sums != want || p.Became[killsThatLost] != 25 || p.Failed != 1 || !p.isMet() {
		t.Errorf("after three runs: %d done, %d lost some, %d runs failed, %+v", p.Done, p.Became[killsThatLost], p.Failed, p.sums)
	}
	for _, at := range []int64{10, 15, 25} {
		if !p.CutAt.has(place{true, at}) {
			t.Errorf("the place that a run took at %d is not known", at)
		}
	}
	s, err = newSoak(file, bothVersions)
	must(t, err)
	if s.isLeft(row) || !s.isLeft(other) {
		t.Error("a row that has met its goal is run again, or one that has not is not")
	}
	text := s.known.markdown()
	for _, want := range []string{"6 runs, from ", "RabbitMQ 3.10.8 and 4.3.6", "| power cut | RabbitMQ 3.10.8 | 25 of 25, failed in 1 of its runs | 250 |", "| kill -9 of Redis | RabbitMQ 3.10.8 | 2 of 3 | 20 |"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table has no %q:\n%s", want, text)
		}
	}
	if strings.Index(text, row) > strings.Index(text, other) {
		t.Errorf("the rows are in another order than in soakRows:\n%s", text)
	}
}

// A file is of the versions that it was begun with, and what cannot be read is not overwritten.
func TestAFileOfOtherVersionsIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "soak.json")
	continued(t, file, "power cut", "RabbitMQ 3.10.8", 25, 1, false)
	before, err := os.ReadFile(file)
	must(t, err)
	_, err = newSoak(file, []string{"3.10.8", "4.3.7"})
	if err == nil || !strings.Contains(err.Error(), "is of RabbitMQ 3.10.8 and 4.3.6, and this run is on 3.10.8 and 4.3.7") {
		t.Errorf("a file of another version: %v", err)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("it was changed: %v", err)
	}
	must(t, os.WriteFile(file, before[:len(before)/2], 0o600))
	if _, err := newSoak(file, bothVersions); err == nil {
		t.Error("half a file is taken for a whole one")
	}
	if after, err := os.ReadFile(file); err != nil || len(after) != len(before)/2 {
		t.Errorf("half a file was changed: %v", err)
	}
}

// Runs of different rows may have a file at once.
func TestRunsAtOnceKeepWhatEachDid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "soak.json")
	rows := []string{"power cut", "kill -9 of the service", "kill -9 of Redis", "kill -9 of one of two replicas"}
	const each = 10
	var all sync.WaitGroup
	for _, row := range rows {
		all.Go(func() {
			for range each {
				continued(t, file, row, "RabbitMQ 3.10.8", 1000, 3, false)
			}
		})
	}
	all.Wait()
	s, err := newSoak(file, bothVersions)
	must(t, err)
	for _, p := range s.known.Parts {
		if p.Done != 3*each {
			t.Errorf("%s: %d done of %d", p.Fault, p.Done, 3*each)
		}
	}
	if len(s.known.Parts) != len(rows) {
		t.Errorf("%d rows are known of %d", len(s.known.Parts), len(rows))
	}
}
