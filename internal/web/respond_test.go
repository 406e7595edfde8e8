package web

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/console"
)

// endless is a console whose searches end with their context.
type endless struct{ Console }

func (endless) Search(ctx context.Context, _ auth.Caller, _, _ string, _ int) (console.Page, error) {
	<-ctx.Done()
	return console.Page{}, ctx.Err()
}

// Whoever may look can make no search go on for ever: first the page says that it is
// being read, then that it takes too long.
func TestASearchThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Handler(endless{}, Options{Caller: func(*http.Request) auth.Caller { return auth.Caller{Name: "ann", Role: auth.Viewer} }})
		for target, want := range map[string]struct {
			status int
			takes  time.Duration
			text   string
		}{
			"/messages?q=text:a":        {200, patience, `hx-get="/messages?q=text%3Aa&amp;wait=1"`},
			"/messages?q=text:a&wait=1": {504, mostPatience, "That takes too long"},
		} {
			began, w := time.Now(), httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
			if w.Code != want.status || time.Since(began) != want.takes || !strings.Contains(w.Body.String(), want.text) {
				t.Errorf("%s: %d after %s: %s", target, w.Code, time.Since(began), w.Body)
			}
		}
	})
}

// A form is read into memory, whoever sends it.
func TestAFormIsBounded(t *testing.T) {
	h := Handler(endless{}, Options{Caller: func(*http.Request) auth.Caller { return auth.Caller{Name: "ann", Role: auth.Viewer} }})
	r := httptest.NewRequest("POST", "/messages/act", strings.NewReader("id="+strings.Repeat("x", 9<<20)))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "too large") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
