package doctor

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// The functions of this file make all commands that findings print, which setups_test.go runs: it
// fails for one that no case runs, and for one that is made elsewhere.

// call is how our command is called.
func (s *Scene) call() string { return cmp.Or(s.Call, "redrive") }

// redrive is a command line of ours, for people to copy.
func (s *Scene) redrive(line string, args ...string) string {
	var b strings.Builder
	b.WriteString(s.call() + " " + line)
	if s.File != "" {
		b.WriteString(" --config " + Quote(s.File))
	}
	return command(b.String(), operands(args...)...)
}

// operands are queues' names, of which none is taken for a flag.
func operands(names ...string) []string {
	if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "-") }) {
		return append([]string{"--"}, names...)
	}
	return names
}

// command is a line, and arguments behind it.
func command(line string, args ...string) string {
	for _, a := range args {
		line += " " + Quote(a)
	}
	return line
}

// rabbitmqctl is a command about the virtual host.
func (s *Scene) rabbitmqctl(line string, args ...string) string {
	return command("rabbitmqctl "+line+" -p", append([]string{s.VHost}, args...)...)
}

// curl is a request to the management API; it asks for the password.
func (s *Scene) curl(method, at string, body any) string {
	line := "curl -u " + Quote(s.Manage.User()) + " -X " + method
	if ca := s.Config.Broker.Credentials.TLS.CA; ca != "" && strings.HasPrefix(at, "https:") {
		line += " --cacert " + Quote(ca)
	}
	if body != nil {
		text, _ := json.Marshal(body) // maps of texts and numbers
		line += " -H content-type:application/json -d " + Quote(string(text))
	}
	return line + " " + Quote(at)
}

// deleteCommand deletes what is at a URL of the management API.
func (s *Scene) deleteCommand(at string) string { return s.curl("DELETE", at, nil) }

// setPolicy sets a policy, by set_policy or set_operator_policy; one that would set nothing is
// cleared.
func (s *Scene) setPolicy(kind string, p management.Policy) string {
	if len(p.Definition) == 0 {
		return s.rabbitmqctl("clear_"+kind, p.Name)
	}
	definition, _ := json.Marshal(p.Definition) // it came as JSON
	return s.rabbitmqctl("set_"+kind, p.Name, p.Pattern, string(definition), "--priority", strconv.Itoa(p.Priority), "--apply-to", cmp.Or(p.ApplyTo, "queues"))
}
