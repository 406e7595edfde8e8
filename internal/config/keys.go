package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/internal/auth"
	"github.com/redrive-mq/redrive/internal/connect"
	"github.com/redrive-mq/redrive/internal/decode"
	"github.com/redrive-mq/redrive/internal/delay"
	"github.com/redrive-mq/redrive/internal/mask"
	"github.com/redrive-mq/redrive/internal/notify"
	"github.com/redrive-mq/redrive/internal/query"
	"github.com/redrive-mq/redrive/internal/throttle"
	"github.com/redrive-mq/redrive/policy"
)

// key is a row of the table of keys.
type key struct {
	name     string
	to       any           // where its value is read into; before that, its default
	expected string        // what its value is; "": a mapping of the keys below
	read     func(v value) // nil: only a mapping of the keys below
	below    []key
	items    []key  // the keys of what is in its list
	in       string // what stands for one of items in a path: "[]" or ".NAME"
	variable bool   // an environment variable sets it, unless it is in a list
	checks   []func(v value, sound bool)
	last     func(v value)
}

// row is a key with a value of a kind.
func row[T any](name string, to *T, k kind[T]) key {
	return key{name: name, to: to, expected: k.expected, read: func(v value) { *to = k.read(v) }, variable: true}
}

// group is a key with keys below.
func group(name string, below ...key) key { return key{name: name, below: below} }

// entries is a key with a list. of returns the keys of an entry, and what else it may be.
func entries[T any](name, expected string, to *[]T, of func(i int, entry *T) key) key {
	return key{name: name, expected: expected, variable: true, read: func(v value) {
		*to = nil
		v.each(expected, func(i int, item value) {
			var entry T
			item.path = fmt.Sprintf("%s[%d]", v.path, i)
			of(i, &entry).readFrom(item)
			*to = append(*to, entry)
		})
	}}.of("[]", of(0, new(T)))
}

// of names the keys of a list's items, for the reference.
func (k key) of(in string, item key) key { k.in, k.items = in, item.below; return k }

// or allows a mapping with these keys instead.
func (k key) or(below ...key) key { k.below = below; return k }

// settable gives a mapping a variable too.
func (k key) settable() key { k.variable = true; return k }

// then runs if nothing is wrong, for checks of several keys.
func (k key) then(last func(v value)) key { k.last = last; return k }

// also checks a mapping; sound is false after mistakes in its keys.
func (k key) also(check func(v value, sound bool)) key { k.checks = append(k.checks, check); return k }

// need makes one of the keys of a mapping necessary.
func (k key) need(wrong string, keys ...string) key {
	return k.also(func(v value, _ bool) {
		if v.lacks(keys...) {
			v.fail(wrong)
		}
	})
}

func (k key) readFrom(v value) {
	if _, ok := pairs(v.node); k.read != nil && (!ok || k.below == nil) {
		k.read(v)
	} else {
		v.keys = k.below
		sound := v.try(v.mapping)
		all := sound
		for _, check := range k.checks {
			all = v.try(func() { check(v, sound) }) && all
		}
		if !all {
			panic(collected{})
		}
	}
	if k.last != nil {
		k.last(v)
	}
}

