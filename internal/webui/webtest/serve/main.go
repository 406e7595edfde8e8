// Command serve shows the page with a made-up shop behind it, to work on the page
// without RabbitMQ: go run ./internal/webui/webtest/serve
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"log"
	"net/http"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/inspect"
	"github.com/redrive-mq/redrive/internal/operations"
	"github.com/redrive-mq/redrive/internal/simulate"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/internal/webui"
	"github.com/redrive-mq/redrive/internal/webui/webtest"
	"github.com/redrive-mq/redrive/policy"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8260", "address")
	state := flag.String("state", "", "empty, error, slow, readonly, bounded, viewer, vhosts or many")
	flag.Parse()
	now := time.Now()
	shop := webtest.New(now)
	caller := auth.Caller{Name: "dana", How: "rabbitmq", Role: auth.Admin, Interface: "page"}
	o := webui.Options{Caller: func(*http.Request) auth.Caller { return caller }, Simulation: storm, Version: "1.4.0"}
	switch *state {
	case "empty":
		shop = &webtest.Shop{Now: now, Hour: make([]inspect.Flow, 60), Plans: map[string]operations.Plan{}}
	case "many":
		for i := range 3000 {
			q := shop.QueueList[i%len(shop.QueueList)]
			q.Name = fmt.Sprintf("%s.tenant-%04d.europe-west-3.long-names-are-usual-here", q.Name, i)
			shop.QueueList = append(shop.QueueList, q)
		}
	case "error":
		shop.Fails = errors.New("the store cannot be read: redrive-data/000214.sst: input/output error")
	case "slow":
		shop.Slow = true
	case "readonly":
		caller.ReadOnly = true
	case "bounded":
		shop.Bounded = "only the latest 100,000 of 1,204,332 messages, since bodies have to be decoded for this query"
	case "viewer":
		caller.Role = auth.Viewer
	case "vhosts":
		o.VHost, o.Base = "shop/eu", httpapi.Base("shop/eu")
		o.All = "/all"
		o.VHosts = func() []webui.VHost {
			return []webui.VHost{{Name: "/", URL: "/", Ready: true}, {Name: o.VHost, URL: o.Base + "/", Ready: true, Here: true}, {Name: "billing", URL: httpapi.Base("billing") + "/"}}
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/", webui.Handler(shop, o))
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /api/v1/live", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for n := int64(0); ; n++ {
			data, _ := json.Marshal(operations.Tick{Totals: inspect.Totals{At: time.Now(), Waiting: 64 + n, Parked: 81, PerMinute: inspect.Flow{Failed: 491 + n%7, Retried: 410, Parked: 9}, Problems: shop.Problems}, Failed: n % 2})
			fmt.Fprintf(w, "event: tick\ndata: %s\n\n", data)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-tick.C:
			}
		}
	})
	log.Println("http://" + *listen + o.Base + "/")
	log.Fatal(http.ListenAndServe(*listen, httpapi.Under(o.Base, mux)))
}

// storm is what a policy does in an outage; of all the same.
func storm(ctx context.Context, _ string) template.HTML {
	b := throttle.DefaultBreaker()
	r, err := simulate.Run(ctx, simulate.Brief(policy.Default(), throttle.Rules{Rate: 200, Breaker: &b}))
	if err != nil {
		return ""
	}
	return template.HTML(r.SVG())
}
