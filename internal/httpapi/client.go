package httpapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/hint"
)

// Client asks a running service: a method for each route. Its methods may be called
// at once. Their errors are ErrUnreachable, or what the service says: a *Problem,
// which errors.Is takes for inspect.ErrNotFound, auth.ErrForbidden and so on.
type Client struct {
	// Addr is host:port, asked without TLS, or a URL: https://redrive.example:8250.
	Addr string
	// Token signs in; or User with Password.
	Token, User, Password string
	// Insecure sends them without TLS beyond this machine too.
	Insecure bool
	// HTTP does the calls; nil: one with the system's certificates.
	HTTP *http.Client
}

// NewClient makes a client of an address and the environment:
//
//	REDRIVE_TOKEN     signs in; or …_FILE
//	REDRIVE_USER      … with REDRIVE_PASSWORD (or …_FILE), as a user of RabbitMQ's
//	REDRIVE_CA_FILE   certificates that sign the service's, besides the system's
//	REDRIVE_INSECURE  1 sends them without TLS beyond this machine
func NewClient(addr string, getenv func(string) string) (Client, error) {
	c := Client{Addr: addr, User: getenv("REDRIVE_USER"), Insecure: getenv("REDRIVE_INSECURE") == "1"}
	for name, to := range map[string]*string{"REDRIVE_TOKEN": &c.Token, "REDRIVE_PASSWORD": &c.Password} {
		*to = getenv(name)
		if file := getenv(name + "_FILE"); file != "" {
			data, err := os.ReadFile(file)
			if err != nil {
				return c, fmt.Errorf("%s_FILE: %w", name, err)
			}
			*to = strings.TrimSpace(string(data))
		}
	}
	file := getenv("REDRIVE_CA_FILE")
	if file == "" {
		return c, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return c, fmt.Errorf("REDRIVE_CA_FILE: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return c, fmt.Errorf("REDRIVE_CA_FILE: %s has no certificate in PEM", file)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	c.HTTP = &http.Client{Transport: transport}
	return c, nil
}

// URL is where the service is, checked.
func (c Client) URL() (string, error) {
	u, err := c.base()
	if err != nil {
		return "", err
	}
	return u.Scheme + "://" + u.Host + strings.TrimSuffix(u.EscapedPath(), "/"), nil
}

// base is the URL before the path of each route.
func (c Client) base() (*url.URL, error) {
	addr := c.Addr
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	u, err := url.Parse(addr)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%q is no address of a service: expected host:port or https://host:port", c.Addr)
	}
	if (c.Token != "" || c.User != "") && u.Scheme == "http" && !c.Insecure && !auth.Loopback(u.Host) {
		return nil, hint.Errorf("use https://, or set REDRIVE_INSECURE=1 where the network may read it", "a token or password is not sent to %s without TLS", u.Host)
	}
	return u, nil
}

// request is a call to make.
type request struct {
	method, path string // the path with its parts escaped
	query        url.Values
	body         io.Reader
	contentType  string
	accept       string
}

// do makes a call. An answer that is not a success is an error; the caller closes
// the body of any other.
func (c Client) do(ctx context.Context, r request) (*http.Response, error) {
	u, err := c.base()
	if err != nil {
		return nil, err
	}
	target := u.Scheme + "://" + u.Host + strings.TrimSuffix(u.EscapedPath(), "/") + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, r.body)
	if err != nil {
		return nil, err
	}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	req.Header.Set("Accept", "application/json")
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	req.Header.Set(auth.InterfaceHeader, "cli")
	if path := req.URL.EscapedPath(); slashes(path) > 0 {
		req.Header.Set(auth.PathHeader, path)
	}
	switch {
	case c.Token != "":
		req.Header.Set("Authorization", "Bearer "+c.Token)
	case c.User != "":
		req.SetBasicAuth(c.User, c.Password)
	}
	h := http.Client{}
	if c.HTTP != nil {
		h = *c.HTTP
	}
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := h.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var problem *Problem
		if errors.As(err, &problem) { // of the body that was read for it
			return nil, problem
		}
		return nil, fmt.Errorf("%w at %s: is `redrive serve` running there, and is --address its `listen`? (%v)", ErrUnreachable, c.Addr, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.errorOf(resp)
}

// errorOf returns the error of an answer that is no success.
func (c Client) errorOf(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	p := &Problem{}
	if json.Unmarshal(text, p) != nil || p.Detail == "" { // not the service, or a proxy before it
		p = &Problem{Detail: string(bytes.TrimSpace(text[:min(len(text), 500)]))}
	}
	if p.Status = resp.StatusCode; p.Code == "" {
		p.Code = codeOf(p.Status)
	}
	return fmt.Errorf("the service at %s says %s: %w", c.Addr, resp.Status, p)
}

// call sends in (nil: nothing) as JSON and reads the answer into out (nil: none).
func (c Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	r := request{method: method, path: path, query: query}
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		r.body, r.contentType = bytes.NewReader(data), "application/json"
	}
	resp, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("what answers at %s does not speak like Redrive: %w", c.Addr, err)
	}
	return nil
}

// escaped is a path made of parts, each escaped.
func escaped(parts ...string) string {
	var path strings.Builder
	for _, p := range parts {
		path.WriteString("/" + addresses.PathPart(p))
	}
	return path.String()
}

// values are parameters of a URL; empty ones are left out.
func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}
