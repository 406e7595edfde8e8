package config

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/configuration.md")

var (
	keysOf   = regexp.MustCompile(`has no key "zzz"; expected one of: ([a-z0-9_, ]+)`)
	expected = regexp.MustCompile(`(?:^|[;,:] )expected (.+)`)
)

// refused is the error for a file in which the key at path has this value.
func refused(t *testing.T, path []string, value string) string {
	t.Helper()
	for _, key := range slices.Backward(path) {
		if name, list := strings.CutSuffix(key, "[]"); list {
			value = "{" + name + ": [" + value + "]}"
		} else {
			value = "{" + name + ": " + value + "}"
		}
	}
	file := t.TempDir() + "/redrive.yaml"
	if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(file, func(string) string { return "" })
	if err == nil {
		return ""
	}
	return err.Error()
}

// keys appends a row for each key below path. They come from the parser itself: from what
// it says of a key that it does not know, and of a value that it cannot read.
func keys(t *testing.T, path []string, rows *[]string) bool {
	t.Helper()
	m := keysOf.FindStringSubmatch(refused(t, path, "{zzz: 1}"))
	if m == nil {
		return false
	}
	for key := range strings.SplitSeq(m[1], ", ") {
		below := append(slices.Clone(path), key)
		at := len(*rows)
		*rows = append(*rows, "")
		if keys(t, below, rows) {
			(*rows)[at] = fmt.Sprintf("| `%s` | keys | %s |", strings.Join(below, "."), variableOf(below))
			continue
		}
		what := "–"
		if e := expected.FindStringSubmatch(refused(t, below, "{zzz: 1}")); e != nil {
			what = strings.NewReplacer("|", `\|`, "*", `\*`).Replace(strings.TrimSpace(e[1]))
		}
		list := append(slices.Clone(path), key+"[]")
		(*rows)[at] = fmt.Sprintf("| `%s` | %s | %s |", strings.Join(below, "."), what, variableOf(below))
		keys(t, list, rows)
		if key == "roles" {
			keys(t, append(below, "NAME"), rows)
		}
	}
	return true
}

func variableOf(path []string) string {
	if name := Variable(strings.Join(path, ".")); name != "" {
		return "`" + name + "`"
	}
	return ""
}

// The reference has each key that the parser knows, and the example file, which shows
// each of them.
func TestTheReference(t *testing.T) {
	const file, begin = "../../docs/reference/configuration.md", "<!-- go test ./internal/config -run TestTheReference -update writes what follows -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../../redrive.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	keys(t, nil, &rows)
	if len(rows) < 90 {
		t.Errorf("only %d keys were found", len(rows))
	}
	before, is, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no place for the reference", file)
	}
	want := "\n| key | value | variable |\n|---|---|---|\n" + strings.Join(rows, "\n") +
		"\n\n## The example file\n\n`redrive.example.yaml` explains each key.\n\n```yaml\n" + string(example) + "```\n"
	switch {
	case is == want:
	case *update:
		if err := os.WriteFile(file, []byte(before+begin+want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the parser: go test ./internal/config -run TestTheReference -update writes it", file)
	}
	for _, row := range rows {
		path, _, _ := strings.Cut(strings.TrimPrefix(row, "| `"), "`")
		key := path[strings.LastIndexByte(path, '.')+1:]
		if !strings.Contains(string(example), strings.TrimSuffix(key, "[]")+":") && key != "NAME" {
			t.Errorf("the example does not show %s, so users never hear of it", path)
		}
	}
}
