package page_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/server"
)

// The page about all virtual hosts has a line of each, renews itself, and is no page of one.
func TestThePageAboutAllVirtualHosts(t *testing.T) {
	t.Parallel()
	const hostile = "\"><img src=x onerror=alert(1)>"
	c := config.Default()
	c.Broker.URL, c.Store.Disk, c.Listen = "amqp://guest:guest@127.0.0.1:1/shop", t.TempDir(), "127.0.0.1:0"
	c.Broker.VHosts = []config.VHost{{Name: hostile}, {Name: "eu-orders", VHost: "shop", URL: "amqp://guest:guest@127.0.0.1:2"}}
	s, err := server.New(c, server.Options{Version: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	b := newTab(t, "http://"+s.Addr())
	step := steps(t)
	step("each has its line, and is led to", func() {
		b.open("/")
		b.follow(`.vhosts a[href="/all"]`, "#vhosts")
		b.says("h1", "All virtual hosts")
		if b.has("img") || b.has("#live") || b.has(".pages") {
			t.Error("it is a page of one, or a name is more than text")
		}
		b.look("all virtual hosts")
		b.picture("vhosts-all")
		b.follow(`#vhosts a[href="/v/eu-orders/"]`, "#numbers")
	})
	step("it renews itself", func() {
		b.open("/all")
		js[bool](b, `document.querySelector("#vhosts tbody").replaceChildren() === undefined`)
		b.until("the lines are there again", `document.querySelectorAll("#vhosts tbody tr").length === 3`)
	})
}
