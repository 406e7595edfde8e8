package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/redrive-mq/redrive/internal/api"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/config"
)

// listenOn opens the port. A name in the configuration may turn out to be an address
// that others can reach.
func listenOn(c *config.Config) (net.Listener, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", c.Listen, err)
	}
	if !auth.Loopback(l.Addr().String()) && !c.Access.SignIn {
		l.Close()
		return nil, fmt.Errorf("listen is %q, which is %s here, and other machines can reach that: set `auth: {}`, or listen on 127.0.0.1", c.Listen, l.Addr())
	}
	return l, nil
}

// guard says who calls.
func (s *Service) guard(tokens *auth.Tokens) (*auth.Guard, error) {
	a := &s.config.Access
	var users *auth.Users
	if at := s.config.Broker.Management; at != "" {
		var err error
		if users, err = auth.NewUsers(at, s.config.VHost(), a.Roles); err != nil {
			return nil, err
		}
	}
	var sessions auth.SessionStore // nil: in memory
	if s.fleet != nil {
		sessions = s.store
	}
	return auth.NewGuard(auth.Config{
		Sessions: sessions,
		Required: a.SignIn, ReadOnly: a.ReadOnly, Tokens: tokens, Users: users, Proxies: a.Proxies,
		Secure: a.HasTLS() || a.BehindProxy, SignInPage: auth.SignInPath, Log: s.Log,
		Public: func(r *http.Request) bool {
			return api.Public(r) || strings.HasPrefix(r.URL.Path, "/assets/") || a.OpenMetrics && r.URL.Path == "/metrics"
		},
	}), nil
}

// tls is what the server proves itself with; nil for plain HTTP.
func (s *Service) tls() (*tls.Config, error) {
	if !s.config.Access.HasTLS() {
		return nil, nil
	}
	return auth.TLS(s.config.Access.TLS, s.Log)
}

// serve answers until the server closes.
func (s *Service) serve(server *http.Server) {
	serve := server.Serve
	if server.TLSConfig != nil {
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	if err := serve(s.listen); !errors.Is(err, http.ErrServerClosed) {
		s.Log.Error("page and API answer nobody any more; messages return as before", "error", err)
	}
}
