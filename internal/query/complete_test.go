package query

import (
	"strings"
	"testing"
)

func TestComplete(t *testing.T) {
	for text, want := range map[string]string{
		"sta":             "state:",
		"queue:orders st": "state:",
		"(state:p":        "state:parked",
		"-reason:e":       "-reason:expired",
		"-(a OR -he":      "-header.",
		"state:parked":    "",
		"state:x":         "",
		`error:"st`:       "",
		"nowhere":         "",
		"queue:o":         "",
		"p":               "parked: policy:",
		"state:":          "state:waiting state:retried state:parked state:discarded",
	} {
		var got []string
		for _, s := range Complete(text) {
			got = append(got, s.Text)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if n := len(Complete("")); n != len(Fields()) {
		t.Errorf("%d for nothing", n)
	}
}
