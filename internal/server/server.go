// Package server puts the service together. It alone knows every implementation, and starts and stops them in order.
// Read it in this order:
//
//	server.go       the service: New, Run, reload; one vhost for each virtual host; page, API, health and
//	                metrics of all of them behind one port
//	vhost.go        one virtual host: what it consists of, and the order in which they start and stop;
//	                several services on one store: members, leader, shared breakers
//	store.go        which engine is opened, and the check whose messages it has
//	throttle.go     the throttle that the scheduler asks, what its changes log, and what is shown of it
//	conditions.go   what is wrong or waits in this service, from which readiness and notifications
//	                follow; it passes each event to all listeners
//	console.go      what page and API are made of
//	brokerwatch.go  what is wrong with RabbitMQ's side: quarantine, foreign consumers
//	checkup.go      what redrive doctor finds about queues, for the page
package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/redrive-mq/redrive/internal/actions"
	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/config"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/hint"
	"github.com/redrive-mq/redrive/internal/httpapi"
	"github.com/redrive-mq/redrive/internal/metrics"
	"github.com/redrive-mq/redrive/internal/retry"
	"github.com/redrive-mq/redrive/internal/store"
	"github.com/redrive-mq/redrive/internal/store/diskstore"
	"github.com/redrive-mq/redrive/internal/webui"
)

// Options are the options of a service besides its configuration.
type Options struct {
	Version string
	Log     *slog.Logger
	// Watch, if not nil, passes new configurations to changed while the service runs, or the error of a refused one.
	Watch func(ctx context.Context, changed func(*config.Config, error))
	// Visitors lets everybody in as a viewer, at any address of Listen: for a public demo with data made up.
	Visitors bool
	// Events, if not nil, receives every event.
	Events retry.Listener
	// FS is the file system of stores on disk; nil: the machine's.
	FS vfs.FS
	// ConfirmTimeout is how long RabbitMQ may take to confirm a batch of messages that are to wait in it, before they
	// wait in the store instead; 0: 5 s.
	ConfirmTimeout time.Duration
}

// Service is one running Redrive. Make it with New, run it once with Run.
type Service struct {
	Options
	config  *config.Config
	vhosts  []*vhost // of broker.url first, then in the order of broker.vhosts
	listen  net.Listener
	secure  *tls.Config // nil: plain HTTP
	handler http.Handler
	// requests is read-locked by each request, and locked for good when the service answers no more.
	requests sync.RWMutex
	memory   *diskstore.Memory // of all stores on disk
}

// New opens the stores and the port; no message moves before Run. Call Close if you do not call Run.
func New(c *config.Config, o Options) (*Service, error) {
	if err := c.CheckExposure(); err != nil && !o.Visitors {
		return nil, err
	}
	all, err := c.PerVHost()
	if err != nil {
		return nil, err
	}
	s := &Service{Options: o, config: c}
	if err := s.open(all); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Service) open(all []*config.Config) (err error) {
	s.memory = diskstore.NewMemory(len(all))
	bounds, large := httpapi.NewBounds(), actions.NewLarge()
	for i, c := range all {
		o, at := s.Options, process{memory: s.memory, bounds: bounds, large: large}
		if len(all) > 1 {
			at.multiVHost, at.links = true, func() []webui.VHost { return s.vhostLinks(i) }
			o.Log = s.Log.With("vhost", c.VHost())
		}
		at.base = c.BasePath
		if i > 0 {
			at.base += httpapi.Base(c.VHost())
		}
		v, err := newVHost(c, o, at)
		if err != nil {
			return s.inVHost(c, at, err)
		}
		s.vhosts = append(s.vhosts, v)
	}
	if s.listen, err = listenOn(s.config, s.Visitors); err != nil {
		return err
	}
	if s.config.Access.HasTLS() {
		if s.secure, err = auth.TLS(s.config.Access.TLS, s.Log); err != nil {
			return err
		}
	}
	s.vhosts[0].unserved = unservedIn(s.config, all, s.Log)
	for _, v := range s.vhosts {
		if err := v.open(s.Addr()); err != nil {
			return s.inVHost(v.config, v.process, err)
		}
	}
	s.handler = s.routes()
	return nil
}

