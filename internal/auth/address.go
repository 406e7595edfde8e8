package auth

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Proxies are the addresses whose word about where a request came from is believed.
type Proxies []netip.Prefix

func (p Proxies) has(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}

// client is where a request came from: the last address that no proxy of ours
// wrote. What is before it in the header is the caller's to invent.
func (p Proxies) client(r *http.Request) netip.Addr {
	at := peer(r)
	said := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(said) - 1; i >= 0 && p.has(at); i-- {
		a, err := netip.ParseAddr(strings.TrimSpace(said[i]))
		if err != nil {
			break
		}
		at = a.Unmap().WithZone("")
	}
	return at
}

// peer is whom the connection is with.
func peer(r *http.Request) netip.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr)
	return at.Addr().Unmap().WithZone("")
}

// limited is whose failures count together: an address, or the network that one
// customer of a provider has all of.
func limited(a netip.Addr) string {
	if a.Is6() {
		network, _ := a.Prefix(64)
		return network.String()
	}
	return a.String()
}

// local is nil for a request of this machine's own. Where no one signs in, any other
// would make an administrator of a stranger: a page that points a name of its own
// at 127.0.0.1 (the Host then is that name), or whoever a proxy lets through.
func local(r *http.Request) error {
	if !Loopback(r.Host) {
		return errors.New("ask for this service by its loopback address")
	}
	if !peer(r).IsLoopback() {
		return errors.New("this service answers only its own machine; configure auth to let others sign in")
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
		return errors.New("this came by a proxy (" + by + "), and this service has no sign-in: configure auth before others can reach this service")
	}
	return nil
}

// Loopback tells whether a host, with a port or without, is this machine by its name
// or address.
func Loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Foreign tells whether a page of another site makes a browser ask for this.
func Foreign(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}