// keys is the table of all keys. The tables of policies and other list items are below.
func (c *Config) keys() key {
	r, a, n, p := &c.Store.Redis, &c.Access, &c.Notify, &c.Decode.Protobuf
	return group("",
		group("broker",
			row("url", &c.Broker.URL, urls("amqp", "amqps")),
			row("management", &c.Broker.Management, urls("http", "https")),
			c.brokerTLS(),
			entries("vhosts", expectedVHosts, &c.Broker.VHosts, c.vhost),
		),
		group("store",
			row("disk", &c.Store.Disk, text("a folder")),
			row("reserve", &c.Store.Reserve, size),
			row("restorable", &c.Store.Restorable, between(time.Minute, policy.LongestDelay, "1m to ten years")),
			group("redis",
				row("url", &r.URL, oneURL(redisSchemes...)),
				row("prefix", &r.Prefix, matching("a name without braces and spaces", `^[^{} \t\r\n]+$`)),
				row("durability", &r.Durability, oneOf(
					"synced (on Redis's disk), replicated (in the memory of replicas) or cached (neither)",
					"synced", "replicated", "cached")),
				row("replicas", &r.Replicas, whole(16)),
				row("lease", &r.Lease, between(5*time.Second, 10*time.Minute, "5s to 10m0s")),
				row("timeout", &r.Timeout, between(100*time.Millisecond, time.Minute, "100ms to 1m0s")),
				group("tls",
					row("ca", &r.CA, file("a file")),
					row("cert", &r.Cert, file("a file")),
					row("key", &r.Key, file("a file")),
				).settable().then(func(v value) {
					if (r.Cert == "") != (r.Key == "") {
						v.fail(" needs both cert and key, files in PEM, or neither")
					}
				}),
			).then(func(v value) {
				if r.Replicas > 0 && r.Durability != "replicated" {
					v.fail(".replicas is how many must have what is written, which durability: replicated asks for; " +
						"expected both or neither")
				}
			}),
		),
		row("listen", &c.Listen, address),
		row("base_path", &c.BasePath, basePath),
		group("log",
			row("format", &c.Log.Format, oneOf("text or json", "text", "json")),
			row("level", &c.Log.Level, choice("debug, info, warn or error", levels)),
		),
		group("auth",
			row("roles", &a.Roles, roles(expectedRoles, "a tag", true,
				func(_ string, g *auth.Grant) key { return grant(g) })).of(".NAME", grant(&auth.Grant{})),
			row("metrics", &a.OpenMetrics, choice("open, for everybody, or viewer",
				map[string]bool{"open": true, "viewer": false})),
			c.proxies(),
			c.oidc(),
			group("bodies",
				row("viewer", &a.Bodies[auth.Viewer], level),
				row("operator", &a.Bodies[auth.Operator], level),
				row("editor", &a.Bodies[auth.Editor], level),
				row("admin", &a.Bodies[auth.Admin], level),
			),
			row("show", &a.Show, list("a list of roles, such as [operator, editor]", " is empty; leave the key out",
				parsing("a role", auth.ParseRole))),
		).settable().then(func(value) { a.SignIn = true }),
		row("tls", &a.BehindProxy,
			choice("keys cert and key, or behind-proxy", map[string]bool{"behind-proxy": true})).or(
			row("cert", &a.TLS.Cert, file("a file")),
			row("key", &a.TLS.Key, file("a file")),
			row("client_ca", &a.TLS.ClientCA, file("a file")),
		).then(func(v value) {
			if !a.BehindProxy && (a.TLS.Cert == "" || a.TLS.Key == "") {
				v.fail(" needs both cert and key, files in PEM")
			}
		}),
		row("read_only", &a.ReadOnly, boolean),
		entries("policies", "a list of policies", (*[]policy.Policy)(&c.Policies), c.policy).then(func(v value) {
			if len(c.Policies) == 0 {
				v.fail(" is empty, so every message would be parked; leave the key out for the default policy")
			}
		}),
		row("adopt", &c.Adopt, followed).of(".NAME", follow(&Followed{})),
		entries("watch", "a list of queues with what is too much", (*[]Watched)(&c.Watch), watched),
		entries("mask", "a list of what is masked", &c.Mask, masked),
		group("decode",
			group("protobuf",
				row("files", &p.Files, files(`a list of files, such as ["proto/order.proto"]`)),
				row("import_paths", &p.ImportPaths, files(`a list of folders, such as ["proto"]`)),
				row("descriptor_sets", &p.DescriptorSets, files(`a list of files, such as ["shop.pb"]`)),
				entries("queues", "a list of queues with a message", &p.Queues, queueType),
				row("header", &p.Header, text("a header's name")),
				row("type_property", &p.TypeProperty, boolean),
			).settable().
				need(" names neither files nor descriptor_sets, so there are no types", "files", "descriptor_sets").
				need(" does not say which messages have which type; expected queues, header or type_property",
					"queues", "header", "type_property"),
		),
		group("notify",
			row("page", &n.Page, oneURL("http", "https").and(func(v value, s string) {
				if u, err := url.Parse(s); err != nil || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
					v.wrong("where the page is, such as https://redrive.example.com")
				}
			})),
			row("critical", &n.Critical, queues(" is empty; leave the key out")),
			row("no_consumer", &n.NoConsumer, between(0, year, "0s to a year")),
			row("oldest_waiting", &n.OldestWaiting, between(time.Second, year, "1s to a year")),
			row("burst", &n.Burst, perMinute),
			row("allow_private", &n.AllowPrivate, networks),
			entries("routes", "a list of routes", &n.Routes, c.route),
		),
	).also(func(v value, _ bool) {
		unknown := v.unknown() // which may be any
		c.brokerUnsound = unknown || v.unsound["broker"]
		if unknown || v.unsound["listen"] || v.unsound["auth"] || v.unsound["tls"] {
			return
		}
		if err := c.CheckExposure(); err != nil {
			listen, _ := v.at("listen")
			v.refuse(listen.node, err)
		}
	}).then(func(v value) {
		if err := c.checkOIDC(); err != nil {
			auth, _ := v.at("auth")
			v.refuse(auth.node, err)
		}
		c.warnOfOverlaps()
		c.warnOfTopicPatterns()
		for _, f := range c.Adopt {
			if _, ok := c.Policies.Match(f.Queue); f.Then == ThenRetry && f.Queue != "" && !ok {
				c.warn("adopt.%s: no policy is for the queue %q, so what lands there is parked", f.Name, f.Queue)
			}
		}
	})
}

