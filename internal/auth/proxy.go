package auth

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// ProxyConfig configures proxies that sign people in and name them in headers, and the roles of their groups.
type ProxyConfig struct {
	UserHeader   string           // "": they name no one
	GroupsHeader string           // its groups are separated by commas
	Groups       map[string]Grant // by group
	Contact      string           // whom to ask for a role
	SignOut      string           // where people sign out at the proxy; "": nowhere
}

// maxGroups is the longest header with groups, in bytes.
const maxGroups = 16 << 10

// named reports whether a request has a user's name from one of our proxies.
func (g *Guard) named(r *http.Request) bool {
	return g.Proxy.UserHeader != "" && g.Proxies.has(peer(r)) &&
		strings.TrimSpace(strings.Join(r.Header.Values(g.Proxy.UserHeader), "")) != ""
}

// byProxy returns whom the proxy names. Its errors are ErrForbidden and NoRoleError.
func (g *Guard) byProxy(r *http.Request) (Caller, error) {
	user, err := single(r, g.Proxy.UserHeader, maxName)
	if err == nil && strings.Contains(user, ",") { // somebody before the proxy may have set the header too
		err = fmt.Errorf("%w: the proxy's header %s has a comma", ErrForbidden, g.Proxy.UserHeader)
	}
	groups, wrong := single(r, g.Proxy.GroupsHeader, maxGroups)
	if err = errors.Join(err, wrong); err != nil {
		return Caller{}, err
	}
	in := strings.Split(groups, ",")
	for i := range in {
		in[i] = strings.TrimSpace(in[i])
	}
	c, err := member("proxy", user, in, g.Proxy.Groups, g.Proxy.Contact)
	var none *NoRoleError
	if errors.As(err, &none) {
		none.Proxied, none.SignOut = true, g.Proxy.SignOut
	}
	return c, err
}

// single returns the only value of a header.
func single(r *http.Request, name string, most int) (string, error) {
	values := r.Header.Values(name)
	value := strings.TrimSpace(strings.Join(values, ""))
	wrong := ""
	switch {
	case len(values) > 1:
		wrong = "came more than once"
	case len(value) > most:
		wrong = fmt.Sprintf("has more than %d bytes", most)
	case !graphic(value):
		wrong = "has characters that cannot be shown"
	default:
		return value, nil
	}
	return "", fmt.Errorf("%w: the proxy's header %s %s", ErrForbidden, name, wrong)
}

// NoRole returns what would give a role to whom a proxy names; nil for anyone else.
func (g *Guard) NoRole(r *http.Request) (none *NoRoleError) {
	if g != nil && g.named(r) {
		_, err := g.byProxy(r)
		errors.As(err, &none)
	}
	return none
}

// SignOutAt returns where a caller signs out who cannot do so here; "" is nowhere.
func (g *Guard) SignOutAt(c Caller) string {
	if g == nil || c.How != "proxy" {
		return ""
	}
	return g.Proxy.SignOut
}
