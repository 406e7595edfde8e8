package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/internal/hint"
)

var (
	errPrivate  = errors.New("notifications do not go to private addresses")
	errRedirect = hint.Errorf("give the final URL", "it answers with a redirect, which is not followed")
)

const (
	longestSend   = 20 * time.Second
	longestAnswer = 4 << 10
)

// client is the only HTTP client: to public addresses, without proxies and redirects, in
// bounded time.
type client struct {
	http *http.Client
	dial *net.Dialer
}

func newClient(allowed []netip.Prefix) *client {
	dial := &net.Dialer{Timeout: 10 * time.Second, Control: guard(allowed)}
	return &client{dial: dial, http: &http.Client{
		Timeout:       longestSend,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect },
		Transport:     transport(dial, nil),
	}}
}

// transport leaves out Proxy: one from the environment would dial for us.
func transport(dial *net.Dialer, security *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext: dial.DialContext, DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: security,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: longestSend, MaxResponseHeaderBytes: 16 << 10,
	}
}

// request is one request to a service.
type request struct {
	url    string
	header http.Header
	body   any // as JSON
	tls    *tls.Config
}

// busyError is an answer that says when to try again.
type busyError struct {
	error
	after time.Duration
}

func (b busyError) Unwrap() error { return b.error }

// refusedError is an answer that this request is wrong, though the service works: 400 to 499.
type refusedError struct{ error }

func (r refusedError) Unwrap() error { return r.error }

// do sends it, and returns the beginning of the answer. Its errors repeat neither the
// URL nor the answer: either may contain a secret.
func (c *client) do(ctx context.Context, r request) ([]byte, error) {
	body, err := json.Marshal(r.body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return nil, errURL
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "redrive")
	maps.Copy(req.Header, r.header)
	sender := *c.http
	if r.tls != nil {
		sender.Transport = transport(c.dial, r.tls)
	}
	resp, err := sender.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, longestAnswer))
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		err := fmt.Errorf("it answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
		if s, e := strconv.Atoi(resp.Header.Get("Retry-After")); e == nil && s > 0 {
			return nil, busyError{err, min(time.Duration(min(s, 3600))*time.Second, time.Hour)}
		}
		if c := resp.StatusCode; c >= 400 && c <= 499 && c != http.StatusRequestTimeout && c != http.StatusTooManyRequests {
			err = refusedError{err}
		}
		return nil, err
	}
	return answer, err
}
