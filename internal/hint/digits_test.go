package hint

import "testing"

func TestGroup(t *testing.T) {
	for number, want := range map[string]string{"0": "0", "999": "999", "1000": "1,000", "-999": "-999", "-1204": "-1,204", "123456": "123,456", "1234567": "1,234,567"} {
		if got := Thousands(number); got != want {
			t.Errorf("%s is %s, want %s", number, got, want)
		}
	}
}
