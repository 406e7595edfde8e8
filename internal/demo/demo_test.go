package demo

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/testenv/expect"
)

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
