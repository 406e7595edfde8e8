package notify

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/testenv/authority"
	"github.com/redrive-mq/redrive/testenv/subprocess"
)

// manager has alerts as Alertmanager keeps them: it refuses what its API's description
// does not allow, and resolves what it is sent no more.
type manager struct {
	mu     sync.Mutex
	alerts map[string]alert
	down   bool
}

func (a *manager) take(body io.Reader) error {
	var all []alert
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return errors.New("down")
	}
	for _, one := range all {
		if one.Labels["alertname"] == "" || one.StartsAt.IsZero() || one.EndsAt.Before(one.StartsAt) || len(all) > mostAlerts {
			return fmt.Errorf("alert %+v of %d", one, len(all))
		}
		a.alerts[one.Labels["alertname"]+" "+one.Labels["queue"]] = one
	}
	return nil
}

// firing are the alerts that have not ended.
func (a *manager) firing() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for name, one := range a.alerts {
		if time.Now().Before(one.EndsAt) {
			all = append(all, name+": "+strings.TrimPrefix(one.Annotations["summary"], "Redrive: "))
		}
	}
	slices.Sort(all)
	return all
}

// newManager is a desk whose route ends at an Alertmanager, in fake time.
func newManager(t *testing.T) (*desk, *manager) {
	a := &manager{alerts: map[string]alert{}}
	d := &desk{o: options(t), s: DefaultSettings(), began: time.Now()}
	r := DefaultRoute()
	r.Name, r.URL = "desk", "alertmanager+https://alertmanager.example/"
	d.s.Page, d.s.Routes = "https://redrive.example/", []Route{r}
	d.to = func(m *Message, send send) error {
		c := newClient(nil)
		c.http.Transport = tripper(func(r *http.Request) (*http.Response, error) {
			if err := a.take(r.Body); err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
		})
		return send(context.Background(), c, m)
	}
	d.open(t)
	return d, a
}

func (a *manager) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := a.firing(); !slices.Equal(got, want) {
		t.Errorf("it has %q, want %q", got, want)
	}
}

// At every moment an alert fires while its condition goes on, and not long after.
func TestAlertsAreSentWhileTheyLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, a := newManager(t)
		time.Sleep(2 * time.Minute) // the start is over
		d.set(Condition{Kind: BreakerOpen, Queue: "orders", Text: "90% failed"}, Condition{Kind: BrokerBlocked})
		time.Sleep(20 * time.Second)
		const open, blocked = "RedriveBreakerOpen orders: orders: the circuit breaker is open: 90% failed", "RedriveBrokerBlocked : an alarm of RabbitMQ's blocks publishing"
		for range 60 {
			a.want(t, open, blocked)
			time.Sleep(time.Minute)
		}
		a.mu.Lock()
		one := a.alerts["RedriveBreakerOpen orders"]
		clear(a.alerts) // it starts again, and knows nothing
		a.mu.Unlock()
		if one.Labels["severity"] != "critical" || one.GeneratorURL != "https://redrive.example/queues" || time.Since(one.StartsAt) < time.Hour || !strings.Contains(one.Annotations["description"], "orders") {
			t.Errorf("it has %+v", one)
		}
		time.Sleep(alertEvery)
		a.want(t, open, blocked)
		d.set(Condition{Kind: BrokerBlocked})
		time.Sleep(20 * time.Second)
		a.want(t, blocked)
		if got := a.alerts["RedriveBreakerOpen orders"].Annotations["summary"]; got != "Redrive: resolved: orders: the circuit breaker is closed again" {
			t.Errorf("it says %s", got)
		}
	})
}

// What could not be sent is sent as soon as it answers; a start sends at once what goes
// on; after the end of the service alerts end by themselves.
func TestAnAlertmanagerThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, a := newManager(t)
		time.Sleep(2 * time.Minute)
		a.mu.Lock()
		a.down = true
		a.mu.Unlock()
		d.set(Condition{Kind: LedgerOff, Queue: "orders"})
		time.Sleep(time.Hour)
		a.want(t)
		a.mu.Lock()
		a.down = false
		a.mu.Unlock()
		time.Sleep(alertEvery)
		const off = "RedriveLedgerOff orders: orders: the ledger is off: messages came in that are neither retried, parked, discarded nor waiting"
		a.want(t, off)
		d.stop()
		d.open(t)
		time.Sleep(2 * time.Second)
		a.want(t, off)
		d.stop()
		time.Sleep(alertLasts)
		a.want(t)
		d.set()
		d.open(t)
		time.Sleep(startGrace + 20*time.Second) // until it is known to be over it goes on
		a.want(t)
		if n := entries(t, d.o.Store); n != 0 {
			t.Errorf("%d entries are kept", n)
		}
	})
}