// inVHost adds the virtual host to an error, if there are several.
func (s *Service) inVHost(c *config.Config, at process, err error) error {
	if at.multiVHost {
		return fmt.Errorf("virtual host %q: %w", c.VHost(), err)
	}
	return err
}

// Close closes what New opened.
func (s *Service) Close() (err error) {
	if s.listen != nil {
		err = s.listen.Close()
	}
	for _, v := range s.vhosts {
		err = errors.Join(err, v.store.Close())
	}
	s.memory.Close()
	return err
}

// Addr returns the address on which the service listens.
func (s *Service) Addr() string { return s.listen.Addr().String() }

// listenOn opens the port. A name in the configuration may turn out to be an address
// that others can reach.
func listenOn(c *config.Config, visitors bool) (net.Listener, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", c.Listen, err)
	}
	if !visitors && !auth.Loopback(l.Addr().String()) && !c.Access.SignIn {
		l.Close()
		return nil, hint.Errorf("set `auth: {}`, or listen on 127.0.0.1",
			"listen is %q, which is %s here, and other machines can reach that", c.Listen, l.Addr())
	}
	return l, nil
}

// Problems returns what is wrong now. The service may be ready in spite of some of them.
func (s *Service) Problems() []string {
	return s.each(func(v *vhost) []string { return condition.Lines(v.conditions.List()) })
}

// Notices returns what needs a person's attention, though it stops nothing.
func (s *Service) Notices() []string { return s.each((*vhost).notices) }

// each collects lines of all vhosts. If there are several, each line begins with the vhost.
func (s *Service) each(lines func(*vhost) []string) []string {
	all := []string{}
	for _, v := range s.vhosts {
		for _, line := range lines(v) {
			if len(s.vhosts) > 1 {
				line = "virtual host " + v.config.VHost() + ": " + line
			}
			all = append(all, line)
		}
	}
	return all
}

// Counts returns the counts of the stores of all virtual hosts, one after the other.
func (s *Service) Counts(ctx context.Context) (all []store.QueueCount, err error) {
	for _, v := range s.vhosts {
		counts, err := v.store.Counts(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, counts...)
	}
	return all, nil
}

// Scan visits messages of the first virtual host without touching them.
func (s *Service) Scan(ctx context.Context, r store.Range, visit func(store.Listed) (more bool, err error)) error {
	return s.vhosts[0].store.Scan(ctx, r, visit)
}

// Run works until ctx ends, then stops in order: all vhosts at once, the HTTP server and its requests, the stores. A
// single virtual host also ends it with an error that trying again would not repair; one of several does not.
func (s *Service) Run(ctx context.Context) error {
	server := s.server()
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	server.BaseContext = func(net.Listener) context.Context { return requests }
	for _, v := range s.vhosts {
		v.Log.Info("redrive is running", "version", s.Version, "broker", connect.Redact(v.config.Broker.URL), "data",
			v.config.Store.Place(), "listen", s.Addr())
	}
	if s.config.Access.SignIn {
		s.Log.Info(s.vhosts[0].mask.Load().String())
	}
	for _, notice := range s.vhosts[0].unserved {
		s.Log.Warn(notice)
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	failures := make([]error, len(s.vhosts))
	var serving, workers sync.WaitGroup
	serving.Go(func() { s.serve(server) })
	for i, v := range s.vhosts {
		workers.Go(func() {
			defer stop() // several vhosts return when ctx ends: see broker.Config.Lasting
			failures[i] = v.run(ctx)
		})
	}
	workers.Go(func() { s.watchClock(ctx, func(now time.Time) time.Time { return now }) })
	if s.Watch != nil {
		workers.Go(func() { s.Watch(ctx, s.reload) })
	}
	// A store that waits for room on its disk would delay the stop.
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace+5*time.Second, s.waitNoMore) })()
	workers.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = server.Shutdown(closing)
	_ = server.Close()
	serving.Wait()
	endRequests()
	s.requests.Lock()
	for _, v := range s.vhosts {
		failures = append(failures, v.store.Close())
	}
	s.memory.Close()
	s.Log.Info("redrive has stopped")
	return errors.Join(failures...)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// waitNoMore ends the process if one of its stores waits for room on its disk.