func (c *Config) oidc() key {
	o := &c.Access.OIDC
	return group("oidc",
		row("issuer", &o.Issuer, issuer),
		row("client_id", &o.ClientID, text("a text")),
		row("client_secret_file", &o.SecretFile, file("a file with the client's secret")),
		row("ca", &o.CA, file("a file in PEM")),
		row("name", &o.Name, text("a name for people")),
		row("contact", &o.Contact, text("whom to ask for a role")),
		row("scopes", &o.Scopes, texts("a list of scopes, such as [profile, email, groups, offline_access]", "")),
		row("groups", &o.Claim, text("the claim with the groups of a person, or a path such as realm_access.roles")),
		row("roles", &o.Groups, roles(expectedGroups, "a group", false, groupGrant(c.groupVHosts))).
			of(".NAME", groupGrant(map[string][]string{})("", &auth.Grant{})),
	).settable().
		need(" has no issuer; expected the provider's URL, such as https://login.example.com", "issuer").
		need(" has no client_id; expected the one that the provider knows this service by", "client_id").
		need(" has no client_secret_file; expected a file with the client's secret", "client_secret_file").
		need(" has no roles, so nobody could sign in; expected "+expectedGroups, "roles").
		then(func(v value) {
			if o.ClientID == "" || o.SecretFile == "" || o.Claim == "" {
				v.fail(" has an empty client_id, client_secret_file or groups; expected texts")
			}
			if u, err := url.Parse(o.Issuer); err == nil && o.Name == "" {
				o.Name = u.Host
			}
		})
}

