package addresses

import (
	"slices"
	"strings"
	"testing"
)

func TestSplit(t *testing.T) {
	for text, want := range map[string][]string{
		"amqp://h/":                                  {"amqp://h/"},
		"amqp://h1/, amqps://h2/\n":                  {"amqp://h1/", "amqps://h2/"},
		"amqp://u:a,b@h1/v,amqp://u:a,b@h2/v":        {"amqp://u:a,b@h1/v", "amqp://u:a,b@h2/v"},
		"http://h1:15672/prefix ,https://h2:15672/p": {"http://h1:15672/prefix", "https://h2:15672/p"},
		"": {""},
	} {
		if got := Split(text); !slices.Equal(got, want) {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	for text, want := range map[string]string{
		"amqp://u:s3cret@h1/v,amqps://u:s3cret@h2:5671/v": "",
		"amqp://h1,amqp://h2/,amqp://h3/%2F":              "",
		"":                                                "is not a URL",
		"amqp://u:s3cret@h1/,amqp://u:s3cret@h 2/":  "is not a URL",
		"amqp://h1/,http://h2/":                     `begins with "http://": expected amqp:// or amqps://`,
		"amqp://u:s3cret@h1,h2/":                    "has several hosts in one URL",
		"amqp://u:s3cret@h1/a,amqp://u:s3cret@h2/b": `has the virtual host "a" at h1 and "b" at h2: all must be nodes of one cluster`,
		"amqp://u:s3cret@h1/a,amqp://u:s3cret@h2":   `has the virtual host "a" at h1 and "/" at h2`,
		"amqp://u:s3cret@h1/,amqp://v:s3cret@h2/":   `has the user "u" at h1 and "v" at h2`,
		"amqp://u:s3cret@h1/,amqp://h2/":            `has the user "u" at h1 and "" at h2`,
		"amqp://u:s3cret@h1/,amqp://u:s3cret2@h2/":  "has another password at h2 than at h1",
	} {
		err := Check(text, "amqp", "amqps")
		if got := ""; want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			if err != nil {
				got = err.Error()
			}
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
	if err := Check("http://u:p@h1:15672/a,http://u:p@h2:15672/b", "http"); err != nil {
		t.Errorf("the path of a management API is no virtual host: %v", err)
	}
}

func TestWhatAllHave(t *testing.T) {
	const text = "amqp://svc:s3cret@h1/shop,amqp://svc:s3cret@h2/shop"
	if got := VHost(text) + " " + User(text); got != "shop svc" {
		t.Errorf("virtual host and user: %s", got)
	}
	if got := Redact(text); got != "amqp://svc:xxxxx@h1/shop, amqp://svc:xxxxx@h2/shop" {
		t.Errorf("redacted: %s", got)
	}
}