func (s *Service) waitNoMore() {
	for _, v := range s.vhosts {
		if d, ok := v.store.(*diskstore.Store); ok {
			d.WaitNoMore()
		}
	}
}

func (s *Service) server() *http.Server {
	server := &http.Server{Handler: s.countRequests(s.handler), TLSConfig: s.secure,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn)}
	for _, v := range s.vhosts {
		server.RegisterOnShutdown(v.api.EndStreams)
	}
	return server
}

// countRequests counts requests: net/http does not wait for them once it has closed their connections, and the audit
// log would lack what they have begun.
func (s *Service) countRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.requests.TryRLock() {
			http.Error(w, "the service is stopping", http.StatusServiceUnavailable)
			return
		}
		defer s.requests.RUnlock()
		next.ServeHTTP(w, r)
	})
}

func (s *Service) serve(server *http.Server) {
	serve := server.Serve
	if server.TLSConfig != nil {
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	if err := serve(s.listen); !errors.Is(err, http.ErrServerClosed) {
		s.Log.Error("HTTP server stopped; retries continue", "error", err)
	}
}

// reload puts new policies, schemas of bodies and notifications in force. Broker, store, port and
// access control stay as they are until the next start.
func (s *Service) reload(c *config.Config, err error) {
	var configs []*config.Config
	if err == nil {
		configs, err = c.PerVHost()
	}
	// Only these two can refuse a config, so they come before the change of decoders and policies. What notify could
	// refuse was checked when the file was read.
	var applyDecoders []func()
	readSchemas := func(v *vhost, c *config.Config) error {
		apply, err := v.decoder.Reload(c.Decode)
		applyDecoders = append(applyDecoders, apply)
		return err
	}
	for _, step := range []func(*vhost, *config.Config) error{readSchemas, (*vhost).reloadNotify} {
		for i, v := range s.vhosts {
			if err == nil && s.configOf(configs, i) != nil {
				err = step(v, s.configOf(configs, i))
			}
		}
	}
	for _, v := range s.vhosts {
		v.metrics.ConfigLoaded(err == nil)
	}
	if err != nil {
		s.Log.Error("the new config is refused; the old one stays in force", "error", err)
		return
	}
	for _, w := range c.Warnings {
		s.Log.Warn("config: " + w)
	}
	if !c.Broker.Same(s.config.Broker) || !c.Store.Same(s.config.Store) || c.Listen != s.config.Listen ||
		!reflect.DeepEqual(c.Access, s.config.Access) {
		s.Log.Warn("config: broker, store, listen, auth, tls and read_only take effect at the next start; policies, " +
			"adopt, watch, mask, notify and decode do now")
	}
	for _, apply := range applyDecoders {
		apply()
	}
	for i, v := range s.vhosts {
		if c := s.configOf(configs, i); c != nil {
			v.reload(c)
		}
	}
}

// configOf returns the new configuration of the i-th vhost. It is nil if there is none any more: the vhost stays as it
// is until the next start.
func (s *Service) configOf(configs []*config.Config, i int) *config.Config {
	v := s.vhosts[i]
	if at := slices.IndexFunc(configs, func(c *config.Config) bool { return c.VHost() == v.config.VHost() }); at >= 0 {
		return configs[at]
	}
	if i == 0 {
		return configs[0]
	}
	return nil
}

func (s *vhost) newGuard(tokens *auth.Tokens) (_ *auth.Guard, err error) {
	a := &s.config.Access
	var users *auth.Users
	if s.manage != nil && len(a.Roles) > 0 {
		users = auth.NewUsers(s.manage, s.config.VHost(), a.Roles, s.store)
	}
	var provider *auth.OIDC
	if a.OIDC.Issuer != "" {
		if provider, err = auth.NewOIDC(a.OIDC, s.config.Notify.Page); err != nil {
			return nil, err
		}
	}
	return auth.NewGuard(auth.Config{
		Sessions: s.store, OIDC: provider, Required: a.SignIn, Visitors: s.Visitors, ReadOnly: a.ReadOnly,
		Tokens: tokens, Users: users, Proxies: a.Proxies, Proxy: a.Proxy,
		Secure: a.HasTLS() || a.BehindProxy, SignInPage: auth.SignInPath, Base: s.base, Log: s.Log,
		Public: func(r *http.Request) bool {
			return httpapi.Public(r) || strings.HasPrefix(r.URL.Path, "/assets/") ||
				a.OpenMetrics && r.URL.Path == "/metrics"
		},
	}), nil
}

// routes serves page and API of the first virtual host at /, and those of each at /v/NAME/, with its own callers. If
// there are several, health and metrics at / cover all of them. It serves all of that below base_path too: some proxies
// pass that on, some remove it.
func (s *Service) routes() http.Handler {
	all, base := s.vhostRoutes(), s.config.BasePath
	below := httpapi.Under(base, all)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at := r.URL.EscapedPath(); base != "" && (at == base || strings.HasPrefix(at, base+"/")) {
			below.ServeHTTP(w, r)
			return
		}
		all.ServeHTTP(w, r)
	})
}