func (c *Config) proxies() key {
	a, p := &c.Access, &c.Access.Proxy
	addresses := (*[]netip.Prefix)(&a.Proxies)
	header := matching("a header such as X-Forwarded-User", `^[A-Za-z][A-Za-z0-9-]*$`)
	return row("proxies", addresses, networks).or(
		row("addresses", addresses, networks),
		row("user_header", &p.UserHeader, header),
		row("groups_header", &p.GroupsHeader, header),
		row("roles", &p.Groups, roles("groups with a role each, as in auth.oidc.roles", "a group", false,
			groupGrant(c.proxyVHosts))),
		row("contact", &p.Contact, text("whom to ask for a role")),
		row("sign_out", &p.SignOut, matching("a URL or a path, such as /oauth2/sign_out", `^(https?:/)?/[!-~]+$`)),
	).
		need(" has no addresses; expected those of the proxies, such as [10.0.0.7]", "addresses").
		need(" has no user_header; expected the header that names a person, such as X-Forwarded-User", "user_header").
		need(" has no groups_header; expected the header with their groups, such as X-Forwarded-Groups",
			"groups_header").
		need(" has no roles, so nobody could sign in; expected "+expectedGroups, "roles").
		then(func(v value) {
			everybody := slices.ContainsFunc(a.Proxies, func(n netip.Prefix) bool { return n.Bits() == 0 })
			switch {
			case p.UserHeader == "":
			case len(a.Proxies) == 0 || everybody:
				v.fail(".addresses says whose %s is believed; expected the addresses of proxies, such as [10.0.0.7]",
					p.UserHeader)
			case strings.EqualFold(p.UserHeader, p.GroupsHeader):
				v.fail(".user_header and .groups_header are the same; expected two headers")
			}
		})
}

// groupGrant is grant for a group, which may be for some virtual hosts only.
func groupGrant(only map[string][]string) func(group string, g *auth.Grant) key {
	return func(group string, g *auth.Grant) key {
		var in []string
		k := grant(g, row("vhosts", &in, vhosts))
		check := k.last
		return k.then(func(v value) {
			check(v)
			only[group] = in
		})
	}
}

func grant(g *auth.Grant, more ...key) key {
	role := parsing("a role", auth.ParseRole)
	return row("", &g.Role, role).or(append([]key{
		row("role", &g.Role, role),
		row("queues", &g.Queues, queues(" is empty; leave the key out for all queues")),
	}, more...)...).then(func(v value) {
		if g.Role == auth.NoRole {
			v.fail(" names no role; expected role: viewer, operator, editor or admin")
		}
	})
}

// follow reads Followed.Then.
func follow(f *Followed) key {
	f.Then = ThenPark
	return row("", &f.Queue, workQueue).or(
		row("queue", &f.Queue, workQueue),
		row("then", &f.Then, oneOf("park, or retry by the policy of the work queue", ThenPark, ThenRetry)),
		row("vhosts", &f.vhost, vhosts),
	).then(func(v value) {
		switch {
		case f.Queue == "":
		case f.IsPattern():
			v.fail(" is a pattern, and one work queue alone would be that of all its queues; " +
				"name each, such as orders.dlq: orders")
		case f.Queue == f.Name:
			v.fail(" names itself as the work queue; expected the queue whose dead letters land there")
		}
	})
}

func watched(_ int, w *Watched) key {
	*w = defaultWatch()
	return group("",
		row("queues", &w.Queues, queues(" names no queues; expected queues: [\"orders.*\"]")),
		row("standing", &w.Standing, standing),
		row("ready", &w.Ready, length),
		row("growing_for", &w.GrowingFor, between(time.Minute, year, "1m to a year")),
		row("unacknowledged", &w.Unacked, between(time.Minute, year, "1m to a year")),
		row("each_increase", &w.EachIncrease, boolean),
	).then(func(v value) {
		if w.EachIncrease && w.Ready == nil {
			v.fail(" has each_increase, and no ready to begin at; expected ready: 0 for every message")
		}
	}).need(" names no queues; expected queues: [\"orders.*\"]", "queues")
}

var level = choice("hidden, masked or shown", mask.Levels)

