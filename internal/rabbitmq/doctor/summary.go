package doctor

import (
	"cmp"
	"fmt"
	"strings"
)

// shown is how many queues with the same finding are named: of more there is one finding.
const shown = 10

// repaired sets what repairs a finding, which can be about several queues.
func (f Finding) repaired(each func(queues []string) []string) Finding {
	f.each, f.Commands = each, each([]string{f.Queue})
	return f
}

// summarize makes one finding of more than a few of a check's that are alike: where a policy is for
// every queue, hundreds may lack the same.
func summarize(found []Finding) (all []Finding) {
	type kind struct {
		status            Status
		what, why, remedy string
	}
	of := func(f Finding) kind { return kind{f.Status, cmp.Or(f.alike, f.What), f.Why, f.Remedy} }
	canMerge := func(f Finding) bool { return f.Queue != "" && (f.each != nil || len(f.Commands) == 0) }
	alike := map[kind][]Finding{}
	for _, f := range found {
		if canMerge(f) {
			alike[of(f)] = append(alike[of(f)], f)
		}
	}
	for _, f := range found {
		switch same := alike[of(f)]; {
		case !canMerge(f) || len(same) <= shown:
			all = append(all, f)
		case same[0].Queue == f.Queue:
			all = append(all, merge(same))
		}
	}
	return all
}

// merge makes one finding of several that are alike.
func merge(same []Finding) Finding {
	f := same[0]
	f.fixes = nil
	for _, one := range same {
		f.Queues = append(f.Queues, one.Queue)
		f.fixes = append(f.fixes, one.fixes...)
	}
	f.Queue, f.What = "", fmt.Sprintf("%d queues (%s and %d more), each: %s", len(same), strings.Join(f.Queues[:shown], ", "), len(same)-shown, cmp.Or(f.alike, f.What))
	if f.each != nil {
		f.Commands = f.each(f.Queues)
	}
	return f
}

// enrollment is the commands that enrol queues: each line stays of a size that people can read.
func (s *Scene) enrollment(line string) func(queues []string) []string {
	return func(queues []string) (all []string) {
		const most = 50
		for len(queues) > 0 {
			n := min(most, len(queues))
			all = append(all, s.redrive(line, queues[:n]...))
			queues = queues[n:]
		}
		return all
	}
}
