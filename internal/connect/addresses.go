// Package connect has what a connection to RabbitMQ or Redis begins with: URLs, TLS files and logins. Wherever a URL of
// RabbitMQ is accepted, so are those of several nodes of one cluster, separated by commas.
package connect

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/hint"
)

// urlStart matches the start of a URL. A comma before anything else belongs to the URL before, such as its password.
var urlStart = regexp.MustCompile(`^\s*[A-Za-z][A-Za-z0-9+.-]*://`)

// SplitURLs returns the URLs of a text, at least one.
func SplitURLs(text string) (urls []string) {
	for piece := range strings.SplitSeq(text, ",") {
		if last := len(urls) - 1; last >= 0 && !urlStart.MatchString(piece) {
			urls[last] += "," + piece
			continue
		}
		urls = append(urls, piece)
	}
	for i := range urls {
		urls[i] = strings.TrimSpace(urls[i])
	}
	return urls
}

func JoinURLs(urls []string) string { return strings.Join(urls, ",") }

// ErrURL: the text is not a URL. No error of this package quotes it, since it may contain a password.
var ErrURL = errors.New("is not a URL")

// ErrPassword: a character of the password ends it early, and the rest would be taken for a part that is logged.
var ErrPassword = errors.New("has an @ or # after the host: in a password write %40 for @, %23 for #, %2F for / and " +
	"%3F for ?")

// hasUnencodedPassword reports whether what follows the host could be part of a password.
func hasUnencodedPassword(s string) bool {
	_, rest, _ := strings.Cut(s, "://")
	end := strings.IndexAny(rest, "/?#")
	return end >= 0 && strings.ContainsAny(rest[end:], "@#")
}

// EachURL applies change to every URL of a text, and returns the text with the changed URLs.
func EachURL(text string, change func(*url.URL)) (string, error) {
	urls := SplitURLs(text)
	for i, s := range urls {
		u, err := url.Parse(s)
		if err != nil {
			return "", ErrURL
		}
		change(u)
		urls[i] = u.String()
	}
	return JoinURLs(urls), nil
}