func masked(_ int, e *mask.Entry) key {
	checked := func(check func(string) error) kind[string] {
		return text("a text").and(func(v value, s string) {
			if err := check(s); err != nil {
				v.fail(": %w", err)
			}
		})
	}
	return group("",
		row("paths", &e.Paths, list(`a list of paths such as ["body.customer.email", "body..iban", "header.token"]`,
			" is empty; leave the key out", checked(mask.CheckPath))),
		row("patterns", &e.Patterns, list("a list of "+strings.Join(mask.Patterns(), ", ")+" and /regular expressions/",
			" is empty; leave the key out", checked(mask.CheckPattern))),
		row("queues", &e.Queues, queues(" is empty; leave the key out for all queues")),
		row("types", &e.Types, texts(`a list of message types or patterns, such as ["Order*"]`,
			" is empty; leave the key out for all types")),
	).need(" masks nothing; expected paths: [\"body..iban\"], or patterns: [card_number]", "paths", "patterns")
}

func queueType(_ int, q *decode.QueueType) key {
	return group("",
		row("queues", &q.Queues, queues("")),
		row("message", &q.Message, text("a message type")),
	).then(func(v value) {
		if len(q.Queues) == 0 || q.Message == "" {
			v.fail(" needs queues and a message, such as {queues: [\"orders.*\"], message: shop.Order}")
		}
	})
}

const expectedVHosts = "a list of virtual hosts, each a name or {name: …, user: …, password_env: …}"

func (c *Config) vhost(_ int, h *VHost) key {
	const noName = " has no name; expected a virtual host's, such as billing"
	var at secretSource
	return row("", &h.Name, text(expectedVHosts)).or(
		row("name", &h.Name, text("a name")),
		row("user", &h.User, text("a user of RabbitMQ's").and(func(v value, user string) {
			if user == "" {
				v.fail(" is empty; expected a user of RabbitMQ's")
			}
		})),
		row("password_env", &at.env, text("a text")),
		row("password_file", &at.file, file("a text")),
	).also(func(v value, _ bool) {
		switch {
		case len(v.given("password_env", "password_file")) > 1:
			v.fail(" has password_env and password_file; expected one of them")
		case v.lacks("user") != v.lacks("password_env", "password_file"):
			v.fail(" has only one of a user and a password; expected user with password_env or password_file, " +
				"or neither for those of broker.url")
		}
	}).need(noName, "name").then(func(v value) {
		if h.Name == "" {
			v.fail(noName)
		}
		name, _ := v.at("name")
		at.fail = name.place()
		c.vhosts = append(c.vhosts, at)
	})
}

// brokerTLS are the service's client certificate and RabbitMQ's authorities. The files must exist
// and be usable when the config is read.
func (c *Config) brokerTLS() key {
	t := &c.Broker.Credentials.TLS
	return group("tls",
		row("ca", &t.CA, file("a file in PEM").and(func(v value, ca string) {
			if _, err := (connect.TLS{CA: ca}).Config(""); err != nil {
				v.fail(": %w", err)
			}
		})),
		row("cert", &t.Cert, file("a file in PEM")),
		row("key", &t.Key, file("a file in PEM")),
		row("server_name", &t.ServerName, text("a host's name")),
	).settable().then(func(v value) {
		if *t == (connect.TLS{}) {
			v.fail(" is empty; expected some of ca, cert and key, server_name")
		}
		c.tlsAt.fail = v.place()
		secure, err := t.Config("")
		if err != nil {
			last := v
			for _, name := range v.given("ca", "cert", "key") {
				last, _ = v.at(name)
			}
			v.document.fail(last.node, "%s: %w", v.path, err)
		}
		c.warnOfExpiry(t.Cert, secure.Certificates)
	})
}

