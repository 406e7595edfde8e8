package auth

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/hint"
)

// Proxies are the addresses whose header X-Forwarded-For is believed.
type Proxies []netip.Prefix

func (p Proxies) has(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}

// client returns the address that a request comes from: the last one in X-Forwarded-For that is no
// proxy of ours. A caller can make up what is before it.
func (p Proxies) client(r *http.Request) netip.Addr {
	at := peer(r)
	forwarded := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(forwarded) - 1; i >= 0 && p.has(at); i-- {
		a, err := netip.ParseAddr(strings.TrimSpace(forwarded[i]))
		if err != nil {
			break
		}
		at = a.Unmap().WithZone("")
	}
	return at
}

// peer returns the address at the other end of the connection.
func peer(r *http.Request) netip.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr)
	return at.Addr().Unmap().WithZone("")
}

// limited returns the key under which failures count together: an IPv4 address, or the IPv6 network
// that one customer of a provider has.
func limited(a netip.Addr) string {
	if a.Is6() {
		network, _ := a.Prefix(64)
		return network.String()
	}
	return a.String()
}

// local returns nil for a request from this machine. Without sign-in its callers are administrators,
// so others must not pass for them: a web page whose own host name resolves to 127.0.0.1 (Host is
// that name then), or callers that come by a proxy.
func local(r *http.Request) error {
	if !Loopback(r.Host) {
		return hint.New("forbidden", "ask for this service by its loopback address")
	}
	if !peer(r).IsLoopback() {
		return hint.New("forbidden", "this service answers only its own machine; configure auth to let others sign in")
	}
	by := ""
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded-") || slices.Contains([]string{"Forwarded", "X-Real-Ip", "Via"}, name) {
			by = "it has the header " + name
		}
	}
	if !r.ProtoAtLeast(1, 1) {
		by = "it is HTTP/1.0" // as nginx asks, which adds no header unless told to
	}
	if by != "" {
		return hint.New("forbidden", "this came by a proxy ("+by+"), and this service has no sign-in: configure auth before others can reach this service")
	}
	return nil
}

// Loopback tells whether a host, with a port or without, is localhost or a loopback address.
func Loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Foreign tells whether a page of another site has caused a browser to send the request.
func Foreign(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}
