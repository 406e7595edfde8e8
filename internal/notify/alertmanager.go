package notify

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/credentials"
)

const (
	// alertEvery is how often an alert is sent while it lasts, and alertLasts how long
	// Alertmanager keeps it firing after the last time, whatever its resolve_timeout.
	alertEvery = time.Minute
	// countEvery is how often it is sent while its count grows: shorter than a group_wait, so
	// that the notification has all of a burst.
	countEvery = 10 * time.Second
	alertLasts = 5 * time.Minute
	// parkedLasts is how long an alert lasts after the last parked message: longer than
	// a group_interval, since Alertmanager sends none that ended before.
	parkedLasts = 15 * time.Minute
	mostAlerts  = 100 // in a request
)

var labelName = regexp.MustCompile(`^\$[A-Za-z_][A-Za-z0-9_]*$`)

// alertmanager posts alerts to Alertmanager's API, which groups, repeats, silences and
// routes them. $NAME=VALUE in the query is a label. Files are read for each request, so
// a new token or authority needs no restart.
func alertmanager(u *url.URL, _ *Route) (send, error) {
	q, own := u.Query(), map[string]string{}
	for name, values := range q {
		if labelName.MatchString(name) {
			own[name[1:]] = values[0]
			q.Del(name)
		}
	}
	ca, tokenFile, passwordFile := q.Get("cacertfile"), q.Get("tokenfile"), q.Get("passwordfile")
	if !hasOnly(q, "cacertfile", "tokenfile", "passwordfile") || u.Host == "" || ca != "" && u.Scheme != "https" ||
		tokenFile != "" && u.User != nil || passwordFile != "" && u.User.Username() == "" {
		return nil, errURL
	}
	to := url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimSuffix(u.Path, "/") + "/api/v2/alerts"}
	return func(ctx context.Context, c *client, m *Message) (err error) {
		at, r := to, request{header: http.Header{}}
		if ca != "" {
			if r.tls, err = (credentials.TLS{CA: ca}).Config(u.Hostname()); err != nil {
				return err
			}
		}
		at.User = u.User
		if file := cmp.Or(tokenFile, passwordFile); file != "" {
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if secret := strings.TrimSpace(string(data)); tokenFile != "" {
				r.header.Set("Authorization", "Bearer "+secret)
			} else {
				at.User = url.UserPassword(u.User.Username(), secret)
			}
		}
		r.url = at.String()
		for some := range slices.Chunk(alerts(m, own), mostAlerts) {
			r.body = some
			if _, err := c.do(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// alert is one of its API. Two with the same labels are one.
type alert struct {
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"`
	GeneratorURL string            `json:"generatorURL,omitempty"`
}

func alerts(m *Message, own map[string]string) []alert {
	var all []alert
	for _, i := range m.Items {
		one := Message{Kind: i.Kind, Items: []Item{i}, VHost: m.VHost, Test: m.Test}
		a := alert{StartsAt: i.Since.UTC(), EndsAt: m.At.Add(alertLasts).UTC(), GeneratorURL: i.Link,
			Labels:      map[string]string{"alertname": alertName(i.Kind), "severity": i.Severity.String()},
			Annotations: map[string]string{"summary": one.title(plainText), "description": one.text(plainText, time.UTC)}}
		if m.Test {
			a.Labels["alertname"] = "RedriveTest"
		}
		if i.Queue != "" {
			a.Labels["queue"] = clean(i.Queue, 255)
		}
		if i.Target != "" {
			a.Labels["target"] = clean(i.Target, 255)
		}
		if m.VHost != "" {
			a.Labels["vhost"] = clean(m.VHost, 255)
		}
		maps.Copy(a.Labels, own)
		if i.Resolved {
			a.EndsAt = i.Until.UTC()
		}
		if a.EndsAt.Before(a.StartsAt) { // a clock was set
			a.StartsAt = a.EndsAt
		}
		all = append(all, a)
	}
	return all
}

// alertName makes RedriveBreakerOpen of breaker_open.
func alertName(k Kind) string {
	s := "Redrive"
	for word := range strings.SplitSeq(string(k), "_") {
		s += strings.ToUpper(word[:1]) + word[1:]
	}
	return s
}