func (c *Config) policy(i int, p *policy.Policy) key {
	const reasons = "rejected, expired, maxlen, delivery_limit"
	*p = policy.Default()
	p.Name, p.Queues = fmt.Sprintf("policy %d", i+1), nil
	var only []string // virtual hosts
	var levels []time.Duration
	var fixed, unit time.Duration
	var to policy.Destination
	var way delay.Way
	limits := throttle.Rules{Settle: throttle.DefaultSettle, NoConsumer: throttle.PauseWithoutConsumers}
	on, breaker := false, throttle.DefaultBreaker()
	return group("",
		row("name", &p.Name, text("a name")),
		row("queues", &p.Queues, queues(" names no queues; expected queues: [\"orders.*\"]")),
		row("vhosts", &only, vhosts),
		row("attempts", &p.Attempts, attempts),
		backoff(&p.Backoff),
		row("jitter", &p.Jitter, jitter),
		row("max_retry_after", &p.MaxRetryAfter, duration),
		row("max_age", &p.MaxAge, duration),
		row("max_replays", &p.MaxReplays, whole(policy.MaxAttempts)),
		row("reasons", &p.Reasons, texts("a list of "+reasons,
			" is empty, so nothing would be retried; expected some of "+reasons)),
		row("exhausted", &p.Exhausted, choice(
			"park, discard, or forward: {exchange: …, routing_key: …} or forward: {queue: …}",
			map[string]policy.Exhausted{"park": {Action: policy.Park}, "discard": {Action: policy.Discard}})).or(
			forward(&to).then(func(value) {
				p.Exhausted = policy.Exhausted{Action: policy.Forward, Destination: to}
			}),
		),
		entries("rules", "a list of rules", &p.Rules, c.rule).then(func(v value) { c.warnOfRules(p) }),
		row("wait", &way, wait).or(
			row("levels", &levels, delays("a list of waits")).then(func(v value) {
				if len(levels) == 0 {
					v.fail(" is empty; leave the list out for levels from 1s to 1h")
				}
				if len(levels) > maxLevels {
					v.fail(" are %d; expected at most %d, since each is a queue in RabbitMQ", len(levels), maxLevels)
				}
				way = v.way(delay.NewLevels(delay.Quorum, levels...))
			}),
			row("fixed", &fixed, duration).then(func(v value) {
				way = v.way(delay.NewFixed(delay.Quorum, fixed))
			}),
			row("binary", &unit, duration).then(func(v value) { way = v.way(delay.NewLadder(unit)) }),
		).then(func(v value) { v.form(expectedWait) }),
		row("retention", &p.Retention, retention).or(
			row("after", &p.Retention, retention),
			row("noted", &p.ExpireNoted, boolean),
		).then(func(v value) {
			if p.Retention == 0 {
				v.fail(" does not say after what; expected after: 30d")
			}
		}),
		row("rate", &limits.Rate, rate),
		row("in_flight", &limits.InFlight, whole(throttle.MaxTracked)),
		row("settle", &limits.Settle, span),
		row("breaker", &on, choice("on, off, or a mapping such as "+
			"{share: 50%, least: 20, window: 1m, wait: 10s, max_wait: 2m, probes: 3, ramp: 1m}",
			map[string]bool{"on": true, "true": true, "off": false, "false": false})).or( // these never change
			row("share", &breaker.FailureRatio, share),
			row("least", &breaker.MinRetries, whole(throttle.MaxTracked)),
			row("window", &breaker.Window, span),
			row("wait", &breaker.Wait, span),
			row("max_wait", &breaker.MaxWait, span),
			row("probes", &breaker.Probes, whole(1000)),
			row("ramp", &breaker.Ramp, span),
		).then(func(v value) {
			if most, given := v.at("max_wait"); breaker.MaxWait < breaker.Wait {
				if given {
					most.fail(" is shorter than wait (%s)", policy.FormatDuration(breaker.Wait))
				}
				breaker.MaxWait = breaker.Wait
			}
			if _, mapping := pairs(v.node); on || mapping {
				limits.Breaker = &breaker
			}
		}),
		row("no_queue", &limits.NoQueue, span),
		row("no_consumer", &limits.NoConsumer, oneOf(
			"pause, {probes: N} for an autoscaler that starts at N messages, or retry for queues that are read with "+
				"basic.get", throttle.PauseWithoutConsumers, throttle.RetryWithoutConsumers)).or(
			row("probes", &limits.Probes, whole(1000)),
		),
	).need(" names no queues; expected queues: [\"orders.*\"]", "queues").also(func(v value, sound bool) {
		if b := limits.Breaker; sound && b != nil && b.Window < limits.Settle {
			if at, _ := v.at("breaker"); len(at.given("window")) > 0 {
				at.fail(".window is shorter than settle (%s), so no retry would finish within it",
					policy.FormatDuration(limits.Settle))
			}
			b.Window = 2 * limits.Settle
		}
	}).also(func(v value, sound bool) {
		if sound && way != nil {
			v.checkWay(p, way, c)
		}
	}).also(func(v value, _ bool) { // of keys with mistakes p has the defaults
		valid := *p
		if len(p.Queues) == 0 {
			valid.Queues = []string{"*"}
		}
		if err := valid.Validate(); err != nil {
			v.refuse(v.node, err)
		}
	}).then(func(v value) {
		if _, twice := c.Throttle[p.Name]; twice {
			v.document.fail(v.node, "a second policy is named %q", p.Name)
		}
		if way != nil {
			c.Ways[p.Name] = delay.For(p, way)
		}
		c.Throttle[p.Name], c.policyVHosts[p.Name] = limits, only
		c.warnOfLimits(p, way, limits)
	})
}

