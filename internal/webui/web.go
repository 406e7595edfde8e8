// Package webui is the page: what a person on call sees and does in a browser. It is
// rendered here, whole, by html/template; two small scripts make it live, and it
// works without them. Read it in this order:
//
//	web.go        the routes, and signing in
//	respond.go    from a handler's view to a response: errors, loading, headers
//	sort.go       the rows of a page, sorted by a column of theirs
//	format.go     how values are shown: times, sizes, charts, texts that may be hostile
//	messages.go pages.go  the pages
//	act.go                what people do
//	docs.go               the documentation
//
// Everything goes through the console, which checks what the caller may do. Nothing here does: the
// page only does not offer what a caller may not do.
package webui

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/background"
	"github.com/redrive-mq/redrive/internal/condition"
	"github.com/redrive-mq/redrive/internal/operations"
)

// Options of a page.
type Options struct {
	// Caller returns who a request is from; a caller who is not signed in sees the sign-in page.
	Caller func(*http.Request) auth.Caller
	// Conditions are wrong now, as far as a caller may know; each page shows them.
	Conditions func(auth.Caller) []condition.Condition
	// Simulation draws what a policy does in an outage, as an SVG element that says it in
	// words too; "" where there is nothing to draw.
	Simulation func(ctx context.Context, policy string) template.HTML
	Version    string
	// Restorable is how long a discarded message can be restored; 0: the page does not say.
	Restorable time.Duration
	// Base is the escaped path that the page is served under, without a slash at its
	// end; "" for a page that is alone at its host. Requests come without it.
	Base string
	// VHost is the virtual host that commands must name to reach this page's; "" where
	// there is but one.
	VHost string
	// VHosts are all, for a page to lead to the others; it is asked for each page.
	VHosts func() []VHost
	// Guard tells how people sign in; nil: only by the forms.
	Guard *auth.Guard
	Log   *slog.Logger
}

// firstWait is how long a page waits for its content before it is shown without,
// saying that it is being read.
const firstWait = 1500 * time.Millisecond

// maxWait is how long it waits then, and maxForm what a form may hold, in bytes; maxEdit is
// room for the longest text that is edited here, as a browser encodes it, and its headers. They
// limit what one caller can make the service spend.
const (
	maxWait = 30 * time.Second
	maxForm = 1 << 20
	maxEdit = 8 << 20
)

const editPattern = "POST /messages/{id}/edit"

//go:embed templates
var templates embed.FS

type server struct {
	Options
	console   operations.Console
	pages     map[string]*template.Template
	rendering background.Work
}

// Handler serves the page. Its caller must refuse cross-site posts.
func Handler(c operations.Console, o Options) http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range Routes(c, o) {
		mux.Handle(pattern, h)
	}
	return mux
}

// Routes are the page's, by their patterns.
func Routes(c operations.Console, o Options) map[string]http.Handler {
	if o.Conditions == nil {
		o.Conditions = func(auth.Caller) []condition.Condition { return nil }
	}
	if o.Simulation == nil {
		o.Simulation = func(context.Context, string) template.HTML { return "" }
	}
	if o.VHosts == nil {
		o.VHosts = func() []VHost { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &server{Options: o, console: c,
		rendering: background.Work{For: 3 * time.Millisecond, Rest: 300 * time.Microsecond}}
	s.pages = s.parse()
	routes := map[string]http.Handler{}
	for pattern, h := range map[string]handler{
		"GET /{$}":                      s.overview,
		"GET /messages":                 s.messages,
		"GET /messages/new":             s.newMessages,
		"GET /messages/count":           s.countMessages,
		"GET /messages/check":           s.checkQuery,
		"POST /messages/act":            s.act,
		"POST /messages/plan":           s.plan,
		"GET /messages/{id}":            s.message,
		"POST /messages/{id}":           s.show,
		"GET /messages/{id}/edit":       s.edit,
		editPattern:                     s.postEdit,
		"GET /groups":                   s.groups,
		"GET /groups/{id}":              s.group,
		"POST /groups/{id}/note":        s.noteGroup,
		"POST /groups/{id}/state":       s.setGroupState,
		"GET /queues":                   s.queues,
		"GET /queues/{queue}":           s.queue,
		"POST /queues/pause":            s.pause,
		"POST /queues/breaker":          s.breaker,
		"POST /queues/resume":           s.resume,
		"GET /operations":               s.operations,
		"GET /operations/{id}":          s.operation,
		"POST /operations/{id}/{order}": s.order,
		"GET /plans/{id}":               s.showPlan,
		"POST /plans/{id}/start":        s.start,
		"POST /follow":                  s.follow,
		"GET /policies":                 s.policies,
		"GET /audit":                    s.audit,
		"GET /health":                   s.health,
		"GET /help":                     s.help,
		"GET /docs":                     s.docs,
		"GET /docs/{page...}":           s.docs,
		"GET /":                         s.notFound,
	} {
		routes[pattern] = s.page(h)
	}
	routes["GET "+auth.SignInPath] = http.HandlerFunc(s.signIn)
	routes["GET "+auth.OIDCStartPath] = http.HandlerFunc(s.startOIDC)
	routes["GET "+auth.OIDCPath] = http.HandlerFunc(s.finishOIDC)
	routes["GET /messages/{id}/body"] = http.HandlerFunc(s.body)
	routes["GET /messages/export"] = http.HandlerFunc(s.export)
	routes["GET /docs/images/{name}"] = http.HandlerFunc(s.docsImage)
	routes["GET /assets/{version}/{name}"] = http.HandlerFunc(asset)
	for pattern, h := range routes {
		routes[pattern] = headers(h)
	}
	return routes
}

// policyOfContent lets the page load its own files, and nothing else.
const policyOfContent = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src " +
	"'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

func headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policyOfContent)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store") // messages do not belong in a browser's cache
		next.ServeHTTP(w, r)
	})
}

