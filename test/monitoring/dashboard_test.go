package monitoring_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// silent are metrics that a service has only after what does not happen here.
var silent = map[string]string{
	"redrive_wait_refused_total":   "RabbitMQ refuses messages that are to wait in it",
	"redrive_notifications_total":  "somebody is notified",
	"queue:redrive_failures:usual": "it has run for 6 hours",
	"redrive_store_info":           "replicas share a store, on Redis",
}

// panel is what a dashboard asks.
type panel struct {
	Title, Type string
	Datasource  struct{ Type, UID string }
	Targets     []struct {
		Expr       string
		Datasource struct{ UID string }
	}
}

type dashboard struct {
	Panels     []panel
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	b, err := os.ReadFile(dashboardFile)
	must(t, err)
	must(t, json.Unmarshal(b, &d))
	return d
}

// The dashboard asks whichever Prometheus a person chooses, and has its rows.
func TestTheDashboardIsWhole(t *testing.T) {
	d := readDashboard(t)
	var rows []string
	for _, p := range d.Panels {
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Title == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("panel %q asks %q %d times", p.Title, p.Datasource.UID, len(p.Targets))
		}
		for _, q := range p.Targets {
			if q.Expr == "" || q.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q: %q asks %q", p.Title, q.Expr, q.Datasource.UID)
			}
		}
	}
	if want := []string{"At a glance", "Flow", "Waiting and due", "Parked", "Storms", "Store and broker", "Ledger"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q", rows)
	}
	if v := d.Templating.List; len(v) != 3 || v[0].Type != "datasource" || v[1].Name != "vhost" || v[1].Definition != "label_values(redrive_ready, vhost)" ||
		v[2].Name != "queue" || v[2].Definition != "label_values(redrive_ledger_total, queue)" {
		t.Errorf("variables %+v", v)
	}
}

// Every query of the dashboard and every rule, asked of a real Prometheus that watches
// a service at work, is understood and finds what it asks for.
func TestPrometheusUnderstandsAllOfIt(t *testing.T) {
	brokers := brokertest.All(t)
	b := brokers[len(brokers)-1]
	service := work(t, brokertest.NewVHost(t, b))
	p := startPrometheus(t, service.Addr())
	p.await(`count_over_time(redrive_build_info[5m]) >= 4`)
	p.await(`redrive_queue_consumers{queue="lost"} == 0`)
	p.await(`redrive_parked{queue="orders"} > 0`)
	p.await(`redrive_ledger_total{queue="mail", as="delayed"} > 0`)
	p.await(`redrive_ledger_total{queue="texts", as="dropped"} > 0`)
	p.await(`redrive_overdue_seconds{queue="lost"} > 0`)
	p.await(`sum without (reason) (rate(redrive_dead_letters_total[1h])) >= 0`)

	t.Run("dashboard", func(t *testing.T) {
		d := readDashboard(t)
		fill := strings.NewReplacer("$vhost", ".*", "$queue", ".*", "$__rate_interval", "1m")
		for _, panel := range d.Panels {
			for _, q := range panel.Targets {
				got, err := p.query(fill.Replace(q.Expr))
				if err != nil || len(got) == 0 && !needsSilence(q.Expr) {
					t.Errorf("%s: %s gives %v, %v", panel.Title, q.Expr, got, err)
				}
			}
		}
	})
	t.Run("rules", func(t *testing.T) {
		p := &prometheus{t, p.addr}
		p.await(`ALERTS{alertname="RedriveNoConsumers", alertstate="pending", queue="lost"}`)
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		must(t, p.ask("/api/v1/rules", nil, &data))
		n := 0
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				if n++; r.Health != "ok" {
					t.Errorf("%s is %s: %s", r.Name, r.Health, r.LastError)
				}
			}
		}
		all := rules(t)
		if n != len(all) {
			t.Errorf("Prometheus has %d rules, the file %d", n, len(all))
		}
		// An alert finds nothing when all is well; what it looks at must be there.
		looked := map[string]bool{}
		for _, r := range all {
			for _, name := range metric.FindAllString(r.Expr, -1) {
				looked[name] = true
			}
		}
		for _, name := range slices.Sorted(maps.Keys(looked)) {
			got, err := p.query(`{__name__="` + name + `"}`)
			if err != nil || len(got) == 0 && silent[name] == "" {
				t.Errorf("rules ask for %s, which has no series: %v", name, err)
			}
		}
	})
	t.Run("ledger", func(t *testing.T) {
		for _, expr := range []string{
			`redrive_ledger_imbalance != 0`,
			// As Prometheus sees it, of one scrape.
			`sum by (queue) (redrive_ledger_total{as="in"}) - sum by (queue) (redrive_ledger_total{as!="in"})
				- sum by (queue) (redrive_waiting) - sum by (queue) (redrive_parked) - sum by (queue) (redrive_discarded) != 0`,
		} {
			if got, err := p.query(expr); err != nil || len(got) > 0 {
				t.Errorf("%s gives %v, %v", expr, got, err)
			}
		}
	})
}

