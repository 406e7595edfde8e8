package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// soakFlips flips one bit of a store that a killed service has left, 2,000 times, in each of
// its files. The service then refuses to start with a clear error, or returns each message as
// it was; what is missing it reports.
func soakFlips(t *testing.T, r *soakRow) {
	brokers := brokertest.All(t)
	b := brokers[len(brokers)-1]
	p := r.part(t, fmt.Sprintf("disk store, RabbitMQ %s", b.Version), 2000)
	if p.isMet() {
		return
	}
	var left *leftStore
	v := brokertest.NewVHost(t, b) // which the store is of
	if !t.Run("make", func(t *testing.T) { left = newLeftStore(t, v) }) {
		return
	}
	t.Cleanup(func() { os.RemoveAll(left.folder) })
	services, most := 3, p.Goal
	if *soakBudget == 0 {
		services, most = 1, 2*len(left.files)
	}
	// Each run makes a store of its own. Its files are not those of the run before, and its places
	// are where the order goes on.
	f := &flips{p: p, left: left, most: most, taken: p.Done}
	if p.Became == nil {
		p.Became = map[string]int{}
	}
	t.Cleanup(func() { p.Note = f.note() }) // when the services have ended
	for n := range services {
		t.Run(fmt.Sprint("service ", n+1), func(t *testing.T) {
			t.Parallel()
			process := newProcess(t, v.ServiceURL(brokertest.Works("orders", "done")))
			process.configure(flipPolicies)
			for at, more := f.take(); more; at, more = f.take() {
				f.try(t, process, at)
			}
		})
	}
}

// flipPolicies keep what fails, but of one queue.
const flipPolicies = `policies:
  - {name: done, queues: [done], backoff: {fixed: 150ms}, jitter: none}
  - {name: p, queues: ["*"], backoff: {fixed: 24h}, jitter: none, no_consumer: retry}`

// leftStore is a data folder as a killed service leaves it.
type leftStore struct {
	folder string
	files  []string          // those with something in them
	used   map[string]int64  // how far, before the zeros that a log was given as room
	lines  map[string]string // of an export of it, by id
}

func newLeftStore(t *testing.T, v *brokertest.VHost) *leftStore {
	t.Helper()
	const lives, each = 3, 60
	for _, queue := range []string{"orders", "done"} {
		v.Queue(queue, amqp.Table{"x-dead-letter-exchange": wire.ExchangeDeadLetters})
	}
	orders, done := v.Consume("orders"), v.Consume("done")
	p := newProcess(t, v.ServiceURL(brokertest.Works("orders", "done")))
	p.configure(flipPolicies)
	client := httpapi.Client{Addr: p.listen}
	var export bytes.Buffer
	for life := range lives {
		p.start()
		p.waitReady()
		for i := range each {
			m := various(fmt.Sprint("m-", life*each+i), true)
			m.Body = m.Body[:min(len(m.Body), 128<<10)]
			v.Publish("", "orders", m)
			v.Publish("", "done", m)
		}
		for range each {
			orders.Reject()
		}
		for range 2 * each {
			if d := done.Next(); d.Headers[wire.HeaderAttempt] == nil {
				must(t, d.Reject(false))
			} else {
				must(t, d.Ack(false))
			}
		}
		brokertest.Eventually(t, "all of a queue wait", func() bool {
			count, err := client.Count(context.Background(), "state:waiting")
			return err == nil && count.Count == int64(life+1)*each
		})
		export.Reset()
		_, err := client.Export(context.Background(), "", "jsonl", &export)
		must(t, err)
		if life == 1 {
			must(t, p.term())
		}
		p.kill()
	}
	folder, err := os.MkdirTemp("", "redrive-soak-")
	must(t, err)
	must(t, os.CopyFS(folder, os.DirFS(p.data())))
	l := &leftStore{folder: folder, used: map[string]int64{}, lines: byID(t, export.Bytes())}
	must(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if used := len(bytes.TrimRight(data, "\x00")); used > 0 {
			name, _ := filepath.Rel(folder, path)
			l.files, l.used[name] = append(l.files, name), int64(used)
		}
		return err
	}))
	t.Logf("%d messages in %d files: %v", len(l.lines), len(l.files), l.used)
	return l
}

// byID are the lines of an export by the ids of their messages.
func byID(t *testing.T, export []byte) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range bytes.Lines(export) {
		var r struct{ ID string }
		must(t, json.Unmarshal(line, &r))
		if all[r.ID] != "" {
			t.Errorf("an export has %s twice", r.ID)
		}
		all[r.ID] = string(line)
	}
	return all
}

