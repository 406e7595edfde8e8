package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/notify"
)

func (p *program) notify() *cobra.Command {
	c := &cobra.Command{
		Use:   "notify",
		Short: "Try the notifications",
		Long: `Try the notifications. The config file has their routes, under notify:
see docs/how-to/notifications.md.`,
	}
	c.AddCommand(p.notifyTest())
	return commandGroup(c)
}

// routeTest is what came of a test of one route.
type routeTest struct {
	Route  string `json:"route"`
	Event  string `json:"event"`
	Result string `json:"result"` // sent or failed
	Error  string `json:"error,omitempty"`
}

func (p *program) notifyTest() *cobra.Command {
	var event string
	c := &cobra.Command{
		Use:   "test [ROUTE]",
		Short: "Send a test message by each route, or by one, and show the result",
		Long: `Send a test message by each route of the config file, or by one, and show the result. The
message says that it is a test. It is sent from this machine, whatever the route's events,
queues and quiet hours; no service has to run.

Exit codes: 0 all were sent, 3 some, 1 none; 6 there is no such route, or no route.`,
		Example: "  redrive notify test --config redrive.yaml\n  redrive notify test pager --event intake_stopped --config redrive.yaml",
		Args:    argsBetween(0, 1, "one route, or none for all"),
		RunE: func(c *cobra.Command, args []string) error {
			if !slices.Contains(notify.KindNames(), event) {
				return fmt.Errorf("--event %q: expected %s: %w", event, strings.Join(notify.KindNames(), ", "), errUsage)
			}
			cfg, err := p.load()
			if err != nil {
				return err
			}
			routes, err := routesNamed(cfg.Notify.Routes, args)
			if err != nil {
				return err
			}
			all, failed := sendTests(c.Context(), &cfg.Notify, routes, notify.Kind(event))
			columns := []column[routeTest]{{Field: "Route"}, {Field: "Result"}, {Field: "Error"}}
			if err := listColumns(p, all, all, columns); err != nil || failed == 0 {
				return err
			}
			code := ExitPartly
			if failed == len(all) {
				code = ExitError
			}
			return exitErrorf(code, "%d of %d routes failed", failed, len(all))
		},
	}
	p.withConfig(c, "the config file (YAML)")
	c.Flags().StringVar(&event, "event", "parked", "the event of the message: "+strings.Join(notify.KindNames(), ", "))
	return p.withOutput(withVHost(c))
}

// routesNamed are the routes to test: the one that the argument names, or all.
func routesNamed(all []notify.Route, args []string) ([]notify.Route, error) {
	if len(args) > 0 {
		all = slices.DeleteFunc(slices.Clone(all), func(r notify.Route) bool { return r.Name != args[0] })
	}
	switch {
	case len(all) == 0 && len(args) > 0:
		return nil, exitErrorf(ExitNotFound, "%w", hint.Errorf("see notify.routes", "the config has no route %q", args[0]))
	case len(all) == 0:
		return nil, exitErrorf(ExitNotFound, "%w", hint.Errorf("see notify.routes in redrive.example.yaml", "the config has no routes, so nothing is sent"))
	}
	return all, nil
}

// sendTests sends a test message by each route, all at once, and counts those that failed.
func sendTests(ctx context.Context, cfg *notify.Settings, routes []notify.Route, event notify.Kind) (all []routeTest, failed int) {
	all = make([]routeTest, len(routes))
	var sending sync.WaitGroup
	for i := range routes {
		sending.Go(func() {
			all[i] = routeTest{Route: routes[i].Name, Event: string(event), Result: "sent"}
			if err := notify.Test(ctx, cfg, &routes[i], event); err != nil {
				all[i].Result, all[i].Error = "failed", err.Error()
			}
		})
	}
	sending.Wait()
	for _, t := range all {
		if t.Error != "" {
			failed++
		}
	}
	return all, failed
}
