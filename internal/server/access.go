package server

import (
	"net/http"
	"strings"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/store"
)

// newGuard makes the guard, which finds out who calls.
func (s *vhost) newGuard(tokens *auth.Tokens) (*auth.Guard, error) {
	a := &s.config.Access
	var users *auth.Users
	if s.config.Broker.Management != "" {
		api, err := s.config.Broker.API(s.config.VHost())
		if err != nil {
			return nil, err
		}
		users = auth.NewUsers(api, s.config.VHost(), a.Roles)
		users.RememberIn(s.store)
	}
	var sessions store.SideTable // nil: in memory
	if s.replica != nil {
		sessions = s.store
	}
	return auth.NewGuard(auth.Config{
		All:      s.all,
		Sessions: sessions,
		Required: a.SignIn, ReadOnly: a.ReadOnly, Tokens: tokens, Users: users, Proxies: a.Proxies,
		Secure: a.HasTLS() || a.BehindProxy, SignInPage: auth.SignInPath, Base: s.base, Log: s.Log,
		Public: func(r *http.Request) bool {
			return httpapi.Public(r) || strings.HasPrefix(r.URL.Path, "/assets/") || a.OpenMetrics && r.URL.Path == "/metrics"
		},
	}), nil
}