const expectedBackoff = "one of fixed, linear, exponential, or a list of waits"

func backoff(to *policy.Backoff) key {
	var read policy.Backoff
	var list []time.Duration
	var fixed, step time.Duration
	initial, longest, factor := time.Second, 10*time.Minute, 2.0
	return row("backoff", &list, delays(expectedBackoff)).or(
		row("fixed", &fixed, duration).then(func(value) { read = policy.Fixed(fixed) }),
		group("linear",
			row("initial", &initial, duration),
			row("step", &step, duration),
			row("max", &longest, duration),
		).then(func(v value) {
			if v.lacks("step") {
				step = initial
			}
			read = policy.Linear(initial, step, longest)
		}),
		group("exponential",
			row("initial", &initial, duration),
			row("factor", &factor, number(1, 1000)),
			row("max", &longest, duration),
		).then(func(value) { read = policy.Exponential(initial, factor, longest) }),
	).then(func(v value) {
		if v.form(expectedBackoff) == "" {
			read = policy.List(list...)
		}
		if err := read.Validate(); err != nil {
			v.fail(": %w", err)
		}
		*to = read
	})
}

func forward(to *policy.Destination) key {
	var queue string
	return group("forward",
		row("exchange", &to.Exchange, text("a name")),
		row("routing_key", &to.RoutingKey, text("a text")),
		row("queue", &queue, text("a queue's name")),
	).also(func(v value, sound bool) {
		switch {
		case !sound:
		case queue != "" && *to != (policy.Destination{}):
			v.fail(" has both a queue and an exchange or routing key; expected one")
		case queue != "":
			to.RoutingKey = queue
		case to.Exchange == "":
			v.fail(" names neither an exchange nor a queue")
		}
	})
}

func (c *Config) rule(_ int, r *policy.Rule) key {
	const expected = "park, discard, or a mapping such as {forward: {queue: …}}, {backoff: [1s, 10s]} or {delay: 5m}"
	then := &r.Then
	then.Action = policy.Undecided // until then is read
	var wait time.Duration
	return group("",
		row("name", &r.Name, text("a name")),
		key{name: "when", expected: "a query, such as error:/timeout|deadlock/", read: func(v value) {
			when := v.text("a query")
			rule, err := query.ParseRule(when)
			var wrong *query.Error
			if errors.As(err, &wrong) {
				v.failIn(wrong.At, ": %s", wrong.Msg)
			}
			r.When = rule
		}},
		row("then", &then.Action, choice(expected,
			map[string]policy.Action{"park": policy.Park, "discard": policy.Discard})).or(
			forward(&then.Destination).then(func(value) { then.Action = policy.Forward }),
			backoff(&then.Backoff),
			row("delay", &wait, duration).then(func(value) { then.Backoff = policy.Fixed(wait) }),
			row("attempts", &then.Attempts, attempts),
		).then(func(v value) {
			_, mapping := pairs(v.node)
			switch forms := v.given("forward", "backoff", "delay"); {
			case !mapping, then.Action == policy.Forward && len(v.given("backoff", "delay", "attempts")) == 0:
				return
			case len(forms) != 1:
				v.fail(" needs one of forward, backoff and delay")
			case forms[0] == "forward":
				v.fail(": attempts goes with backoff or delay, not with forward")
			}
			then.Action = policy.Retry
		}),
		row("notify", &r.Notify, choice("urgent, normal or never",
			map[string]policy.Importance{"urgent": policy.Urgent, "normal": policy.Normal, "never": policy.Never})),
	).need(" does not say when; expected a query, such as when: error:timeout", "when").
		need(" does not say what then; expected then: "+expected+"; or notify: urgent", "then", "notify")
}

