package doctor

import (
	"fmt"

	"github.com/redrive-mq/redrive/internal/condition"
)

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
	status := []string{"redrive status --address " + Quote(v.Asked)}
	for _, p := range v.Problems {
		f := Finding{Status: Wrong, What: "not ready: " + p}
		if condition.LineReady(p) {
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
