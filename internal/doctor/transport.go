package doctor

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/addresses"
	"github.com/redrive-mq/redrive/internal/auth"
)

// parsed are the URLs of a text.
func parsed(urls string) (all []*url.URL) {
	for _, s := range addresses.Split(urls) {
		if u, err := url.Parse(s); err == nil {
			all = append(all, u)
		}
	}
	return all
}

// hosts are theirs.
func hosts(urls string) (all []string) {
	for _, u := range parsed(urls) {
		all = append(all, u.Hostname())
	}
	return all
}

// away tells whether a host is another machine.
func away(host string) bool { return host != "" && !auth.Loopback(net.JoinHostPort(host, "0")) }

func transport(s *Scene) (all []Finding) {
	for _, at := range []struct{ key, url, plain, secure string }{
		{"broker.url", s.Config.Broker.URL, "amqp", "amqps://…:5671/"},
		{"broker.management", s.Config.Broker.Management, "http", "https://…:15671"},
	} {
		var plain []string
		unverified := false
		for _, u := range parsed(at.url) {
			if u.Scheme == at.plain && away(u.Hostname()) {
				plain = append(plain, u.Hostname())
			}
			unverified = unverified || strings.HasPrefix(u.Query().Get("verify"), "verify_none")
		}
		if len(plain) > 0 {
			all = append(all, Finding{Status: Warning, What: fmt.Sprintf("%s speaks to %s without TLS", at.key, strings.Join(plain, ", ")), Remedy: fmt.Sprintf("Set %s to %s, with a listener for TLS in RabbitMQ.", at.key, at.secure)})
		}
		if unverified {
			all = append(all, Finding{Status: Warning, What: at.key + " says verify=verify_none, which Redrive ignores: it always checks RabbitMQ's certificate", Remedy: "Take it out, and name the authority by cacertfile=."})
		}
	}
	if s.Insecure {
		all = append(all, Finding{Status: Warning, What: "REDRIVE_INSECURE=1: the command line sends tokens and passwords without TLS to other machines", Remedy: "Reach the service by https://.", Commands: []string{"unset REDRIVE_INSECURE"}})
	}
	return all
}

func guest(s *Scene) (all []Finding) {
	if s.Guest {
		all = append(all, Finding{Status: Wrong, What: "RabbitMQ lets guest in from other machines, with the password guest",
			Remedy: "Delete the user, or change its password and take it out of use; keep loopback_users.guest = true.", Commands: []string{"rabbitmqctl delete_user guest"}})
	}
	if far := slices.DeleteFunc(hosts(s.Config.Broker.URL), func(h string) bool { return !away(h) }); s.User == "guest" && len(far) > 0 {
		all = append(all, Finding{Status: Warning, What: "the service connects as guest to " + strings.Join(far, ", "),
			Remedy: "Make a user for it alone, with the rights it needs:", Commands: []string{s.redrive("permissions")}})
	}
	return all
}