var attempts = wholeNumber(policy.MaxAttempts, ", the first delivery included")

var retention = between(time.Minute, policy.LongestDelay, "1m to ten years")

// form returns which of the forms a mapping has, and refuses several; "" is no mapping.
func (v value) form(expected string) string {
	forms, ok := pairs(v.node)
	switch {
	case !ok:
		return ""
	case len(forms) != 1:
		v.fail(" has %d forms; expected %s", len(forms), expected)
	}
	return forms[0].Key.String()
}

// routeName needs no escaping in labels and paths.
var routeName = matching("up to 63 letters, digits, - _ and .", `^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

func (c *Config) route(_ int, r *notify.Route) key {
	*r = notify.DefaultRoute()
	at := routeURL{route: len(c.Notify.Routes)}
	var only []string // virtual hosts
	var quiet [2]int
	return group("",
		row("name", &r.Name, routeName),
		row("url", (*string)(&r.URL), text("a text")),
		row("url_env", &at.env, text("a text")),
		row("url_file", &at.file, file("a text")),
		row("body", &r.Body, body),
		row("events", &r.Kinds, list("a list of "+eventNames, " is empty; leave the key out for all events", event)),
		row("queues", &r.Queues, queues(" is empty; leave the key out")),
		row("vhosts", &only, vhosts),
		row("severity", &r.MinSeverity, parsing("info, warning or critical", notify.ParseSeverity)),
		row("group_wait", &r.GroupWait, between(0, year, "0s to a year")),
		row("repeat", &r.Repeat, between(time.Minute, year, "1m0s to a year")),
		group("quiet", row("hours", &quiet, hours), row("zone", &r.Quiet.Zone, zone)).then(func(v value) {
			if len(v.given("hours", "zone")) < 2 {
				v.fail(" needs hours and a zone, such as {hours: 22:00-07:00, zone: Europe/Berlin}")
			}
			r.Quiet.From, r.Quiet.To = quiet[0], quiet[1]
		}),
		row("resolved", &r.Resolved, boolean),
	).need(" has no name", "name").also(func(v value, _ bool) {
		if slices.ContainsFunc(c.Notify.Routes, func(o notify.Route) bool { return o.Name == r.Name }) {
			v.document.fail(v.node, "a second route is named %q", r.Name)
		}
	}).need(" has no URL; expected url_env, url_file or url", "url", "url_env", "url_file").also(func(v value, _ bool) {
		given := v.given("url", "url_env", "url_file")
		if len(given) > 1 {
			v.fail(" has %s; expected one of them", strings.Join(given, " and "))
		}
		if url, ok := v.at("url"); ok && !v.unsound[url.path] {
			if err := notify.Check(r); err != nil {
				url.fail(" %w", err)
			}
		}
	}).then(func(v value) {
		given, _ := v.at(v.given("url", "url_env", "url_file")[0])
		at.fail = given.place()
		if r.URL != "" {
			c.warn("notify route %q: its URL is in the file, for all who can read it; url_env or url_file keep it out",
				r.Name)
		} else {
			c.routeURLs = append(c.routeURLs, at)
		}
		c.routeVHosts[r.Name] = only
	})
}
