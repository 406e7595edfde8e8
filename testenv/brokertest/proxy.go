package brokertest

import (
	"net/url"
	"testing"

	"github.com/redrive-mq/redrive/testenv/proxy"
)

// Proxy stands between a client and a broker.
type Proxy struct {
	*proxy.Proxy
	URL string // of the broker, by way of the proxy
}

// NewProxy makes a proxy to the broker of a virtual host.
func NewProxy(t testing.TB, v *VHost) *Proxy {
	t.Helper()
	p := &Proxy{Proxy: proxy.New(t, v.host())}
	p.URL = p.At(v.URL())
	return p
}

// At is a URL of the broker's, by way of the proxy.
func (p *Proxy) At(brokerURL string) string {
	u, _ := url.Parse(brokerURL)
	u.Host = p.Addr()
	return u.String()
}
