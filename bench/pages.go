package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

const (
	pageQueues = 13
	pageGroups = 2000
	shown      = "auth: {bodies: {admin: shown}}\n"
	// masked hides what each body of parkEach has, also from the bench, which is an administrator.
	masked = "auth: {bodies: {admin: masked}}\n" +
		"mask: [{paths: [body.customer.email, header.authorization], patterns: [card_number, email]}]\n"
)

// pageTimes measures the page where many messages are parked, without masks and with them in turn.
func pageTimes(ctx context.Context, b brokertest.Broker, kind string) error {
	v, err := newVHost(ctx, b, kind)
	if err != nil {
		return err
	}
	defer v.close()
	delays := map[string]time.Duration{}
	for i := range pageQueues {
		delays[pageQueue(i)] = 10 * time.Second
	}
	if err := startServices(ctx, v, onDisk, 1, delays); err != nil {
		return err
	}
	s := v.services[0]
	s.yaml = strings.ReplaceAll(s.yaml, "attempts: 1000000", "attempts: 8") // Policies simulates each
	if err := v.parkEach(ctx, *pages); err != nil {
		return err
	}
	paths, err := s.pagePaths(ctx)
	if err != nil {
		return err
	}
	token, err := httpapi.Client{Addr: s.listen}.CreateToken(ctx, httpapi.NewToken{Name: "bench", Role: "admin"})
	if err != nil {
		return err
	}
	var took [2][][]float64 // without masks and with them: of each path, ms
	for round := range 2 * *rounds {
		masks := (round + round/2) % 2 // neither is always the first
		s.end(syscall.SIGTERM)
		if err := s.configure([]string{shown, masked}[masks]); err != nil {
			return err
		}
		if err := s.start(ctx); err != nil {
			return err
		}
		if took[masks] == nil {
			took[masks] = make([][]float64, len(paths))
		}
		for i, p := range paths {
			for n := range 6 {
				ms, err := s.load(ctx, token.Secret, p.path)
				if err != nil {
					return err
				}
				if n > 0 { // the first is not counted: everything is cold
					took[masks][i] = append(took[masks][i], ms)
				}
			}
		}
	}
	fmt.Printf("%d messages are parked, in %d queues and %d groups\n", *pages, pageQueues, pageGroups)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "page\tp50 ms\tmax ms\tmasked p50 ms\tmax ms\t× without masks\t")
	for i, p := range paths {
		plain, hidden := took[0][i], took[1][i]
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\t\n", p.name, median(plain), slices.Max(plain),
			median(hidden), slices.Max(hidden), median(hidden)/median(plain))
	}
	return w.Flush()
}

func pageQueue(i int) string { return fmt.Sprint("orders.", i) }

// parkEach has n messages parked: a sixth of them in one group, the others in all groups alike.
func (v *vhost) parkEach(ctx context.Context, n int) error {
	for q := range pageQueues {
		share := (n + pageQueues - 1 - q) / pageQueues
		err := publishEach(ctx, v.url, wire.ExchangeFailures, pageQueue(q), share, 0, func(i int) amqp.Publishing {
			group := 1 + i%(pageGroups/pageQueues)
			if i%6 == 0 {
				group = 0
			}
			// A group's errors differ in what grouping leaves out, groups in a name.
			reason := fmt.Sprintf("shop.Error%s: order %d is not there", letters(group*pageQueues+q), i)
			if group == 0 {
				reason = fmt.Sprintf("timeout after %d ms", 5000+i)
			}
			return amqp.Publishing{MessageId: strconv.Itoa(i), DeliveryMode: amqp.Persistent,
				ContentType: "application/json",
				Headers:     amqp.Table{wire.HeaderError: reason, wire.HeaderPark: "bench", "authorization": "Bearer abc"},
				Body: fmt.Appendf(nil, `{"order": %d, "customer": {"email": "c%d@example.com"}, "note": %q}`, i, i,
					strings.Repeat("x", *size))}
		})
		if err != nil {
			return err
		}
	}
	return v.services[0].until(ctx, "messages are parked", func(now int) bool { return now == n },
		func(o *inspect.Overview) (now int) {
			for _, q := range o.Queues {
				now += int(q.Parked)
			}
			return now
		})
}

// letters is a number in letters, which grouping keeps.
func letters(n int) (s string) {
	for ; n > 0 || s == ""; n /= 26 {
		s += string(rune('A' + n%26))
	}
	return s
}

// namedPath is a path of the page, or of the API.
type namedPath struct{ name, path string }

// pagePaths are the pages that are measured.
func (s *service) pagePaths(ctx context.Context) ([]namedPath, error) {
	client := httpapi.Client{Addr: s.listen}
	groups, err := client.Groups(ctx, "state:parked", "")
	if err != nil {
		return nil, err
	}
	found, err := client.Messages(ctx, "state:parked", "", 1)
	if err != nil {
		return nil, err
	}
	if len(groups.Groups) == 0 || len(found.Messages) == 0 {
		return nil, errors.New("nothing is parked")
	}
	largest := slices.MaxFunc(groups.Groups, func(a, b inspect.Group) int { return int(a.Parked - b.Parked) })
	plan, err := client.Plan(ctx, operations.PlanRequest{Verb: actions.Replay, Query: "state:parked"})
	if err != nil {
		return nil, err
	}
	query := func(q string) string { return "/messages?q=" + url.QueryEscape(q) }
	return []namedPath{
		{"Overview", "/"},
		{"Queues", "/queues"},
		{"a queue", "/queues/" + pageQueue(0)},
		{"Groups", "/groups"},
		{"the largest group", "/groups/" + largest.ID},
		{"Messages, parked", query("state:parked")},
		{"Messages of the group", query("group:" + largest.ID)},
		{"a search in bodies, a page", query("body.order:>5")},
		{"a search in all bodies that finds nothing", query("text:nowhere")},
		{"a message", "/messages/" + found.Messages[0].ID},
		{"its editor", "/messages/" + found.Messages[0].ID + "/edit"},
		{"a plan of all", "/plans/" + plan.ID},
		{"Operations", "/operations"},
		{"Policies", "/policies"},
		{"Audit", "/audit"},
		{"Health", "/health"},
	}, nil
}

// load reads a page, and returns how many ms that takes.
func (s *service) load(ctx context.Context, token, path string) (took float64, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.listen+path, nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	began := time.Now()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err
	}
	if took = ms(time.Since(began)); resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", path, resp.Status)
	}
	return took, nil
}
