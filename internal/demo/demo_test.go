package demo

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

// An address that is no proxy cannot have more requests by naming others.
func TestWhoseForwardedAddressIsBelieved(t *testing.T) {
	synctest.Test(t, testWhoseForwardedAddressIsBelieved)
}

func testWhoseForwardedAddressIsBelieved(t *testing.T) {
	for _, peer := range []string{"10.0.0.7", "127.0.0.1", "192.168.1.1", "fc00::7"} {
		for _, proxies := range []auth.Proxies{nil, {netip.PrefixFrom(netip.MustParseAddr(peer), 8)}} {
			o := Options{Public: ":8250", Proxies: proxies}
			h := auth.NewGuard(auth.Config{Visitors: true, Proxies: o.config(t.TempDir()).Access.Proxies}).Handler(http.NotFoundHandler())
			code := 0
			for i := range auth.VisitorBurst + 1 {
				r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
				r.RemoteAddr = net.JoinHostPort(peer, "4242")
				r.Header.Set("X-Forwarded-For", fmt.Sprint("192.0.2.", i))
				h.ServeHTTP(w, r)
				code = w.Code
			}
			expect.Equal(t, code == http.StatusTooManyRequests, proxies == nil, "%s is limited with proxies %v", peer, proxies)
		}
	}
}

// A public demo shows messages to everybody, changes nothing for them, and begins again.
func TestPublic(t *testing.T) {
	brokertest.One(t, func(t *testing.T, v *brokertest.VHost) {
		said, address := &brokertest.Output{}, brokertest.Address(t)
		v.User("visited", "s3cret")
		v.Grant("visited", ".*", ".*", ".*")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- Run(ctx, Options{Broker: v.URLAs("visited", "s3cret"), Management: v.Management, For: 3 * time.Second,
				Out: said, Version: "test", Public: address})
		}()
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("it said:\n%s", said)
			}
		})
		ask := func(method, path string) (int, string) {
			r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
			expect.NoError(t, err)
			r.Host = "demo.example"
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				return 0, "" // it begins again
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			return resp.StatusCode, string(body)
		}
		brokertest.Eventually(t, "the page has a message that failed", func() bool {
			status, body := ask("GET", "/messages?wait=1")
			return status == 200 && strings.Contains(body, invoices)
		})
		brokertest.Eventually(t, "what is made up is not masked", func() bool {
			_, body := ask("GET", "/api/v1/messages?q=queue:"+invoices+"&columns=body.customer")
			return regexp.MustCompile(`"body\.customer":"\w`).MatchString(body)
		})
		brokertest.Eventually(t, "a change is refused", func() bool {
			status, body := ask("DELETE", "/api/v1/queues/"+orders+"/pause?reason=up")
			return status == 403 && strings.Contains(body, "read_only")
		})
		brokertest.Eventually(t, "where RabbitMQ is, is not shown", func() bool {
			status, body := ask("GET", "/api/v1/overview")
			if strings.Contains(body, "visited") || strings.Contains(body, "s3cret") {
				t.Fatalf("it shows a login: %s", body)
			}
			return status == 200
		})
		brokertest.Eventually(t, "it begins again", func() bool {
			return strings.Count(said.String(), "messages published") > 1
		})
		cancel()
		expect.NoError(t, brokertest.Receive(t, ended, "its end"))
		if strings.Contains(said.String(), "s3cret") {
			t.Errorf("it says the password:\n%s", said)
		}
	})
}
