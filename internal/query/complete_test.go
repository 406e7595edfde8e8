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
		for _, s := range Complete(text, nil, false) {
			got = append(got, s.Text)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if n := len(Complete("", nil, false)); n != len(Fields()) {
		t.Errorf("%d for nothing", n)
	}
}

// What there is completes too: quoted where it has to be.
func TestCompleteNames(t *testing.T) {
	names := func(field string) []string {
		return map[string][]string{"queue": {"orders", "orders.eu", "a b"}, "policy": {"default"}}[field]
	}
	for text, want := range map[string]string{
		"queue:o": "queue:orders queue:orders.eu", "-queue:a": `-queue:"a b"`, "state:parked policy:": "policy:default", "reason:reje": "reason:rejected", "error:": "",
	} {
		var got []string
		for _, s := range Complete(text, names, false) {
			got = append(got, s.Text)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	for _, s := range Complete("", names, true) {
		value := "*"
		if s.Text == "before:" || s.Text == "after:" {
			value = "2026-11-21"
		}
		if err := parse(t, s.Text+value).OnlyGroups(); err != nil {
			t.Error(err)
		}
	}
	if all := Complete("attem", names, true); all != nil {
		t.Errorf("groups have no attempts: %v", all)
	}
}
