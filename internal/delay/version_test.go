package delay

import "testing"

func TestAVersionIsComparedByItsNumbers(t *testing.T) {
	for version, want := range map[string][2]bool{
		"3.10.8": {false, true}, "3.13.7": {false, true}, "4.0.1": {true, true}, "4.3.6": {true, true}, "10.0.0": {true, true},
		"": {false, false}, "x": {false, false},
	} {
		if yes, ok := VersionAtLeast(version, 4, 0); yes != want[0] || ok != want[1] {
			t.Errorf("%q: %v, %v", version, yes, ok)
		}
	}
	for version, want := range map[string]bool{"3.9.0": false, "3.10.0": true, "3.10.0-rc.1": true} {
		if yes, _ := VersionAtLeast(version, 3, 10); yes != want {
			t.Errorf("%q: %v", version, yes)
		}
	}
}
