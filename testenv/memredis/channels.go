package memredis

import "slices"

// subscribe is SSUBSCRIBE.
func (s *Server) subscribe(c *connection, channels []string) answer {
	var all answers
	for _, name := range channels {
		if !slices.Contains(c.channels, name) {
			c.channels = append(c.channels, name)
		}
		all = append(all, push{"ssubscribe", name, int64(len(c.channels))})
	}
	return all
}

// unsubscribe is SUNSUBSCRIBE without arguments and, by other names, what ends subscriptions to
// channels of kinds that are not here.
func (s *Server) unsubscribe(c *connection, kind string) answer {
	if kind != "sunsubscribe" || len(c.channels) == 0 {
		return push{kind, nil, int64(0)}
	}
	var all answers
	for i, name := range c.channels {
		all = append(all, push{kind, name, int64(len(c.channels) - 1 - i)})
	}
	c.channels = nil
	return all
}

// publish is SPUBLISH.
func (s *Server) publish(a []string) answer {
	if len(a) != 2 {
		return failure("ERR wrong number of arguments for 'spublish' command")
	}
	n := int64(0)
	for c := range s.connections {
		if slices.Contains(c.channels, a[0]) {
			c.send(push{"smessage", a[0], a[1]})
			n++
		}
	}
	return n
}
