package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/google/uuid"
)

// ErrUnreachable: no service answers there.
var ErrUnreachable = errors.New("no service answers")

// Client asks a running service.
type Client struct {
	Addr string // host:port
}

// Status of the service.
func (c Client) Status(ctx context.Context) (st Status, err error) {
	return st, c.call(ctx, http.MethodGet, "/api/v1/status", nil, &st)
}

// Messages is one page of a listing; "" and 0 leave a choice open.
func (c Client) Messages(ctx context.Context, state, queue, id, after string, limit int) (p Page, err error) {
	q := url.Values{}
	for k, v := range map[string]string{"state": state, "queue": queue, "id": id, "after": after} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return p, c.call(ctx, http.MethodGet, "/api/v1/messages?"+q.Encode(), nil, &p)
}

// Replay sends parked messages back, by ID or all of a queue.
func (c Client) Replay(ctx context.Context, ids []uuid.UUID, queue string) (r Replayed, err error) {
	return r, c.call(ctx, http.MethodPost, "/api/v1/replay", Selection{IDs: ids, Queue: queue}, &r)
}

func (c Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.Addr+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%w at %s: is `redrive serve` running there, and is --address its `listen`? (%v)", ErrUnreachable, c.Addr, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		var problem struct {
			Detail string `json:"detail"`
		}
		if json.Unmarshal(text, &problem) == nil && problem.Detail != "" {
			text = []byte(problem.Detail)
		}
		return fmt.Errorf("the service at %s says %s: %s", c.Addr, resp.Status, bytes.TrimSpace(text))
	}
	return json.NewDecoder(resp.Body).Decode(out)
}
