package broker

import "testing"

func TestBeforeRabbitMQ4ADeathHeaderIsForgeable(t *testing.T) {
	for version, want := range map[string]bool{"3.10.8": true, "3.13.7": true, "4.0.1": false, "4.3.6": false, "10.0.0": false, "": true, "x": true} {
		if forgeable(version) != want {
			t.Errorf("%q: %v", version, !want)
		}
	}
}
