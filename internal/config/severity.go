package config

import (
	"fmt"

	"github.com/goccy/go-yaml/ast"

	"github.com/redrive-mq/redrive/internal/notify"
)

// severityRules give events a severity by their queue and their message.
func (d *document) severityRules(n ast.Node, where string) (all []notify.Rule) {
	d.each(d.sequence(n, where, `a list such as [{when: "header.tenant:gold", is: critical}]`), func(i int, item ast.Node) {
		where := fmt.Sprintf("%s[%d]", where, i)
		var rule notify.Rule
		keys := d.mapping(item, where, map[string]field{
			"when": func(n ast.Node) {
				var err error
				if rule, err = notify.NewRule(d.text(n, where+".when", "a query, such as header.tenant:gold"), rule.Is); err != nil {
					d.fail(n, "%s.when: %w", where, err)
				}
			},
			"is": func(n ast.Node) { rule.Is = d.severity(n, where+".is") },
		})
		if keys < 2 {
			d.fail(item, "%s needs when and is, such as {when: \"type:OrderPlaced\", is: critical}", where)
		}
		all = append(all, rule)
	})
	return all
}

func (d *document) severity(n ast.Node, where string) notify.Severity {
	is, err := notify.ParseSeverity(d.text(n, where, "info, warning or critical"))
	if err != nil {
		d.fail(n, "%s: %w", where, err)
	}
	return is
}