// Parked messages are one alert of a queue with their number, until no more have been
// parked for parkedLasts.
func TestParkedMessagesAreAnAlert(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, a := newManager(t)
		d.park("orders", 200)
		time.Sleep(2 * time.Second)
		d.park("orders", 400)
		time.Sleep(countEvery + 2*time.Second)
		a.want(t, "RedriveParked orders: orders: 600 messages parked")
		time.Sleep(10 * time.Minute)
		d.park("orders", 400)
		time.Sleep(alertEvery)
		a.want(t, "RedriveParked orders: orders: 1,000 messages parked")
		d.stop()
		d.open(t) // the count is kept
		time.Sleep(parkedLasts - alertEvery - 2*time.Second)
		a.want(t, "RedriveParked orders: orders: 1,000 messages parked")
		time.Sleep(5 * time.Second)
		a.want(t)
		d.park("orders", 1)
		time.Sleep(2 * time.Second)
		a.want(t, "RedriveParked orders: orders: 1 message parked")
		for i := range 3 * mostAlerts {
			d.park(fmt.Sprint("q", i), 1)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := len(a.firing()); n != 3*mostAlerts+1 {
			t.Errorf("%d alerts fire", n)
		}
	})
}

// What Alertmanager does by itself a route to it does not.
func TestARouteToAlertmanagerIsPlain(t *testing.T) {
	for _, change := range []func(*Route){
		func(r *Route) { r.GroupWait = 0 }, func(r *Route) { r.Repeat = time.Hour }, func(r *Route) { r.Resolved = false },
		func(r *Route) { r.Quiet = Quiet{22 * 60, 7 * 60, time.UTC} },
	} {
		r := DefaultRoute()
		r.URL = "alertmanager+https://alertmanager.example/"
		if err := Check(&r); err != nil {
			t.Error(err)
		}
		if change(&r); Check(&r) == nil {
			t.Errorf("it may have %+v", r)
		}
	}
	for _, query := range []string{"cacertfil=x", "$a-b=c", "passwordfile=x"} {
		if _, err := openURL("alertmanager+https://alertmanager.example/?" + query); err == nil {
			t.Errorf("it may have %s", query)
		}
	}
	if _, err := openURL("alertmanager+http://alertmanager.example/?cacertfile=x"); err == nil {
		t.Error("plain HTTP may have an authority")
	}
}

// Token and authority are read from their files for each request.
func TestAlertmanagersTokenAndAuthority(t *testing.T) {
	var got http.Header
	var path string
	server := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got, path = r.Header, r.URL.Path }))
	defer server.Close()
	token, ca := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "ca.pem")
	to, err := openURL(strings.Replace(server.URL, "https://", "alertmanager+https://", 1) + "/alerts/?tokenfile=" + token + "&cacertfile=" + ca)
	must(t, err)
	stranger, err := authority.New(t.TempDir())
	must(t, err)
	strange, err := os.ReadFile(stranger.CAFile())
	must(t, err)
	right := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for _, c := range []struct {
		token string
		ca    []byte
		says  string
	}{{"one", right, ""}, {"two", right, ""}, {"three", strange, "unknown authority"}, {"four", nil, "ca.pem"}} {
		_ = os.Remove(ca)
		if c.ca != nil {
			must(t, os.WriteFile(ca, c.ca, 0o600))
		}
		must(t, os.WriteFile(token, []byte(c.token+"\n"), 0o600))
		got = nil
		err := to.deliver(t.Context(), newClient(loopback), testMessage())
		if c.says == "" && (err != nil || got.Get("Authorization") != "Bearer "+c.token || path != "/alerts/api/v2/alerts") {
			t.Errorf("%s: %v, %s has %s", c.token, err, path, got)
		}
		if c.says != "" && (err == nil || got != nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, it has %s", c.token, err, got)
		}
	}
}

