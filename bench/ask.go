package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/redrive-mq/redrive/internal/httpapi"
)

// asksASecond is how often something is asked: what several people do at once.
const asksASecond = 20

// mostMillis is what an answer of a kind may take.
var mostMillis = map[string]float64{"list": 50, "message": 20}

// question is one that a person asks the service.
type question struct {
	what, kind string
	path       func(turn int) string
	took       []time.Duration
}

// answers is how long some answers took.
type answers struct {
	What  string  `json:"what"`
	Times int     `json:"times"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// asker asks them in turn.
type asker struct {
	s         *service
	questions []*question
	turn      int
	failure   error
}

func newAsker(ctx context.Context, s *service, queues []string) (*asker, error) {
	// Of each queue the newest, and one that is far from it.
	client := httpapi.Client{Addr: s.listen}
	var ids, groups []string
	for _, queue := range queues {
		for _, when := range []string{"", " parked:<" + time.Now().Add(-12*time.Hour).UTC().Format("2006-01-02T15:04Z")} {
			page, err := client.Messages(ctx, "state:parked queue:"+queue+when, "", 1)
			if err != nil || len(page.Messages) == 0 {
				return nil, fmt.Errorf("nothing parked is found in the queue %s: %w", queue, err)
			}
			ids, groups = append(ids, page.Messages[0].ID), append(groups, page.Messages[0].Group)
		}
	}
	a := &asker{s: s}
	add := func(what, kind string, path func(turn int) string) {
		a.questions = append(a.questions, &question{what: what, kind: kind, path: path})
	}
	for _, q := range []struct {
		what  string
		query func(turn int) string
	}{
		{"the newest", func(int) string { return "state:parked" }},
		{"of a queue", func(i int) string { return "state:parked queue:" + queues[i%len(queues)] }},
		{"of a group", func(i int) string { return "state:parked group:" + groups[i%len(groups)] }},
		{"of some queues, by reason and time", func(i int) string {
			return fmt.Sprintf("state:parked queue:shop.0* reason:rejected parked:<%s", time.Now().Add(-time.Duration(1+i%20)*time.Hour).UTC().Format("2006-01-02T15:04Z"))
		}},
		{"by id", func(i int) string { return "id:" + ids[i%len(ids)] }},
	} {
		add("API: list "+q.what, "list", func(i int) string { return "/api/v1/messages?q=" + url.QueryEscape(q.query(i)) })
		add("page: list "+q.what, "list", func(i int) string { return "/messages?q=" + url.QueryEscape(q.query(i)) })
	}
	add("API: groups", "list", func(int) string { return "/api/v1/groups?q=state:parked" })
	add("page: groups", "list", func(int) string { return "/groups?q=state:parked" })
	add("page: overview", "list", func(int) string { return "/" })
	// What an answer takes that says nothing is what machine and load take of each.
	add("healthz", "nothing", func(int) string { return "/healthz" })
	add("API: message", "message", func(i int) string { return "/api/v1/messages/" + ids[i%len(ids)] })
	add("page: message", "message", func(i int) string { return "/messages/" + ids[i%len(ids)] })
	add("healthz, again", "nothing", func(int) string { return "/healthz" })
	return a, nil
}

// run asks until ctx ends.
func (a *asker) run(ctx context.Context) {
	tick := time.NewTicker(time.Second / asksASecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		q := a.questions[a.turn%len(a.questions)]
		began := time.Now()
		if err := a.ask(ctx, q.path(a.turn/len(a.questions))); err != nil {
			if ctx.Err() == nil {
				a.failure = fmt.Errorf("%s: %w", q.what, err)
			}
			return
		}
		q.took = append(q.took, time.Since(began))
		a.turn++
	}
}

func (a *asker) ask(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.s.listen+path, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", path, resp.Status)
	}
	return nil
}

// answers are those to each question, and those of each kind together.
func (a *asker) answers() (each, kinds []answers) {
	took := map[string][]time.Duration{}
	for _, q := range a.questions {
		each = append(each, newAnswers(q.what, q.took))
		took[q.kind] = append(took[q.kind], q.took...)
	}
	for _, kind := range slices.Sorted(maps.Keys(took)) {
		kinds = append(kinds, newAnswers(kind, took[kind]))
	}
	return each, kinds
}

func newAnswers(what string, took []time.Duration) answers {
	slices.Sort(took)
	r := returns{waits: took}
	return answers{what, len(took), ms(r.p(50)), ms(r.p(99)), ms(r.p(100))}
}
