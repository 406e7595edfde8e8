package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/operations"
)

const (
	// heartbeat is how often a comment is sent while nothing changes, and the watcher's
	// permission is checked again.
	heartbeat = 15 * time.Second
	// watchFor is how long one stream lasts. The client then asks again by itself.
	watchFor = 10 * time.Minute
)

// EndStreams ends all that would not end by itself: for http.Server's
// RegisterOnShutdown.
func (a *API) EndStreams() { a.closeOnce.Do(func() { close(a.closing) }) }

func (a *API) liveRoute() {
	op := route(http.MethodGet, "/live", "live", "See", "What has changed, as server-sent events")
	op.Description = "Each event's data is a Tick as JSON, at most one a second. A stream ends with the event `again` after a while; ask again then."
	a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[operations.Tick](), true, "")
	stream(a, op, []string{typeEvents}, func(ctx context.Context, c auth.Caller, _ *none, w http.ResponseWriter, _ *http.Request) error {
		if err := c.May(auth.Viewer, ""); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, watchFor)
		defer cancel()
		h := w.Header()
		h.Set("Content-Type", typeEvents)
		h.Set("X-Accel-Buffering", "no") // a proxy that buffers would delay it
		out := http.NewResponseController(w)
		send := func(format string, args ...any) error {
			if _, err := fmt.Fprintf(w, format, args...); err != nil {
				return err
			}
			return out.Flush()
		}
		if err := send("retry: 2000\n: redrive\n\n"); err != nil {
			return nil // gone; no client is left to answer
		}
		beat := time.NewTicker(heartbeat)
		defer beat.Stop()
		ticks := a.Console.Watch(ctx, c)
		for {
			var err error
			select {
			case t, ok := <-ticks:
				if !ok {
					if ctx.Err() != nil { // else the store does not answer, and asking again at once would not help
						_ = send("event: again\ndata: {}\n\n")
					}
					return nil
				}
				var data []byte
				if data, err = json.Marshal(t); err == nil {
					err = send("event: tick\ndata: %s\n\n", data)
				}
			case <-beat.C:
				if err = auth.Still(ctx); err == nil {
					err = send(": still here\n\n")
				}
			case <-a.closing:
				return nil
			}
			if err != nil {
				return nil
			}
		}
	})
}
