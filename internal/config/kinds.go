package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/policy"
	"github.com/redrive-mq/redrive/wire"
)

// kind reads the values of a key.
type kind[T any] struct {
	expected string // what they are, for the reference
	read     func(v value) T
}

// and adds a check.
func (k kind[T]) and(check func(v value, read T)) kind[T] {
	return kind[T]{k.expected, func(v value) T {
		read := k.read(v)
		check(v, read)
		return read
	}}
}

// scalar is a text that parse understands.
func scalar[T any](expected string, parse func(s string) (read T, ok bool)) kind[T] {
	return kind[T]{expected, func(v value) T {
		read, ok := parse(v.text(expected))
		if !ok {
			v.wrong(expected)
		}
		return read
	}}
}

// parsing is a text. The error of parse says what is expected.
func parsing[T any](expected string, parse func(s string) (T, error)) kind[T] {
	return kind[T]{expected, func(v value) T {
		read, err := parse(v.text(expected))
		if err != nil {
			v.fail(": %w", err)
		}
		return read
	}}
}

func text(expected string) kind[string] {
	return kind[string]{expected, func(v value) string { return v.text(expected) }}
}

// file is a file or folder, beside the config file unless absolute.
func file(expected string) kind[string] {
	return kind[string]{expected, func(v value) string { return v.beside(v.text(expected)) }}
}

func choice[T any](expected string, of map[string]T) kind[T] {
	return scalar(expected, among(of))
}

func among[T any](of map[string]T) func(s string) (T, bool) {
	return func(s string) (T, bool) {
		t, ok := of[s]
		return t, ok
	}
}

func oneOf(expected string, texts ...string) kind[string] {
	return scalar(expected, func(s string) (string, bool) { return s, slices.Contains(texts, s) })
}

func matching(expected, expression string) kind[string] {
	is := regexp.MustCompile(expression)
	return scalar(expected, func(s string) (string, bool) { return s, is.MatchString(s) })
}

// list is a list of single values; empty is the error of an empty list, if that is one.
func list[T any](expected, empty string, item kind[T]) kind[[]T] {
	return kind[[]T]{expected, func(v value) (all []T) {
		v.each(expected, func(_ int, v value) { all = append(all, item.read(v)) })
		if len(all) == 0 && empty != "" {
			v.fail(empty)
		}
		return all
	}}
}

func texts(expected, empty string) kind[[]string] { return list(expected, empty, text("a text")) }

func files(expected string) kind[[]string] { return list(expected, "", file("a text")) }

// queues are names or patterns; empty is as of list.
func queues(empty string) kind[[]string] {
	return texts(`a list of queue names or patterns, such as ["orders.*"]`, empty)
}

var vhosts = texts(`a list of virtual hosts or patterns, such as ["shop-*"]`,
	" is empty; leave the key out for all virtual hosts")

var boolean = kind[bool]{"true or false", func(v value) bool {
	b, ok := v.node.(*ast.BoolNode)
	if !ok {
		v.wrong("true or false")
	}
	return b.Value
}}

// whole is a whole number from 1.
func whole(most int) kind[int] { return wholeNumber(most, "") }

func wholeNumber(most int, of string) kind[int] {
	return scalar(fmt.Sprintf("a whole number from 1 to %d%s", most, of), func(s string) (int, bool) {
		n, err := strconv.Atoi(s)
		return n, err == nil && n >= 1 && n <= most
	})
}

func number(low, high float64) kind[float64] {
	return scalar(fmt.Sprintf("a number from %v to %v", low, high), func(s string) (float64, bool) {
		n, err := strconv.ParseFloat(s, 64)
		return n, err == nil && n >= low && n <= high
	})
}

var duration = scalar("a duration such as 500ms, 10s, 1m30s, 2h or 1d",
	func(s string) (time.Duration, bool) {
		d, err := ParseDuration(s)
		return d, err == nil
	})

// between is a duration; limits are least and most in words.
func between(least, most time.Duration, limits string) kind[time.Duration] {
	k := duration.and(func(v value, d time.Duration) {
		if d < least || d > most {
			v.wrong("a duration from " + limits)
		}
	})
	k.expected = "a duration from " + limits
	return k
}

