package actions

import (
	"reflect"
	"strings"
	"testing"
)

// Texts that a verb is missing from would be empty on the page and the command line.
func TestAVerbHasAllThatIsSaidOfIt(t *testing.T) {
	act, _ := reflect.TypeFor[Act]().FieldByName("Verb")
	enum := strings.Split(act.Tag.Get("enum"), ",")
	if len(enum) != len(verbs) {
		t.Errorf("the API knows %q, and there are %d verbs", enum, len(verbs))
	}
	for _, name := range enum {
		v := verbs[Verb(name)]
		if v.title == "" || v.one == "" || v.more == "" || v.role == 0 || v.kind == "" {
			t.Errorf("%s: something is missing of %+v", name, v)
		}
		if err := (RecordChange{}).Check(); !strings.Contains(err.Error(), name) {
			t.Errorf("%v: does not name %s", err, name)
		}
	}
}
