// Package monitoring_test holds what is in deploy/ to what the service shows: the
// Prometheus rules and the Grafana dashboard.
package monitoring_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
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
	"time"

	"github.com/goccy/go-yaml"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
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
	if want := []string{"At a glance", "Flow", "Waiting and due", "Parked", "Storms", "Store and broker",
		"Ledger"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q", rows)
	}
	if v := d.Templating.List; len(v) != 3 || v[0].Type != "datasource" || v[1].Name != "vhost" ||
		v[1].Definition != "label_values(redrive_ready, vhost)" ||
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
		expect.Equal(t, n, len(all), "Prometheus has rules")
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
	p := &prometheus{t: t, addr: brokertest.Address(t)}
	var log bytes.Buffer
	c := exec.Command(path, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+p.addr, "--log.level=warn")
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

const (
	rulesFolder   = "../../deploy/prometheus"
	dashboardFile = "../../deploy/grafana/redrive.json"
	runbook       = "../../docs/how-to/alerts.md"
)

// program is a program of Prometheus's. Without it the test fails: rules that no one
// tried must not look right.
func program(t *testing.T, name string) string {
	t.Helper()
	if dir := os.Getenv("REDRIVE_PROMETHEUS"); dir != "" {
		name = filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("this needs Prometheus: run `make test`, or `make install-prometheus` once (%v)", err)
	}
	return path
}

type rule struct {
	Alert, Record, Expr string
	For                 string
	Labels              map[string]string
	Annotations         map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	read(t, filepath.Join(rulesFolder, "redrive.rules.yml"), &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	if err := yaml.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func TestTheRulesPassTheirTests(t *testing.T) {
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "redrive.rules.yml"},
		{"test", "rules", "redrive.rules.test.yml"}} {
		c := exec.Command(promtool, args...)
		c.Dir = rulesFolder
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Each alert has a case in which it stays silent, then fires, then has ended, and says
// what it means and what to do.
func TestEachAlertIsTestedAndExplained(t *testing.T) {
	var tests struct {
		Tests []struct {
			Name  string
			Cases []struct {
				At     string `yaml:"eval_time"`
				Alert  string `yaml:"alertname"`
				Alerts []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	read(t, filepath.Join(rulesFolder, "redrive.rules.test.yml"), &tests)
	shown := map[string]bool{}
	for _, test := range tests.Tests {
		stage := map[string]int{} // silent, fires, has ended
		last := time.Duration(0)
		for _, c := range test.Cases {
			at, err := time.ParseDuration(c.At)
			if err != nil || at < last {
				t.Fatalf("%s: %q comes after %s: %v", test.Name, c.At, last, err)
			}
			last = at
			if fires := len(c.Alerts) > 0; fires == (stage[c.Alert] == 1) {
				stage[c.Alert]++
			}
			shown[c.Alert] = shown[c.Alert] || stage[c.Alert] >= 3
		}
	}
	text, err := os.ReadFile(runbook)
	must(t, err)
	severities := map[string]bool{"critical": true, "warning": true}
	alerts := 0
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		alerts++
		if !shown[r.Alert] {
			t.Errorf("no test shows %s silent, then firing, then ended", r.Alert)
		}
		if !severities[r.Labels["severity"]] {
			t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
		}
		for _, name := range []string{"summary", "description"} {
			if r.Annotations[name] == "" {
				t.Errorf("%s has no %s", r.Alert, name)
			}
		}
		if !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/how-to/alerts.md#"+strings.ToLower(r.Alert)) {
			t.Errorf("%s leads to %q", r.Alert, r.Annotations["runbook_url"])
		}
		_, section, ok := strings.Cut(string(text), "\n### "+r.Alert+"\n")
		section, _, _ = strings.Cut(section, "\n##")
		for _, part := range []string{"**It means**", "**Look at**", "**Do**"} {
			if !ok || !strings.Contains(section, part) {
				t.Errorf("docs/how-to/alerts.md says nothing of %s under %s", part, r.Alert)
			}
		}
	}
	if alerts < 10 {
		t.Errorf("only %d alerts were read", alerts)
	}
}

// RedriveOverdue is silent while a queue rightly waits: a person has paused it, or another
// alert speaks of it. A limit or an unreachable queue must not silence it.
func TestTheRulesKnowEachWaitReason(t *testing.T) {
	silences := map[throttle.WaitReason]bool{
		throttle.WhyPerson: true, throttle.WhyBreaker: true, throttle.WhyNoConsumer: true,
		throttle.WhyUnreachable: false,
	}
	var expected []string
	for _, why := range throttle.WaitReasons {
		silent, known := silences[why]
		if !known && !why.IsLimit() {
			t.Errorf("say whether %s silences RedriveOverdue", why)
		}
		if silent {
			expected = append(expected, string(why))
		}
	}
	label := regexp.MustCompile(`redrive_queue_paused\{why=~?"([^"]*)"\}`)
	for _, r := range rules(t) {
		for _, m := range label.FindAllStringSubmatch(r.Expr, -1) {
			named := strings.Split(m[1], "|")
			for _, why := range named {
				if !slices.Contains(throttle.WaitReasons, throttle.WaitReason(why)) {
					t.Errorf("%s names the reason %q, which does not exist", r.Alert, why)
				}
			}
			if r.Alert == "RedriveOverdue" && !slices.Equal(named, expected) {
				t.Errorf("RedriveOverdue is silenced by %s, want %s", named, expected)
			}
		}
		if r.Alert == "RedriveOverdue" && !label.MatchString(r.Expr) {
			t.Error("RedriveOverdue does not look at redrive_queue_paused")
		}
	}
}

var must = expect.NoError