// A real Alertmanager, by TLS and with a password, takes what a route sends, and notifies
// of it: of a breaker that opens and closes again, and of a test.
func TestARealAlertmanager(t *testing.T) {
	notified := make(chan map[string]any, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var group struct{ Alerts []map[string]any }
		if err := json.NewDecoder(r.Body).Decode(&group); err != nil {
			t.Error(err)
		}
		for _, a := range group.Alerts {
			notified <- a
		}
	}))
	defer receiver.Close()
	url := startAlertmanager(t, receiver.URL)
	s, r := DefaultSettings(), DefaultRoute()
	r.Name, r.URL = "alerts", Secret(url)
	s.AllowPrivate, s.Routes, s.VHost, s.Page = loopback, []Route{r}, "billing", "https://redrive.example/"
	must(t, Test(t.Context(), &s, &r, BreakerOpen))
	labels := map[string]any{"alertname": "RedriveTest", "queue": "test", "severity": "critical", "vhost": "billing", "env": "prod"}
	if a := <-notified; a["status"] != "firing" || !maps.Equal(a["labels"].(map[string]any), labels) {
		t.Errorf("it notifies of %v", a)
	}
	b, now := newPending(&s, &r), time.Now()
	b.update(now, []Condition{{Kind: BreakerOpen, Queue: "orders"}}, false)
	tell := func() {
		messages, _ := b.planAlerts(time.Now())
		for _, m := range messages {
			to, err := open(&r)
			if err == nil {
				err = to.deliver(t.Context(), newClient(loopback), m)
			}
			must(t, err)
			b.alertsSent(m, time.Now())
		}
	}
	for _, status := range []string{"firing", "resolved"} {
		tell()
		for a := range notified {
			if l := a["labels"].(map[string]any); l["alertname"] == "RedriveBreakerOpen" && a["status"] == status {
				if a["generatorURL"] != "https://redrive.example/queues" || l["queue"] != "orders" {
					t.Errorf("it notifies of %v", a)
				}
				break
			}
		}
		b.update(time.Now(), nil, false)
	}
}

// startAlertmanager returns the URL of a route to one that sends to receiver at once.
func startAlertmanager(t *testing.T, receiver string) string {
	t.Helper()
	program, err := exec.LookPath(filepath.Join(os.Getenv("REDRIVE_PROMETHEUS"), "prometheus-alertmanager"))
	if err != nil {
		t.Fatalf("this needs Alertmanager: run `make test`, or `make install-prometheus` once (%v)", err)
	}
	dir := t.TempDir()
	ca, err := authority.New(dir)
	must(t, err)
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if text != "" {
			must(t, os.WriteFile(path, []byte(text), 0o600))
		}
		return path
	}
	must(t, ca.Issue(authority.Leaf{Hosts: []string{"127.0.0.1"}}, file("cert.pem", ""), file("key.pem", "")))
	config := file("alertmanager.yml", `route: {receiver: hook, group_by: [...], group_wait: 10ms, group_interval: 100ms}
receivers: [{name: hook, webhook_configs: [{url: "`+receiver+`"}]}]
`)
	// The hash is of "s3cretpass".
	web := file("web.yml", `tls_server_config: {cert_file: cert.pem, key_file: key.pem}
basic_auth_users: {redrive: "$2b$04$abcdefghijklmnopqrstuuTFU2YlDDEIrOadTjCt/rbRIdDpciJuq"}
`)
	ports, err := subprocess.Ports(1)
	must(t, err)
	host := fmt.Sprintf("127.0.0.1:%d", ports[0])
	log := &strings.Builder{}
	c := exec.Command(program, "--config.file="+config, "--web.config.file="+web, "--storage.path="+dir, "--web.listen-address="+host, "--cluster.listen-address=")
	c.Stderr = log
	p, err := subprocess.Start(c, dir)
	must(t, err)
	t.Cleanup(func() {
		if p.Kill(); t.Failed() {
			t.Logf("alertmanager said:\n%s", log)
		}
	})
	url := "alertmanager+https://redrive@" + host + "/?$env=prod&cacertfile=" + ca.CAFile() + "&passwordfile=" + file("password", "s3cretpass\n")
	to, err := openURL(url)
	must(t, err)
	for {
		err := to.deliver(t.Context(), newClient(loopback), &Message{At: time.Now()})
		if err == nil {
			return url
		}
		if !strings.Contains(err.Error(), "connection refused") {
			t.Fatal(err)
		}
		select {
		case <-p.Ended():
			t.Fatal("it ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
}
