package config

import (
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// defaultPolicyYAML is policy.Default as a config file would have it.
const defaultPolicyYAML = `name: default
queues: ["*"]
attempts: 8
backoff: {exponential: {initial: 1s, factor: 2, max: 10m}}
jitter: 0.2
`

// yamlOf is the text of a policy, without the indentation that it has as an item of the list.
func yamlOf(n ast.Node) string {
	lines := strings.Split(strings.Trim(n.String(), "\n"), "\n")
	indent := -1
	for _, line := range lines[min(1, len(lines)):] {
		if text := strings.TrimLeft(line, " "); text != "" && (indent < 0 || len(line)-len(text) < indent) {
			indent = len(line) - len(text)
		}
	}
	for i, line := range lines {
		if i == 0 {
			lines[i] = strings.TrimLeft(line, " ")
		} else if indent > 0 {
			lines[i] = line[min(indent, len(line)):]
		}
	}
	return strings.Join(lines, "\n") + "\n"
}
