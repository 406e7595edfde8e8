package webui

import (
	"net/url"
	"testing"
)

// A tab finds what its query finds, in another state.
func TestTabsKeepTheMeaningOfAQuery(t *testing.T) {
	for query, want := range map[string]struct{ state, waiting, all string }{
		"":                                  {"", "state:waiting", ""},
		"state:parked":                      {"parked", "state:waiting", ""},
		"queue:a state:parked":              {"parked", "state:waiting queue:a", "queue:a"},
		`text:"state:parked" x`:             {"", `state:waiting text:"state:parked" x`, `text:"state:parked" x`},
		"text:a OR text:b":                  {"", "state:waiting (text:a OR text:b)", "text:a OR text:b"},
		"state:parked (text:a OR text:b)":   {"parked", "state:waiting (text:a OR text:b)", "(text:a OR text:b)"},
		"state:parked OR queue:x":           {"", "state:waiting (state:parked OR queue:x)", "state:parked OR queue:x"},
		"(state:parked OR queue:x) queue:y": {"", "state:waiting (state:parked OR queue:x) queue:y", "(state:parked OR queue:x) queue:y"},
		"queue:x NOT state:parked":          {"", "state:waiting queue:x NOT state:parked", "queue:x NOT state:parked"},
		`text:"a \" OR (" OR b`:             {"", `state:waiting (text:"a \" OR (" OR b)`, `text:"a \" OR (" OR b`},
	} {
		all, state := tabs(query)
		if state != want.state || all[0].Query != want.waiting || all[4].Query != want.all {
			t.Errorf("%s: of state %q; waiting %q, all %q", query, state, all[0].Query, all[4].Query)
		}
		if again, state := tabs(all[0].Query); state != "waiting" || again[0].Query != all[0].Query {
			t.Errorf("%s: its tab of what waits leads to %q, of state %q", query, again[0].Query, state)
		}
	}
}

// What was done is said as it is; a count only of messages.
func TestWhatWasDoneIsSaid(t *testing.T) {
	for link, want := range map[string]string{
		"did=pause&n=1": "retries paused, until a person resumes them", "did=note": "note kept", "did=replay&n=1": "1 message is retried", "did=nothing&n=1": "", "did=replay": "",
	} {
		q, err := url.ParseQuery(link)
		if err != nil {
			t.Fatal(err)
		}
		if got := did(q); got != want {
			t.Errorf("%s: %q, want %q", link, got, want)
		}
	}
}