// signInData is the form to sign in with. It posts to package auth, which redirects here with
// an error when it refuses.
type signInData struct {
	Next     string
	Refused  string
	User     string            // who tried last
	SignOut  string            // at the provider, for who has left here; "": nowhere
	Provider string            // of OpenID Connect; "": none
	Users    bool              // RabbitMQ's sign in
	Proxy    bool              // one signs people in
	NoRole   *auth.NoRoleError // the provider or a proxy knows them, and they have no role here
}

// refusals are the form's error texts, by the error in its URL.
var refusals = map[string]string{
	"refused":     "That user and password, or that token, is not valid here.",
	"guest":       "RabbitMQ's user guest cannot sign in here: make a user of your own.",
	"unreachable": "RabbitMQ's management API does not answer, so no user can be checked now. A token works.",
	"slow":        "Too many tries. Wait a minute.",
	"expired":     "Your session has ended.",
	"undone":      "Your session has ended, and nothing was done: sign in, and do it again.",
	"silent": "The OpenID Connect provider does not answer. Users of RabbitMQ's and tokens can sign in; " +
		"the service's log says more.",
	"denied":    "The OpenID Connect provider did not sign you in; the service's log says why.",
	"elsewhere": "That sign-in was not begun in this browser, or more than ten minutes ago. Begin again.",
}

func (s *server) signIn(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	next := auth.LocalPath(q.Get("next"))
	if none := s.Guard.NoRole(r); none != nil {
		s.noRole(w, r, none)
		return
	} else if auth.From(r.Context()).How == "proxy" {
		http.Redirect(w, r, s.at(next), http.StatusSeeOther)
		return
	}
	out := ""
	if q.Has("left") {
		out = s.Guard.ProviderSignOut()
	}
	s.render(w, r, auth.Caller{}, view{template: "signin", title: "Sign in",
		data: signInData{SignOut: out, Next: next, Refused: refusals[q.Get("error")], User: auth.TriedUser(r),
			Provider: s.Guard.ProviderName(), Users: s.Guard == nil || s.Guard.Users != nil,
			Proxy: s.Guard != nil && s.Guard.Proxy.UserHeader != ""}})
}

func (s *server) startOIDC(w http.ResponseWriter, r *http.Request) {
	if s.Guard.ProviderName() == "" {
		s.askToSignIn(w, r)
		return
	}
	s.Guard.StartOIDC(w, r)
}

// finishOIDC shows who has no role what would give one; the page to sign in shows that to no one else.
func (s *server) finishOIDC(w http.ResponseWriter, r *http.Request) {
	if s.Guard.ProviderName() == "" {
		s.askToSignIn(w, r)
		return
	}
	if none := s.Guard.FinishOIDC(w, r); none != nil {
		s.noRole(w, r, none)
	}
}

func (s *server) noRole(w http.ResponseWriter, r *http.Request, none *auth.NoRoleError) {
	s.render(w, r, auth.Caller{}, view{template: "signin", title: "No role", status: http.StatusForbidden,
		data: signInData{NoRole: none}})
}

func (s *server) askToSignIn(w http.ResponseWriter, r *http.Request) {
	next := "/"
	if r.Method == http.MethodGet {
		next = r.URL.RequestURI()
	}
	http.Redirect(w, r, s.at(auth.SignInPath)+"?"+url.Values{"next": {next}}.Encode(), http.StatusSeeOther)
}

//go:embed assets
var assetFiles embed.FS

// file is one asset: as it is, compressed, and the version that is in its URL, so
// that a browser may keep it for ever.
type file struct {
	plain, small  []byte
	version, kind string
}

var loadAssets = sync.OnceValue(func() map[string]file {
	all := map[string]file{}
	entries, _ := assetFiles.ReadDir("assets")
	for _, e := range entries {
		data, err := assetFiles.ReadFile("assets/" + e.Name())
		if err != nil {
			panic(err) // it is embedded
		}
		sum := sha256.Sum256(data)
		all[e.Name()] = file{plain: data, small: compressed(data), version: hex.EncodeToString(sum[:6]),
			kind: mime.TypeByExtension(path.Ext(e.Name()))}
	}
	return all
})

// assetURL is where an asset is served.
func assetURL(name string) string {
	f, ok := loadAssets()[name]
	if !ok {
		panic("no asset is named " + name)
	}
	return "/assets/" + f.version + "/" + name
}

func asset(w http.ResponseWriter, r *http.Request) {
	f, ok := loadAssets()[r.PathValue("name")]
	if !ok || f.version != r.PathValue("version") {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	data := f.plain
	if takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
		data = f.small
	}
	_, _ = w.Write(data)
}

func takesGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

func compressed(data []byte) []byte {
	var b bytes.Buffer
	compressInto(&b, gzip.NewWriter(nil), data)
	return b.Bytes()
}

// quick compressors are for pages, which are made again each time: they take a third
// of the time for a tenth more bytes, and each is large enough to be used again.
var quick = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails only for levels there are not
	return z
}}

func compressedQuickly(data []byte) []byte {
	z := quick.Get().(*gzip.Writer)
	defer quick.Put(z)
	var b bytes.Buffer
	compressInto(&b, z, data)
	return b.Bytes()
}

func compressInto(b *bytes.Buffer, z *gzip.Writer, data []byte) {
	z.Reset(b)
	_, _ = z.Write(data)
	_ = z.Close()
}
