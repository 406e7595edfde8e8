package page_test

import (
	"context"
	"os"
	"regexp"
	"sync"
	"testing"

	"github.com/redrive-mq/redrive/internal/demo"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

var pageOf = regexp.MustCompile(`The page: (http://[0-9.:]+)/`)

// publish makes what the tab shows a picture of the README.
func (b *tab) publish(name string) {
	b.t.Helper()
	data, err := small(b.picture("demo-" + name))
	if err == nil {
		err = os.WriteFile("../../docs/images/"+name+".png", data, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// picturesOfTheDemo takes the README's pictures of what make run shows after a minute
// and a half, when a few invoices are parked and the payment service is down.
func picturesOfTheDemo(t *testing.T) {
	brokers := brokertest.All(t)
	vhost := brokertest.NewVHost(t, brokers[len(brokers)-1])
	said := &brokertest.Output{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		if err := demo.Run(ctx, demo.Options{Broker: vhost.URL(), Management: vhost.Management, Out: said, Version: "demo"}); err != nil {
			t.Errorf("the demo ended with %v, and said:\n%s", err, said)
		}
	})
	brokertest.Eventually(t, "the demo has its page", func() bool { return pageOf.MatchString(said.String()) })
	b := newTab(t, pageOf.FindStringSubmatch(said.String())[1])

	// The story goes on for longer than a page may take.
	becomes := func(is string) {
		for range 40 {
			if js[bool](b, `new Promise(answer => { let n = 0, i = setInterval(() => { if (`+is+` || ++n > 50) { clearInterval(i); answer(n <= 50); } }, 100) })`) {
				return
			}
		}
		t.Fatalf("in the demo it never became so: %s\n%s", is, b.where())
	}
	b.open("/")
	becomes(`document.querySelector('[data-live="parked"]').textContent >= 8`)
	b.leave(func() { b.open("/messages?q=state%3Aparked") }, "#matching")
	b.follow(`#matching button[value="replay"]`, "#start-button")
	b.write("input[name=rate]", "0.2")
	b.write("input[name=reason]", "the lamps have prices again")
	b.follow("#start-button", "#progress")
	operation := b.path()

	b.open("/messages?q=state%3Aparked+error%3Aprice")
	b.keys("j")
	b.leave(func() { b.keys("\r") }, "#body .schema")
	b.publish("message")
	b.open(operation)
	b.says("#outcomes", "done")
	b.publish("operation")
	b.open("/")
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		// The numbers follow at once, the calendar every few seconds.
		becomes(`(n => n >= 8 && n == document.querySelector("#calendar td.n")?.textContent)(document.querySelector('[data-live="waiting"]').textContent)`)
		b.publish("overview-" + scheme)
	}
	b.expect("ERR_CONNECTION") // the page outlives the demo
}
