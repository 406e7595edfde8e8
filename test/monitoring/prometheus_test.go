package monitoring_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// prometheus is a real one, with our rules, that asks a service every second.
type prometheus struct {
	t    *testing.T
	addr string
}

func startPrometheus(t *testing.T, service string) *prometheus {
	t.Helper()
	path, dir := program(t, "prometheus"), t.TempDir()
	rules, err := filepath.Abs(filepath.Join(rulesFolder, "redrive.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs: [{job_name: redrive, static_configs: [{targets: [%q]}]}]
`, rules, service)
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &prometheus{t: t, addr: free.Addr().String()}
	free.Close()
	var log bytes.Buffer
	c := exec.Command(path, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.addr, "--log.level=warn")
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
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
