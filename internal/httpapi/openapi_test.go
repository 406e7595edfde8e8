package httpapi_test

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/httpapi"
)

var update = flag.Bool("update", false, "write docs/reference/openapi.json again")

const document = "../../docs/reference/openapi.json"

// What is documented is what is served.
func TestTheDocumentInDocsIsTheOneServed(t *testing.T) {
	w := ask(httpapi.New(config(&scripted{})), "GET", "/api/v1/openapi.json", "", as(auth.Caller{}))
	if w.Code != 200 || !strings.Contains(w.Header().Get("Content-Type"), "json") {
		t.Fatalf("%d %v", w.Code, w.Header())
	}
	served := append(w.Body.Bytes(), '\n')
	if *update {
		if err := os.WriteFile(document, served, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if string(kept) != string(served) {
		t.Errorf("docs/reference/openapi.json is not what is served: go test ./internal/httpapi -run %s -update", t.Name())
	}
}

// Every route of the API is in the document, each reference leads somewhere, and no
// operation is without words.
func TestTheDocumentIsWhole(t *testing.T) {
	a := httpapi.New(config(&scripted{}))
	w := ask(a, "GET", "/api/v1/openapi.json", "")
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID, Summary string
			Parameters           []struct{ Name, In string }
			Responses            map[string]struct{ Content map[string]any }
		}
		Components struct{ Schemas, SecuritySchemes map[string]any }
		Security   []map[string]any
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") || len(doc.Security) != 3 || len(doc.Components.SecuritySchemes) != 3 {
		t.Errorf("version %q, security %v", doc.OpenAPI, doc.Security)
	}
	var ids []string
	documented := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			documented[strings.ToUpper(method)+" "+path] = true
			if op.Summary == "" || op.OperationID == "" || slices.Contains(ids, op.OperationID) {
				t.Errorf("%s %s: summary %q, id %q", method, path, op.Summary, op.OperationID)
			}
			ids = append(ids, op.OperationID)
			if op.Responses["default"].Content["application/problem+json"] == nil {
				t.Errorf("%s %s does not say how errors look", method, path)
			}
			keyed := slices.ContainsFunc(op.Parameters, func(p struct{ Name, In string }) bool { return p.Name == "Idempotency-Key" && p.In == "header" })
			reads := method == "get" || path == "/api/v1/decode" || path == "/api/v1/doctor" || path == "/api/v1/adoptions/preview" || strings.HasPrefix(path, "/api/v1/tokens")
			if keyed == reads {
				t.Errorf("%s %s: idempotency key %v", method, path, keyed)
			}
		}
	}
	plain := []string{"GET /healthz", "GET /readyz", "GET /metrics", "GET /api/v1/openapi.json", "POST " + auth.SignInPath, "POST " + auth.SignOutPath}
	for _, route := range a.Routes() {
		if !documented[route] && !slices.Contains(plain, route) {
			t.Errorf("%s is not in the document", route)
		}
	}
	for _, ref := range regexp.MustCompile(`#/components/schemas/(\w+)`).FindAllStringSubmatch(w.Body.String(), -1) {
		if doc.Components.Schemas[ref[1]] == nil {
			t.Errorf("%s leads nowhere", ref[0])
		}
	}
}
