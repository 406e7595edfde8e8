// Command serve shows the page of a made-up shop, to work on the page without RabbitMQ:
// go run ./internal/webui/webtest/serve
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net/http"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
	"github.com/redrive-mq/redrive/testenv/memstore"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8260", "address")
	state := flag.String("state", "", "empty, error, slow, readonly, bounded or vhosts")
	flag.Parse()
	shop := webtest.Stocked(inspect.Config{ReadOnly: *state == "readonly"})
	var page webui.Options
	switch *state {
	case "empty":
		shop = webtest.New(memstore.New(), nil, inspect.Config{})
	case "error":
		shop.Fails = errors.New("the store cannot be read: redrive-data/000214.sst: input/output error")
	case "slow":
		shop.Slow = true
	case "bounded":
		shop.Bounded = webtest.Bounded
	case "vhosts":
		page.VHost, page.Base = "shop/eu", httpapi.Base("shop/eu")
		page.VHosts = func() []webui.VHost { return webtest.VHosts("/", page.VHost, "billing") }
	}
	go shop.Inspector.Run(context.Background())
	go shop.Runner.Run(context.Background())
	api := shop.API(page, auth.Config{ReadOnly: *state == "readonly"})
	log.Println("http://" + *listen + page.Base + "/")
	log.Fatal(http.ListenAndServe(*listen, httpapi.Under(page.Base, api)))
}
