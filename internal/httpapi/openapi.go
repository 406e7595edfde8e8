package httpapi

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-mq/redrive/internal/auth"
)

// description is the document's frame. Its version is the API's, not the service's.
func description(base string) huma.Config {
	bearer := &huma.SecurityScheme{Type: "http", Scheme: "bearer", Description: "A token, made by `redrive token create`."}
	basic := &huma.SecurityScheme{Type: "http", Scheme: "basic", Description: "A user of RabbitMQ's."}
	session := &huma.SecurityScheme{Type: "apiKey", In: "cookie", Name: "redrive", Description: "The page's, after signing in at POST " + auth.SignInPath + "; with TLS its name is __Host-redrive. Of one virtual host of several it is redrive-vhost, with TLS __Secure-redrive-vhost."}
	var servers []*huma.Server // none: paths begin where the document is
	if base != "" {
		servers, session.Name = []*huma.Server{{URL: base}}, "redrive-vhost"
	}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "Redrive", Version: "1",
				Description: "Messages that failed on RabbitMQ: see them, find them, replay them. Where no sign-in is configured the service answers its own machine alone, without. Errors are problem+json (RFC 9457); their `code` is one of: " + strings.Join(codes(), ", ") + ". " +
					"A request whose answer got lost may be made again: a plan starts once, an import skips what it " +
					"has stored, and of messages that were acted on the answer says that they are not there any " +
					"more. Only a copy is made a second time."},
			Servers: servers,
			Components: &huma.Components{Schemas: huma.NewMapRegistry("#/components/schemas/", schemaName),
				SecuritySchemes: map[string]*huma.SecurityScheme{"token": bearer, "user": basic, "session": session}},
			Security: []map[string][]string{{"token": {}}, {"user": {}}, {"session": {}}},
			Tags: []*huma.Tag{{Name: "See", Description: "Looking touches nothing."}, {Name: "Act", Description: "On messages that are named."},
				{Name: "Operations", Description: "On all that a query finds: a plan first, then its start."}, {Name: "Transfer"}, {Name: "Callers"}},
		},
		Formats:       huma.DefaultFormats,
		DefaultFormat: "application/json",
	}
}

// schemaName distinguishes types of the same name in two packages. ThrottleView is named Throttle
// in the API.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch {
	case strings.HasSuffix(t.PkgPath(), "/internal/decode"):
		return "Decoded" + name
	case strings.HasSuffix(t.PkgPath(), "/internal/audit"):
		return "Audit" + name
	}
	return strings.TrimSuffix(name, "View")
}

// describe completes a route: it needs a sign-in, unless it says otherwise.
func (a *API) describe(op *huma.Operation) {
	op.BodyReadTimeout = -1 // boundedBody does it
	if op.Security == nil {
		op.Middlewares = append(huma.Middlewares{requireSignIn}, op.Middlewares...)
	}
	if op.Responses != nil { // huma adds it only to routes without Responses
		op.Responses["default"] = &huma.Response{Description: "Error", Content: map[string]*huma.MediaType{
			"application/problem+json": {Schema: a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "")}}}
	}
}

func (a *API) openAPIRoute() {
	document, err := json.MarshalIndent(a.huma.OpenAPI(), "", "  ")
	if err != nil {
		panic("the API's types make no OpenAPI document: " + err.Error())
	}
	a.handle("GET "+v1+"/openapi.json", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.oai.openapi+json")
		_, _ = w.Write(document)
	}))
}
