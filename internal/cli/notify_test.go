package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/cli"
)

// A test message arrives, says that it is one, and the exit code says how many did.
func TestNotifyTest(t *testing.T) {
	got := make(chan map[string]any, 10)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m map[string]any
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		got <- m
	}))
	defer hook.Close()
	url := strings.Replace(hook.URL, "http:", "generic+http:", 1)
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	if err := os.WriteFile(file, []byte(`
notify:
  page: https://redrive.example.com
  allow_private: [127.0.0.1/32]
  routes:
    - {name: good, url: "`+url+`"}
    - {name: bad, url: "generic+http://127.0.0.2/s3cret"}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		out  string
	}{
		{"good", 0, "good   sent"},
		{"bad", 1, "notifications do not go to private addresses: 127.0.0.2"},
		{"--event intake_stopped -o jsonl", 3, `{"route":"good","event":"intake_stopped","result":"sent"}`},
	} {
		var out, errOut bytes.Buffer
		code := cli.Run(context.Background(), append(strings.Fields("notify test "+c.args), "--config", file), &out, &errOut, cli.Build{Version: "test"})
		if code != c.code || !strings.Contains(out.String(), c.out) || strings.Contains(out.String()+errOut.String(), "s3cret") {
			t.Errorf("%s: exit %d\n%s%s", c.args, code, out.String(), errOut.String())
		}
	}
	if m := <-got; m["test"] != true || m["event"] != "parked" || m["title"] != "Redrive: a test" || !strings.HasPrefix(m["link"].(string), "https://redrive.example.com/messages?q=") {
		t.Errorf("it was sent %v", m)
	}
	if m := <-got; m["event"] != "intake_stopped" || m["severity"] != "critical" || m["link"] != "https://redrive.example.com/health" {
		t.Errorf("it was sent %v", m)
	}
}
