package addresses

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/hint"
)

// ErrParameter: a URL has a parameter, as in ?name=value, that is not accepted.
var ErrParameter = errors.New("has a parameter that cannot be kept")

// LongestHeartbeat is the longest that a URL may ask for, in seconds.
const LongestHeartbeat = 60

var (
	// tlsParameters are for amqps:// alone.
	tlsParameters = []string{"cacertfile", "certfile", "keyfile", "server_name_indication"}
	// known are all that are accepted.
	known = append(slices.Clone(tlsParameters), "auth_mechanism", "heartbeat", "connection_timeout", "verify")
	// printable matches names that an error may quote: they cannot be a part of a password that a ?
	// has cut off.
	printable = regexp.MustCompile(`^[a-z][a-z_]{0,30}$`)
)

// checkParameters returns an error for the parameters of an AMQP URL. Unknown ones are refused:
// after a mistake in a name the default would apply, and no one would notice.
func checkParameters(u *url.URL) error {
	if !strings.HasPrefix(u.Scheme, "amqp") {
		return nil
	}
	all := u.Query()
	for name := range all {
		value := all.Get(name)
		switch {
		case name == "verify" && value != "verify_peer":
			return hint.Errorf("name its authority with cacertfile=FILE", "%w: verify=verify_none, since RabbitMQ's certificate is always verified", ErrParameter)
		case !slices.Contains(known, name):
			if !printable.MatchString(name) {
				name = "one"
			}
			return fmt.Errorf("%w: %s; expected some of %s", ErrParameter, name, strings.Join(known, ", "))
		case u.Scheme != "amqps" && slices.Contains(tlsParameters, name):
			return fmt.Errorf("%w: %s, which is for amqps://", ErrParameter, name)
		case name == "heartbeat" && !between(value, LongestHeartbeat):
			return fmt.Errorf("%w: heartbeat; expected seconds from 1 to %d (10 when left out)", ErrParameter, LongestHeartbeat)
		case name == "connection_timeout" && !between(value, 600_000):
			return fmt.Errorf("%w: connection_timeout; expected milliseconds from 1 to 600000 (10000 when left out)", ErrParameter)
		case name == "auth_mechanism" && slices.ContainsFunc(all[name], func(m string) bool {
			return !slices.Contains([]string{"plain", "amqplain", "external"}, strings.ToLower(m))
		}):
			return fmt.Errorf("%w: auth_mechanism; expected plain, amqplain or external", ErrParameter)
		}
	}
	return nil
}

// Secure tells whether all URLs are amqps://, and none has TLS parameters of its own.
func Secure(text string) bool {
	for _, s := range Split(text) {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "amqps" || slices.ContainsFunc(tlsParameters, u.Query().Has) {
			return false
		}
	}
	return true
}

func between(text string, most int) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n >= 1 && n <= most
}
