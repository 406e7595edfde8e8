package addresses

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the addresses, each is tried exactly once, and the one used last at the end.
func TestOrderTriesEachAddressOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := rapid.SliceOfN(rapid.IntRange(1, 9), 1, 6).Draw(t, "hosts")
		var urls []string
		for _, h := range hosts {
			urls = append(urls, fmt.Sprintf("amqp://u:p@h%d:5672/", h))
		}
		last := rapid.SampledFrom(append(urls, "", "amqp://elsewhere:5672/")).Draw(t, "last")
		order := Order(urls, Host(last))
		isLast := false
		for _, i := range order {
			if isLast && urls[i] != last {
				t.Fatalf("the order of %q is %v: %s was used last, and is not tried last", urls, order, last)
			}
			isLast = urls[i] == last
		}
		slices.Sort(order)
		for i := range urls {
			if len(order) != len(urls) || order[i] != i {
				t.Fatalf("of %q the indexes %v are tried", urls, order)
			}
		}
	})
}

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

func TestAPolicyThatAWayCannotKeepIsRefused(t *testing.T) {
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
		// A port may be any digits, so these are URLs, with another host than was meant.
		"amqp://u:12#s3cret@h1/v":          "in a password write",
		"amqp://u:12/s3cret@h1/v":          "in a password write",
		"amqp://u:12?s3cret@h1/v":          "in a password write",
		"amqp://u:12@a/s3cret@h1/v":        "in a password write",
		"amqp://h1/,amqp://u:1/s3cret@h1/": "in a password write",
		"amqp://u:s3%40cr%23et@h1/a%40b":   "",
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

func TestNoPartOfAPasswordIsShown(t *testing.T) {
	for _, text := range []string{"amqp://u:12#s3cret@h1/v", "amqp://u:12/s3cret@h1/v", "amqp://u:12?s3cret@h1/v", "amqp://u:p@a/s3cret@h1/v", "amqp://u:s3cret@a@h1/v"} {
		if got := Redact(text); strings.Contains(got, "s3cret") || strings.Contains(got, "12") {
			t.Errorf("%q is shown as %q", text, got)
		}
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