var span = between(100*time.Millisecond, 24*time.Hour, "100ms to 1d")

const year = 366 * 24 * time.Hour

// standing is a duration, or 0.
var standing = scalar("never, or a duration from 1m to a year", func(s string) (time.Duration, bool) {
	if s == "never" || s == "0" {
		return 0, true
	}
	d, err := ParseDuration(s)
	return d, err == nil && (d == 0 || d >= time.Minute && d <= year)
})

// length is how many messages, also none.
var length = scalar("a number of messages, also 0", func(s string) (*int, bool) {
	n, err := strconv.Atoi(s)
	return &n, err == nil && n >= 0
})

// ParseDuration is Go's, with days and weeks.
func ParseDuration(s string) (time.Duration, error) {
	for unit, hours := range map[string]float64{"d": 24, "w": 7 * 24} {
		if number, ok := strings.CutSuffix(s, unit); ok {
			v, err := strconv.ParseFloat(number, 64)
			if ns := v * hours * float64(time.Hour); err == nil && math.Abs(ns) < math.MaxInt64 {
				return time.Duration(ns), nil
			}
			return 0, fmt.Errorf("%q is not a duration", s)
		}
	}
	if s == "0" {
		return 0, fmt.Errorf("a duration needs a unit")
	}
	return time.ParseDuration(s)
}

// repeated is a wait with how often: 10s x6.
var repeated = regexp.MustCompile(`^(\S+)\s+[x×]\s*(\d+)$`)

const maxWaits = 100_000

func delays(expected string) kind[[]time.Duration] {
	return kind[[]time.Duration]{expected, func(v value) (all []time.Duration) {
		v.each(expected, func(_ int, v value) {
			s, times := v.text("a wait such as 10s, or 10s x6"), 1
			if m := repeated.FindStringSubmatch(s); m != nil {
				s = m[1]
				var err error
				if times, err = strconv.Atoi(m[2]); err != nil || times < 1 || len(all)+times > maxWaits {
					v.fail(": %s repeats %s times; expected from 1 to %d waits in all", m[1], m[2], maxWaits)
				}
			}
			w, err := ParseDuration(s)
			if err != nil {
				v.has("a wait such as 500ms, 10s, 1m30s, 2h or 1d, with repeats as in 10s x6")
			}
			if err := policy.Fixed(w).Validate(); err != nil {
				v.fail(": %w", err)
			}
			all = append(all, slices.Repeat([]time.Duration{w}, times)...)
		})
		return all
	}}
}

// has reports an unexpected item of a list.
func (v value) has(expected string) { v.fail(" has %s; expected %s", show(v.node), expected) }

var sizeUnits = map[string]uint64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

var size = scalar("a size such as 256MiB or 2GiB", func(s string) (uint64, bool) {
	for unit, by := range sizeUnits {
		if number, ok := strings.CutSuffix(s, unit); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 32)
			return n * by, err == nil && n > 0
		}
	}
	return 0, false
})

var rate = scalar("a number of retries per second, minute or hour, such as 200/s, 30/min or 5/h", ParseRate)

const maxRate = 1_000_000 // a second

// ParseRate reads a rate per second, minute or hour ("200/s", "30/min", "5/h"), as messages
// per second.
func ParseRate(s string) (perSecond float64, ok bool) {
	number, per, _ := strings.Cut(s, "/")
	seconds := map[string]float64{"s": 1, "min": 60, "h": 3600}[strings.TrimSpace(per)]
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if seconds == 0 || err != nil || !(v > 0 && v/seconds <= maxRate) {
		return 0, false
	}
	return v / seconds, true
}

var wholeRate = regexp.MustCompile(`^([0-9]+)/(s|min|h)$`)

// perMinute is a whole number, at least one.
var perMinute = scalar("a number in a minute, such as 100/min", func(s string) (int, bool) {
	m := wholeRate.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	n, _ := strconv.ParseFloat(m[1], 64)
	n = math.Ceil(n * map[string]float64{"s": 60, "min": 1, "h": 1.0 / 60}[m[2]])
	return int(n), n >= 1 && n <= 1e9
})

