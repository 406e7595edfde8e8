package notify

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

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