func (s *Service) vhostRoutes() http.Handler {
	first := s.vhosts[0].api
	combined := map[string]http.Handler{}
	if len(s.vhosts) > 1 {
		combined["/readyz"], combined["/metrics"] = http.HandlerFunc(s.readyz), s.metricsHandler()
	}
	under := map[string]http.Handler{}
	for _, v := range s.vhosts {
		under[v.config.VHost()] = httpapi.Under(httpapi.Base(v.config.VHost()), v.api)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := combined[r.URL.Path]
		if step, ok := strings.CutPrefix(r.URL.EscapedPath(), "/v/"); ok {
			step, _, _ = strings.Cut(step, "/")
			name, err := url.PathUnescape(step)
			if h = under[name]; h == nil || err != nil {
				// Do not tell everybody which there are.
				httpapi.NotFound(w, fmt.Sprintf("there is no virtual host %q here: `redrive check FILE` shows which "+
					"those are that a config file serves", name))
				return
			}
		}
		if h == nil {
			h = first
		}
		h.ServeHTTP(w, r)
	})
}

// vhostLinks returns a page's links to all virtual hosts; here is its own.
func (s *Service) vhostLinks(here int) (all []webui.VHost) {
	for i, v := range s.vhosts {
		all = append(all, webui.VHost{Name: v.vhostLabel(), URL: v.base + "/", Ready: v.conditions.Ready(),
			Here: i == here})
	}
	return all
}

// readyz answers "ready" if all virtual hosts are, and the lines that each of them shows this caller.
func (s *Service) readyz(w http.ResponseWriter, r *http.Request) {
	ready, hidden, lines := true, false, ""
	for _, v := range s.vhosts {
		got := answer{header: http.Header{}, status: http.StatusOK}
		v.api.ServeHTTP(&got, r)
		switch got.status {
		case http.StatusOK:
		case http.StatusServiceUnavailable:
			ready = false
		default: // without permission to ask
			got.copyTo(w)
			return
		}
		for line := range strings.Lines(got.body.String()) {
			switch strings.TrimSpace(line) {
			case "ready":
			case httpapi.Unsaid: // say it once
				hidden = true
			default:
				lines += "virtual host " + v.config.VHost() + ": " + line
			}
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if ready {
		fmt.Fprintln(w, "ready")
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprint(w, lines)
	if hidden {
		fmt.Fprintln(w, httpapi.Unsaid)
	}
}

type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

func (a *answer) copyTo(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}

// metricsHandler serves the metrics of all virtual hosts to callers with permission to read those of each.
func (s *Service) metricsHandler() http.Handler {
	all := make([]*metrics.Metrics, len(s.vhosts))
	for i, v := range s.vhosts {
		all[i] = v.metrics
	}
	h := metrics.Handler(all...)
	for _, v := range s.vhosts {
		h = v.api.Guarded(auth.Whole(h))
	}
	return h
}
