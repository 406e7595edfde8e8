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
	"slices"
	"strconv"
	"syscall"
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
		return nil, err
	}
	return answer, err
}

// privateNetworks are those that are not on the internet: this machine, its neighbours and
// its cloud's metadata. IPv6 networks that embed an IPv4 address are among them, since it is
// not known where they lead.
var privateNetworks = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
	"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16",
	"fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
)

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// guard is a net.Dialer's Control: it sees the address of the connection, after name
// resolution, so no name can lead elsewhere in between.
func guard(allowed []netip.Prefix) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%q is no address", address)
		}
		ip := at.Addr().Unmap().WithZone("")
		in := func(p netip.Prefix) bool { return p.Contains(ip) }
		if slices.ContainsFunc(privateNetworks, in) && !slices.ContainsFunc(allowed, in) {
			return fmt.Errorf("%w: %s (if that is meant, add it to notify.allow_private)", errPrivate, ip)
		}
		return nil
	}
}
