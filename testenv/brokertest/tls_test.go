package brokertest

import (
	"strings"
	"testing"
)

// By default each test of the suites reaches one of the two versions by TLS; the other is
// reached so with TLSEnv=other, so that both runs together are all of it twice.
func TestWhichTestsGoByTLS(t *testing.T) {
	was := alsoByTLS
	t.Cleanup(func() { alsoByTLS = was })
	brokers := []Broker{
		{AMQP: "amqp://a", AMQPS: "amqps://a", Version: "3.10.8", Authority: "dir"},
		{AMQP: "amqp://b", AMQPS: "amqps://b", Version: "4.3.6", Authority: "dir"},
	}
	secure := func(how, name string, b Broker) (is bool) {
		t.Setenv(TLSEnv, how)
		return strings.HasPrefix(b.over(name).AMQP, "amqps:")
	}
	sums := map[string]int{}
	for _, name := range []string{"TestA", "TestB", "TestC", "TestD", "TestE/of it", "TestF", "TestG", "TestH"} {
		for i, b := range brokers {
			alsoByTLS = false
			if secure("all", name, b) {
				t.Errorf("%s goes by TLS, though its package did not ask for it", name)
			}
			alsoByTLS = true
			if !secure("all", name, b) || secure("none", name, b) || secure("", name, b) == secure("other", name, b) {
				t.Errorf("%s on %s: all, none, half or other is not so", name, b.Version)
			}
			if secure("", name, b) {
				sums[name]++
				sums[b.Version]++
			}
			if secure("", name, b) == secure("", name, brokers[1-i]) {
				t.Errorf("%s goes the same way to both versions", name)
			}
		}
	}
	if sums["3.10.8"] == 0 || sums["4.3.6"] == 0 {
		t.Errorf("one version is never reached by TLS: %v", sums)
	}
	if b := (Broker{AMQP: "amqp://given"}); secure("all", "TestA", b) {
		t.Error("a broker that was given goes by TLS")
	}
}
