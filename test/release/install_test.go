package release_test

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// `go install …/cmd/redrive@latest` refuses a module that replaces or excludes others.
func TestTheModuleCanBeInstalled(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json", root+"/go.mod").Output()
	var m struct {
		Module           struct{ Path string }
		Replace, Exclude []any
	}
	if err != nil || json.Unmarshal(out, &m) != nil || m.Module.Path != "github.com/redrive-mq/redrive" {
		t.Fatalf("go mod edit: %v\n%s", err, out)
	}
	if len(m.Replace) > 0 || len(m.Exclude) > 0 {
		t.Errorf("go.mod replaces %v and excludes %v", m.Replace, m.Exclude)
	}
}