var share = scalar("a share above 0 and up to 100%, such as 50% or 0.5",
	func(s string) (float64, bool) {
		s, percent := strings.CutSuffix(s, "%")
		n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if percent {
			n /= 100
		}
		return n, err == nil && n > 0 && n <= 1
	})

var jitter = scalar("none, full, equal, or a fraction from 0 to 1", func(s string) (policy.Jitter, bool) {
	if j, ok := map[string]policy.Jitter{"none": policy.None, "full": policy.Full, "equal": policy.Equal}[s]; ok {
		return j, true
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 0 && n <= 1) {
		return policy.None, false
	}
	return policy.Fraction(n), true
})

var levels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
}

// ParseLevel reads the least level that is logged.
func ParseLevel(s string) (slog.Level, bool) { return among(levels)(s) }

// urls is one URL, or a list with one for each node of a cluster.
func urls(schemes ...string) kind[string] {
	const expected = "a URL, or a list of URLs"
	check := func(v value, s string) {
		if err := connect.CheckURLs(s, schemes...); err != nil {
			v.fail(" %w", err)
		}
	}
	each := list(expected, "", text("a text").and(check))
	return kind[string]{expected, func(v value) string {
		if _, several := v.node.(*ast.SequenceNode); several {
			return connect.JoinURLs(each.read(v))
		}
		return v.text(expected)
	}}.and(check)
}

// oneURL is one, where there are no nodes.
func oneURL(schemes ...string) kind[string] {
	k := urls(schemes...).and(func(v value, s string) {
		if len(connect.SplitURLs(s)) > 1 {
			v.fail(" has several URLs; expected one")
		}
	})
	k.expected = "a URL"
	return k
}

// issuer is sent the client's secret.
var issuer = oneURL("http", "https").and(func(v value, s string) {
	u, err := url.Parse(s)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		u.Scheme != "https" && !auth.Loopback(u.Host) {
		v.fail(" is not right; expected the provider's URL, with https, such as https://login.example.com")
	}
})

var address = scalar("host:port, such as 127.0.0.1:8250",
	func(s string) (string, bool) {
		_, port, err := net.SplitHostPort(s)
		n, notNumber := strconv.Atoi(port)
		return s, err == nil && notNumber == nil && n >= 0 && n < 1<<16
	})

