package doctor

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// limits compares what is used with the limits of the virtual host and of the service's user.
func limits(s *Scene) (all []Finding) {
	if err := s.Missing[Clients]; err != nil {
		all = append(all, Finding{Status: Unknown, What: "looked at only as far as queues: limits of the virtual host and of the service's user", Why: err.Error()})
	}
	var connections, own, channels int
	for _, c := range s.Connections {
		if c.VHost == s.VHost {
			connections++
		}
		if c.User == s.User {
			own++
			channels += c.Channels
		}
	}
	vhost, user := maps.Clone(s.VHostLimits), maps.Clone(s.UserLimits) // raised: a command replaces all
	of := fmt.Sprintf("user %q", s.User)
	for _, l := range []struct {
		of, key, what string
		in, raised    management.Limits
		used          int
		byClients     bool // what is used is known from clients
	}{
		{"the virtual host", "max-queues", "queues", s.VHostLimits, vhost, len(s.Queues), false},
		{"the virtual host", "max-connections", "connections", s.VHostLimits, vhost, connections, true},
		{of, "max-connections", "connections", s.UserLimits, user, own, true},
		{of, "max-channels", "channels", s.UserLimits, user, channels, true},
	} {
		most, limited := l.in[l.key]
		if !limited || most < 0 {
			continue
		}
		if l.byClients && s.Missing[Clients] != nil || l.used*10 < most*9 {
			continue
		}
		f := Finding{Status: Warning, What: fmt.Sprintf("%s has %d %s, and its limit is %d (%s)", l.of, l.used, l.what, most, l.key), Remedy: "Raise the limit, or find out what uses so many:"}
		if l.used >= most {
			f.Status = Wrong
		}
		l.raised[l.key] = 2*max(most, l.used) + 10
		text, _ := json.Marshal(l.raised)
		if f.Commands = []string{s.rabbitmqctl("set_vhost_limits", string(text))}; l.of == of {
			f.Commands = []string{command("rabbitmqctl set_user_limits", s.User, string(text))}
		}
		all = append(all, f)
	}
	return all
}
