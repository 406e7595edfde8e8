package connect

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/redrive-mq/redrive/testenv/expect"
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
		order := OrderURLs(urls, Host(last))
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
		if got := SplitURLs(text); !slices.Equal(got, want) {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestURLsThatCannotBeUsedAreRefused(t *testing.T) {
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
		err := CheckURLs(text, "amqp", "amqps")
		if said := fmt.Sprint(err); (err == nil) != (want == "") || err != nil && !strings.Contains(said, want) ||
			strings.Contains(said, "s3cret") {
			t.Errorf("%q: %v, want %q, and no password", text, err, want)
		}
	}
	expect.Err(t, CheckURLs("http://u:p@h1:15672/a,http://u:p@h2:15672/b", "http"), nil,
		"the path of a management API is no virtual host")
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
	expect.Equal(t, VHost(text)+" "+User(text), "shop svc", "virtual host and user")
	expect.Equal(t, Redact(text), "amqp://svc:xxxxx@h1/shop, amqp://svc:xxxxx@h2/shop", "redacted")
}

// What amqp091-go's parameters ask for is kept, or refused.
func TestParameters(t *testing.T) {
	for _, good := range []string{
		"amqps://h/?cacertfile=/ca.pem&certfile=/c.pem&keyfile=/k.pem&server_name_indication=rabbit&auth_mechanism=external&verify=verify_peer",
		"amqp://h/?heartbeat=60&connection_timeout=30000&auth_mechanism=PLAIN&auth_mechanism=amqplain",
	} {
		expect.Err(t, CheckURLs(good, "amqp", "amqps"), nil, "%s", good)
	}
	for bad, want := range map[string]string{
		"amqp://h/?cacertfile=/ca.pem":         "cacertfile, which is for amqps://",
		"amqps://h/?verify=verify_none":        "always verified",
		"amqps://h/?cacertfle=/ca.pem":         "cacertfle; expected some of cacertfile,",
		"amqp://h/?channel_max=10":             "channel_max; expected",
		"amqp://h/?heartbeat=0":                "seconds from 1 to 60",
		"amqp://h/?heartbeat=61":               "seconds from 1 to 60",
		"amqp://h/?connection_timeout=x":       "milliseconds from 1",
		"amqps://h/?auth_mechanism=anonymous":  "expected plain, amqplain or external",
		"amqp://h1/,amqp://h2/?channel_max=10": "channel_max",
		"amqp://h/?S3cret!":                    "cannot be kept: one; expected",
	} {
		err := CheckURLs(bad, "amqp", "amqps")
		if !errors.Is(err, ErrParameter) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "S3cret") {
			t.Errorf("%s: %v, want %s", bad, err, want)
		}
	}
	expect.NoError(t, CheckURLs("https://h/?whatever=1", "https"))
}

func TestParametersAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/security.md")
	expect.NoError(t, err)
	for _, name := range append([]string{"channel_max"}, known...) {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/how-to/security.md does not have %s", name)
		}
	}
}