// flips are those of one bit each.
type flips struct {
	p    *soakPart
	left *leftStore
	most int

	mu    sync.Mutex
	taken int
}

// bitAt is a bit of a file.
type bitAt struct {
	file string
	byte int64
	bit  int
}

// take is the next: each file in turn, and in each from one end to the other in an order in
// which any number of places is spread over all.
func (f *flips) take() (at bitAt, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.taken == f.most || *soakBudget > 0 && time.Now().After(f.p.until) {
		return at, false
	}
	file := f.left.files[f.taken%len(f.left.files)]
	n, used := f.taken/len(f.left.files), int(f.left.used[file])
	round := n / used // of a small file: another bit of each byte
	f.taken++
	at = bitAt{file: file, byte: int64(spread(n, used))}
	at.bit = (int(at.byte) + round) % 8
	return at, true
}

// note says what became of them.
func (f *flips) note() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, how := range slices.Sorted(maps.Keys(f.p.Became)) {
		all = append(all, fmt.Sprintf("%s: %s", how, thousands(f.p.Became[how])))
	}
	return fmt.Sprintf("in %d files; %s.", len(f.left.files), strings.Join(all, ", "))
}

// try flips a bit in a copy of the store, and starts the service on it.
func (f *flips) try(t *testing.T, p *process, at bitAt) {
	t.Helper()
	must(t, os.RemoveAll(p.data()))
	must(t, os.CopyFS(p.data(), os.DirFS(f.left.folder)))
	must(t, filepath.WalkDir(p.data(), func(path string, _ fs.DirEntry, err error) error { return os.Chmod(path, 0o700) }))
	path := filepath.Join(p.data(), at.file)
	data, err := os.ReadFile(path)
	must(t, err)
	data[at.byte] ^= 1 << at.bit
	must(t, os.WriteFile(path, data, 0o600))

	from := p.log.Len()
	p.start()
	how, missing, changed := f.opened(t, p)
	p.kill() // so that its log is whole
	said := p.log.String()[from:]
	if strings.Contains(said, "panic:") || strings.Contains(said, "runtime error") || strings.Contains(said, "SIGSEGV") {
		how = "panicked"
	}
	wrong := ""
	switch {
	case how == "panicked" || changed > 0:
		wrong = fmt.Sprintf("%s, %d messages changed", how, changed)
	case how == refused && !strings.Contains(said, "redrive store salvage") && !strings.Contains(said, "accept-loss") && !strings.Contains(said, filepath.Base(at.file)):
		wrong = "it refuses to start and does not say what to do"
	case how == asItWas && missing > 0:
		wrong = fmt.Sprintf("nothing was reported, and %d messages are missing", missing)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.p.Done++
	f.p.Messages += len(f.left.lines)
	f.p.Changed += changed
	if f.p.Became[how]++; how == asItWas {
		f.p.Lost += missing
	}
	if wrong != "" {
		t.Errorf("bit %d of byte %d of %s: %s. The service said:\n%s", at.bit, at.byte, at.file, wrong, said[:min(len(said), 4000)])
	}
}

const (
	refused  = "refused to start, with an error that names the remedy"
	asItWas  = "all messages as they were"
	reported = "damage reported, all other messages as they were"
)

// opened tells how a service did on a damaged store: how many messages are missing, and how
// many it returned otherwise than they were.
func (f *flips) opened(t *testing.T, p *process) (how string, missing, changed int) {
	t.Helper()
	get := func() (string, bool) {
		resp, err := http.Get("http://" + p.listen + "/readyz")
		if err != nil {
			return "", false
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return string(text), err == nil
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if _, answers := get(); answers {
			break
		}
		if (&replica{process: p}).ended() {
			return refused, 0, 0
		}
		<-time.After(5 * time.Millisecond)
		if time.Now().After(deadline) {
			t.Fatal("it neither starts nor ends")
		}
	}
	var export bytes.Buffer
	_, err := (httpapi.Client{Addr: p.listen}).Export(context.Background(), "queue:orders", "jsonl", &export)
	text, _ := get()
	if how = asItWas; err != nil || strings.Contains(text, "damaged") {
		how = reported
	}
	if err != nil { // as far as it came: the last line may be cut
		export.Truncate(bytes.LastIndexByte(export.Bytes(), '\n') + 1)
	}
	is := byID(t, export.Bytes())
	for id, line := range f.left.lines {
		if is[id] == "" {
			missing++
		} else if is[id] != line {
			changed++
			t.Errorf("it was  %.2000sit came %.2000s", line, is[id])
		}
	}
	for id, line := range is {
		if f.left.lines[id] == "" {
			changed++
			t.Errorf("it never was: %.2000s", line)
		}
	}
	return how, missing, changed
}
