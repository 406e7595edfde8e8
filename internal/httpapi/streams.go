package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/operations"
)

// countTrailer says, after a whole export, how many messages it has.
const countTrailer = "Redrive-Count"

// Body is a message's raw body, by id or key. The caller closes it.
func (c Client) Body(ctx context.Context, id string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: v1 + "/messages" + escaped(id) + "/body", accept: "application/octet-stream"})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Export writes what a query finds: as jsonl, which Import takes, byte for byte the
// same, or as csv, for people. An error after n messages means that some are missing.
func (c Client) Export(ctx context.Context, query, format string, w io.Writer) (n int64, err error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: v1 + "/export", query: values("q", query, "format", format), accept: "*/*"})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return 0, fmt.Errorf("the export is not whole: %w", err)
	}
	if n, err = strconv.ParseInt(resp.Trailer.Get(countTrailer), 10, 64); err != nil {
		return 0, errors.New("the export is not whole: the service did not say how many messages it has")
	}
	return n, nil
}

// Import sends an export back to be kept.
func (c Client) Import(ctx context.Context, r io.Reader, o actions.ImportOptions) (done actions.Imported, err error) {
	q := values()
	for name, set := range map[string]bool{"dry_run": o.DryRun, "as_is": o.AsIs} {
		if set {
			q.Set(name, "true")
		}
	}
	resp, err := c.do(ctx, request{method: http.MethodPost, path: v1 + "/import", query: q, body: r, contentType: typeJSONLines})
	if err != nil {
		return done, err
	}
	defer resp.Body.Close()
	return done, json.NewDecoder(resp.Body).Decode(&done)
}

// Live calls tick about once a second when something has changed, until ctx or the
// connection ends or tick fails. Its error is never nil.
func (c Client) Live(ctx context.Context, tick func(operations.Tick) error) error {
	for {
		again, err := c.live(ctx, tick)
		if err != nil || !again {
			return errors.Join(err, ctx.Err())
		}
	}
}

// live reads one stream, and tells whether the service ended it to begin another.
func (c Client) live(ctx context.Context, tick func(operations.Tick) error) (again bool, err error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: v1 + "/live", accept: typeEvents})
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case lines.Text() == "event: again":
			return ctx.Err() == nil, nil
		case !ok:
			continue
		}
		var t operations.Tick
		if err := json.Unmarshal([]byte(data), &t); err != nil {
			return false, fmt.Errorf("what answers at %s does not speak like Redrive: %w", c.Addr, err)
		}
		if err := tick(t); err != nil {
			return false, err
		}
	}
	if ctx.Err() != nil {
		return false, nil
	}
	return false, fmt.Errorf("%w at %s any more: %v", ErrUnreachable, c.Addr, lines.Err())
}
