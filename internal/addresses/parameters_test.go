package addresses

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// What amqp091-go's parameters ask for is kept, or refused with what is meant.
func TestParameters(t *testing.T) {
	for _, good := range []string{
		"amqps://h/?cacertfile=/ca.pem&certfile=/c.pem&keyfile=/k.pem&server_name_indication=rabbit&auth_mechanism=external&verify=verify_peer",
		"amqp://h/?heartbeat=60&connection_timeout=30000&auth_mechanism=PLAIN&auth_mechanism=amqplain",
	} {
		if err := Check(good, "amqp", "amqps"); err != nil {
			t.Errorf("%s: %v", good, err)
		}
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
		err := Check(bad, "amqp", "amqps")
		if !errors.Is(err, ErrParameter) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "S3cret") {
			t.Errorf("%s: %v, want %s", bad, err, want)
		}
	}
	if err := Check("https://h/?whatever=1", "https"); err != nil {
		t.Error(err)
	}
}

func TestParametersAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/tls.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"channel_max"}, known...) {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/how-to/tls.md does not have %s", name)
		}
	}
}
