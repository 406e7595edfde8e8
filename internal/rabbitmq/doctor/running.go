package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/redrive-mq/redrive/internal/inspect"
)

// connecting ends a problem that each service has when it starts: it has not connected for the first
// time, or failed to.
const connecting = ": connecting"

// declares tells whether a service runs that declares what is missing: nothing keeps it from that.
func (v *Service) declares() bool {
	return v.Asked != "" && v.Err == nil && !slices.ContainsFunc(v.Problems, func(p string) bool {
		return inspect.MakesNotReady(p) && !strings.HasSuffix(p, connecting)
	})
}

func running(s *Scene) (all []Finding) {
	v := s.Service
	switch {
	case v.Asked == "":
		return []Finding{{Status: OK, What: "not asked: no address is configured"}}
	case v.Err != nil && !v.Named:
		return []Finding{{Status: OK, What: "not asked: nothing answers at " + v.Asked + ", and no address is configured"}}
	case v.Err != nil:
		return []Finding{{Status: Warning, What: fmt.Sprintf("no service answers at %s: %v", v.Asked, v.Err), Remedy: "Start it, or give the address of one by --address.", Commands: []string{s.redrive("serve")}}}
	}
	// Not as s.Call, whose --vhost is in the address already.
	status := []string{command("redrive status --address", v.Asked)}
	for _, p := range v.Problems {
		if strings.HasSuffix(p, connecting) {
			all = append(all, Finding{Status: OK, InProgress: true, What: "in progress: the service has just been started: " + p})
			continue
		}
		f := Finding{Status: Wrong, What: "not ready: " + p}
		if !inspect.MakesNotReady(p) {
			f = Finding{Status: Warning, What: p}
		}
		f.Commands = status
		all = append(all, f)
	}
	for _, n := range v.Notices {
		all = append(all, Finding{Status: Warning, What: n, Commands: status})
	}
	return all
}