// CheckURLs returns an error for a text with a URL that is malformed or has another scheme, or with several that name
// different virtual hosts, users or passwords.
func CheckURLs(text string, schemes ...string) error {
	var first *url.URL
	for i, s := range SplitURLs(text) {
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Host == "":
			err = fmt.Errorf("%w: expected %s://user:password@host:port/", ErrURL, schemes[0])
		case hasUnencodedPassword(s):
			err = ErrPassword
		case !slices.Contains(schemes, u.Scheme):
			err = fmt.Errorf("begins with %q: expected %s://", u.Scheme+"://", strings.Join(schemes, ":// or "))
		case strings.Contains(u.Host, ","):
			err = fmt.Errorf("has several hosts in one URL: expected a whole URL for each, "+
				"%s://user:password@host1:port/,%s://user:password@host2:port/", u.Scheme, u.Scheme)
		case i == 0:
			first = u
			err = checkParameters(u)
		default:
			err = cmp.Or(checkParameters(u), sameCluster(first, u))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sameCluster returns an error for two URLs that are not of one cluster and user.
func sameCluster(a, b *url.URL) error {
	const all = "all must be nodes of one cluster, with the same virtual host, user and password"
	at, password := a.User.Username(), func(u *url.URL) string { p, _ := u.User.Password(); return p }
	switch vhost, other := vhostOf(a), vhostOf(b); {
	case strings.HasPrefix(a.Scheme, "amqp") && vhost != other:
		return fmt.Errorf("has the virtual host %q at %s and %q at %s: %s", vhost, a.Host, other, b.Host, all)
	case at != b.User.Username():
		return fmt.Errorf("has the user %q at %s and %q at %s: %s", at, a.Host, b.User.Username(), b.Host, all)
	case password(a) != password(b):
		return fmt.Errorf("has another password at %s than at %s: %s", b.Host, a.Host, all)
	}
	return nil
}

// parsed returns a URL; an empty one where it cannot be parsed.
func parsed(rawURL string) *url.URL {
	if u, err := url.Parse(rawURL); err == nil {
		return u
	}
	return &url.URL{}
}

func VHost(text string) string { return vhostOf(parsed(SplitURLs(text)[0])) }

func vhostOf(u *url.URL) string {
	if u.Path == "" || u.Path == "/" {
		return "/"
	}
	return strings.TrimPrefix(u.Path, "/")
}

func User(text string) string { return parsed(SplitURLs(text)[0]).User.Username() }

// Host is the host:port of a URL; "" where it cannot be parsed.
func Host(rawURL string) string { return parsed(rawURL).Host }

// OrderURLs returns the indexes of urls in random order, so that clients spread over a cluster. The host that
// failed last comes at the end.
func OrderURLs(urls []string, last string) []int {
	var others, end []int
	for _, i := range rand.Perm(len(urls)) {
		if Host(urls[i]) == last {
			end = append(end, i)
		} else {
			others = append(others, i)
		}
	}
	return append(others, end...)
}

// Redact is a text without passwords, for logs and errors.
func Redact(text string) string {
	urls := SplitURLs(text)
	for i, s := range urls {
		urls[i] = "(a URL that cannot be parsed)"
		if u, err := url.Parse(s); err == nil && !hasUnencodedPassword(s) {
			urls[i] = u.Redacted()
		}
	}
	return strings.Join(urls, ", ")
}

// PathPart escapes a text as one segment of a URL's path: no slash, and no . or .. that would be cleaned away.
func PathPart(text string) string {
	if text == "." || text == ".." {
		return strings.ReplaceAll(text, ".", "%2E")
	}
	return url.PathEscape(text)
}

// ErrParameter: a URL has a parameter, as in ?name=value, that is not accepted.
var ErrParameter = errors.New("has a parameter that cannot be kept")

// MaxHeartbeat is the maximum that a URL may ask for, in seconds.
const MaxHeartbeat = 60

var (
	// tlsParameters are for amqps:// alone.
	tlsParameters = []string{"cacertfile", "certfile", "keyfile", "server_name_indication"}
	// known are all that are accepted.
	known = append(slices.Clone(tlsParameters), "auth_mechanism", "heartbeat", "connection_timeout", "verify")
	// printable matches names that an error may quote: no part of a password that a ? has cut off.
	printable = regexp.MustCompile(`^[a-z][a-z_]{0,30}$`)
)

// checkParameters returns an error for the parameters of an AMQP URL. It refuses unknown ones: after a mistake in a
// name the default would apply, and no one would notice.
func checkParameters(u *url.URL) error {
	if !strings.HasPrefix(u.Scheme, "amqp") {
		return nil
	}
	all := u.Query()
	for name := range all {
		value := all.Get(name)
		switch {
		case name == "verify" && value != "verify_peer":
			return hint.Errorf("name its authority with cacertfile=FILE",
				"%w: verify=verify_none, since RabbitMQ's certificate is always verified", ErrParameter)
		case !slices.Contains(known, name):
			if !printable.MatchString(name) {
				name = "one"
			}
			return fmt.Errorf("%w: %s; expected some of %s", ErrParameter, name, strings.Join(known, ", "))
		case u.Scheme != "amqps" && slices.Contains(tlsParameters, name):
			return fmt.Errorf("%w: %s, which is for amqps://", ErrParameter, name)
		case name == "heartbeat" && !between(value, MaxHeartbeat):
			return fmt.Errorf("%w: heartbeat; expected seconds from 1 to %d (10 when left out)", ErrParameter,
				MaxHeartbeat)
		case name == "connection_timeout" && !between(value, 600_000):
			return fmt.Errorf("%w: connection_timeout; expected milliseconds from 1 to 600000 (10000 when left out)",
				ErrParameter)
		case name == "auth_mechanism" && slices.ContainsFunc(all[name], func(m string) bool {
			return !slices.Contains([]string{"plain", "amqplain", "external"}, strings.ToLower(m))
		}):
			return fmt.Errorf("%w: auth_mechanism; expected plain, amqplain or external", ErrParameter)
		}
	}
	return nil
}

// Secure reports whether all URLs are amqps://, and none has TLS parameters of its own.
func Secure(text string) bool {
	for _, s := range SplitURLs(text) {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "amqps" || slices.ContainsFunc(tlsParameters, u.Query().Has) {
			return false
		}
	}
	return true
}

func between(text string, limit int) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n >= 1 && n <= limit
}