var metric = regexp.MustCompile(`\b(queue:)?redrive_\w+(:\w+)?`)

func needsSilence(expr string) bool {
	return slices.ContainsFunc(metric.FindAllString(expr, -1), func(name string) bool { return silent[name] != "" })
}

// work runs a service and a shop in which everything happens that is to be seen.
func work(t *testing.T, v *brokertest.VHost) *servertest.Service {
	t.Helper()
	s := servertest.Run(t, servertest.Config(t, v, `policies:
  - {name: orders, queues: [orders], attempts: 3, backoff: {fixed: 200ms}, breaker: on}
  - {name: mail, queues: [mail], attempts: 3, backoff: {fixed: 200ms}, wait: {levels: [200ms]}}
  - {name: texts, queues: [texts], attempts: 1, exhausted: discard}
  - {name: others, queues: ["*"], attempts: 3, backoff: {fixed: 200ms}, jitter: none}
`)).Ready(t)

	ch := v.Channel()
	for _, queue := range []string{"orders", "mail", "texts", "lost", "paused"} {
		v.Queue(queue, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": wire.ExchangeDeadLetters})
	}
	must(t, s.Client.PauseQueue(t.Context(), "paused", "a test"))
	// Read with basic.get, these have no consumer: one message comes back as a probe, one waits.
	for _, queue := range []string{"lost", "paused"} {
		var last amqp.Delivery
		for range 2 {
			v.Publish("", queue, amqp.Publishing{Body: []byte("x")})
			brokertest.Eventually(t, "a message is in "+queue, func() (ok bool) {
				var err error
				last, ok, err = ch.Get(queue, false)
				return err == nil && ok
			})
		}
		must(t, last.Nack(true, false))
	}
	// Half of these succeed at their second attempt, the others never do.
	for _, queue := range []string{"orders", "mail", "texts"} {
		in, err := ch.Consume(queue, "", false, false, false, false, nil)
		must(t, err)
		go func() {
			for d := range in {
				if attempt, _ := d.Headers[wire.HeaderAttempt].(int64); attempt > 0 && string(d.Body) == "good" {
					_ = d.Ack(false)
				} else {
					_ = d.Reject(false)
				}
			}
		}()
		for range 10 {
			v.Publish("", queue, amqp.Publishing{Body: []byte("good")})
			v.Publish("", queue, amqp.Publishing{Body: []byte("bad")})
		}
	}
	return s
}

// prometheus is a real one, with our rules, that asks a service every second.
type prometheus struct {
	t    *testing.T
	addr string
}

func startPrometheus(t *testing.T, service string) *prometheus {
	t.Helper()
	path, dir := program(t, "prometheus"), t.TempDir()
	rules, err := filepath.Abs(filepath.Join(rulesFolder, "redrive.rules.yml"))
	must(t, err)
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs: [{job_name: redrive, static_configs: [{targets: [%q]}]}]
`, rules, service)
	file := filepath.Join(dir, "prometheus.yml")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &prometheus{t: t, addr: free.Addr().String()}
	free.Close()
	var log bytes.Buffer
	c := exec.Command(path, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.addr, "--log.level=warn")
	c.Stderr = &log
	must(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil || t.Failed() {
			t.Logf("prometheus ended (%v) and said:\n%s", err, log.String())
		}
	})
	brokertest.Eventually(t, "prometheus is ready", func() bool {
		resp, err := http.Get("http://" + p.addr + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// ask asks its API, and reads data of the answer into into.
func (p *prometheus) ask(path string, query url.Values, into any) error {
	resp, err := http.PostForm("http://"+p.addr+path, query)
	if path == "/api/v1/rules" {
		resp, err = http.Get("http://" + p.addr + path)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", answer.Status, answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}

// series is one line of an answer.
type series struct {
	Metric map[string]string
	Value  [2]any
}

// query is what an expression gives now.
func (p *prometheus) query(expr string) ([]series, error) {
	var data struct{ Result []series }
	err := p.ask("/api/v1/query", url.Values{"query": {expr}}, &data)
	return data.Result, err
}

// await waits until an expression gives something.
func (p *prometheus) await(expr string) {
	p.t.Helper()
	brokertest.Eventually(p.t, "prometheus has "+expr, func() bool {
		got, err := p.query(expr)
		if err != nil {
			p.t.Fatalf("%s: %v", expr, err)
		}
		return len(got) > 0
	})
}
