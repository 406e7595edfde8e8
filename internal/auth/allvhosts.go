package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
)

// The page about all virtual hosts shows of each what the session there may see. Browsers send the
// cookie of a session to the paths of its own virtual host alone, so the session has a second one:
// for that page's path, under a name of its own.

// allCookieName returns the name of the session's cookie for the page about all virtual hosts.
func (g *Guard) allCookieName() string {
	sum := sha256.Sum256([]byte(g.Base))
	name := "redrive-all-" + hex.EncodeToString(sum[:8])
	if g.Secure {
		return "__Secure-" + name
	}
	return name
}

// ForAll returns a request for the page about all virtual hosts as this guard reads one: of the
// browser's sessions it has only those that were begun here.
func (g *Guard) ForAll(r *http.Request) *http.Request {
	own := r.Clone(r.Context())
	own.Header.Del("Cookie")
	for _, name := range []string{g.allCookieName(), g.cookieName()} {
		for _, c := range r.CookiesNamed(name) {
			own.AddCookie(&http.Cookie{Name: g.cookieName(), Value: c.Value})
		}
	}
	return own
}
