package webui

import (
	"net/http"
	"net/url"

	"github.com/redrive-mq/redrive/internal/auth"
)

// signInData is the form to sign in with. It posts to package auth, which redirects here with
// an error when it refuses.
type signInData struct {
	Next    string
	Refused string
}

// refusals are the form's error texts, by the error in its URL.
var refusals = map[string]string{
	"refused":     "That user and password, or that token, is not valid here.",
	"unreachable": "RabbitMQ's management API does not answer, so no user can be checked now. A token works.",
	"slow":        "Too many tries. Wait a minute.",
	"expired":     "Your session has ended.",
	"undone":      "Your session has ended, and nothing was done: sign in, and do it again.",
}

func (s *server) signIn(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.render(w, r, auth.Caller{}, view{template: "signin", title: "Sign in", data: signInData{Next: auth.LocalPath(q.Get("next")), Refused: refusals[q.Get("error")]}})
}

func (s *server) askToSignIn(w http.ResponseWriter, r *http.Request) {
	next := "/"
	if r.Method == http.MethodGet {
		next = r.URL.RequestURI()
	}
	http.Redirect(w, r, s.at(auth.SignInPath)+"?"+url.Values{"next": {next}}.Encode(), http.StatusSeeOther)
}