// steps are parts of a path whose characters need no escaping anywhere.
var steps = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$`)

var basePath = scalar("a path such as /redrive", func(s string) (string, bool) {
	s = strings.TrimSuffix(s, "/")
	return s, s == "" || steps.MatchString(s)
}).and(func(v value, s string) {
	if s == "/v" || strings.HasPrefix(s, "/v/") {
		v.fail(" is %s, and /v/ is where virtual hosts are; expected another path", show(v.node))
	}
})

const expectedNetworks = `a list of addresses or networks, such as ["10.0.0.0/8"]`

var networks = list(expectedNetworks, "", kind[netip.Prefix]{read: func(v value) netip.Prefix {
	p, err := auth.ParseProxy(v.text("an address"))
	if err != nil {
		v.has("an address or network, such as 10.0.0.7 or 10.0.0.0/8")
	}
	return p
}})

const expectedRoles = "tags of RabbitMQ's users with a role each, such as monitoring: viewer"

const expectedGroups = "groups with a role each, such as on-call: operator"

// roles maps tags or groups to roles; any name may be one. of returns the keys of a role.
func roles(
	expected, what string, mayBeEmpty bool, of func(name string, g *auth.Grant) key,
) kind[map[string]auth.Grant] {
	return kind[map[string]auth.Grant]{expected, func(v value) map[string]auth.Grant {
		all := map[string]auth.Grant{}
		if items, is := pairs(v.node); mayBeEmpty && is && len(items) == 0 {
			return all
		}
		v.eachNamed(expected, what, func(name string, _, item value) {
			var g auth.Grant
			of(name, &g).readFrom(item)
			all[name] = g
		})
		return all
	}}
}

const expectedFollowed = "dead-letter queues with a work queue each, such as orders_error: orders, " +
	"or {queue: orders, then: retry}"

// queueName is a queue that RabbitMQ can have, and not one of Redrive's.
func (v value) queueName(name string) {
	switch {
	case name == "":
		v.fail(" is empty; expected a queue's name")
	case len(name) > 255 || !utf8.ValidString(name):
		v.fail(" is no name of a queue: those are at most 255 bytes of UTF-8")
	case wire.OwnQueue(name):
		v.fail(" is %q, one of Redrive's own queues", name)
	}
}

// workQueue is the queue whose dead letters land in a followed one.
var workQueue = text("a queue's name").and(func(v value, name string) {
	v.queueName(name)
	if strings.ContainsAny(name, "*?") {
		v.fail(" is %q, a pattern; expected the name of one queue", name)
	}
})

// followed are dead-letter queues by name or pattern; names come first. A work queue that is followed
// itself would get its own messages again and again.
var followed = kind[[]Followed]{expectedFollowed, func(v value) (all []Followed) {
	var at []value
	v.eachNamed(expectedFollowed, "a queue's name or pattern", func(name string, key, item value) {
		if key.queueName(name); strings.Trim(name, "*") == "" {
			key.fail(".%q would follow every queue; expected names, or a pattern such as *.dlq", name)
		}
		f := Followed{Name: name}
		follow(&f).readFrom(item)
		all, at = append(all, f), append(at, item)
	})
	for i, f := range all {
		for _, other := range all {
			if f.Queue != "" && policy.MatchQueue(other.Name, f.Queue) {
				at[i].fail(" has the work queue %q, which adopt follows too (%s); its messages would go round",
					f.Queue, other.Name)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Followed) int {
		return map[bool]int{true: 1}[a.IsPattern()] - map[bool]int{true: 1}[b.IsPattern()]
	})
	return all
}}

const expectedWait = "disk, levels, {levels: [1s, 10s, 1m]}, {fixed: 30s}, dynamic, message-ttl, " +
	"{binary: 1s} or delayed-exchange"

// wait is how the messages of a policy wait: nil for the service's own store.
var wait = kind[delay.Way]{expectedWait, func(v value) delay.Way {
	switch s := v.text(expectedWait); s {
	case "disk":
		return nil
	case "levels":
		return v.way(delay.NewLevels(delay.Quorum))
	case "dynamic":
		return v.way(delay.NewDynamic(minDynamic))
	case "message-ttl":
		return delay.NewMessageTTL(delay.Quorum, false)
	case "delayed-exchange":
		return delay.Plugin{}
	case "fixed", "binary":
		v.fail(": %s needs a duration, as in {%s: 1s}", s, s)
	case "native":
		v.fail(": native is the work queue's own wait, in which the service has no part; " +
			"set it on the queue, and let it dead-letter to Redrive what passes its delivery limit")
	}
	v.wrong(expectedWait)
	return nil
}}

func (v value) way(way delay.Way, err error) delay.Way {
	if err != nil {
		v.fail(": %w", err)
	}
	return way
}

// body is that of a webhook: its templates.
var body = kind[map[string]any]{"a mapping of texts that are templates", func(v value) (b map[string]any) {
	err := yaml.NodeToValue(v.node, &b)
	if err == nil {
		err = notify.CheckBody(b)
	}
	if err == nil && len(b) == 0 {
		err = errors.New("it is empty")
	}
	if err != nil {
		v.fail(" is no mapping of texts that are templates, such as {text: \"{{.title}}\"}: %w", err)
	}
	return b
}}

var eventNames = strings.Join(notify.KindNames(), ", ")

var event = kind[notify.Kind]{read: func(v value) notify.Kind {
	name := v.text("an event")
	if !slices.Contains(notify.KindNames(), name) {
		v.has("some of " + eventNames)
	}
	return notify.Kind(name)
}}

// hours are two times of day, in minutes since midnight.
var hours = scalar("two times of day, such as 22:00-07:00",
	func(s string) (at [2]int, ok bool) {
		from, to, ok := strings.Cut(s, "-")
		for i, s := range []string{from, to} {
			t, err := time.Parse("15:04", strings.TrimSpace(s))
			at[i], ok = 60*t.Hour()+t.Minute(), ok && err == nil
		}
		return at, ok && at[0] != at[1]
	})

var zone = scalar("a time zone such as Europe/Berlin or UTC", func(s string) (*time.Location, bool) {
	at, err := time.LoadLocation(s)
	return at, err == nil && s != "" && s != "Local"
})
