package page_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// On a real broker: enrolled queues are listed before anything has failed, each has its page with
// its actions, and the doctor of the service finds out what the command does.
func TestQueuesOfARealBroker(t *testing.T) {
	s := newService(t)
	b := newTab(t, s.base)
	step := steps(t)

	step("an enrolled queue is listed without a failure", func() {
		b.open("/queues")
		b.says("#queues", "mail.send")
		b.says("#queues", "webhooks")
	})
	step("it has its page, where it is paused and resumed", func() {
		b.follow(`#queues a[href="/queues/mail.send"]`, "#flow")
		b.says("h1", "enrolled")
		b.says("main", "A failed message is retried up to 4 times, after 30s, 1m, 1m 30s and 2m")
		b.click("#actions summary")
		b.write("#actions input[name=reason]", "the provider blocks us")
		b.follow("#actions details button:not([data-copy])", "#did")
		b.says("h1", "mail.send")
		b.says("#wrong", "the provider blocks us")
		b.follow("#actions form button", "#did")
		b.says("#wrong", "OK.")
	})
	step("the doctor runs in the service", func() {
		b.open("/health")
		b.follow("#run-doctor", "#did")
		b.says("#doctor", "The doctor runs")
		brokertest.Eventually(t, "it has run", func() bool {
			answer, err := http.Get(s.base + "/api/v1/doctor")
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			return err == nil && strings.Contains(string(text), `"at":`) && strings.Contains(string(text), `"check":"dead-letter-exchange","status":"ok"`)
		})
		b.open("/health")
		b.says("#doctor", "checks are ok")
	})
}
