package diskstore

import (
	"testing"
	"time"
)

// Earlier builds stored the times of a group in minutes: they are read, beside seconds.
func TestTimesOfGroupsInMinutesAreRead(t *testing.T) {
	at := time.Date(2026, 11, 21, 10, 42, 0, 0, time.UTC)
	var old, now tally
	old.first, old.last = at.Unix()/60, at.Add(time.Hour).Unix()/60 // as they were written
	now.seen(at.Add(90*time.Minute + 5*time.Second).Unix())
	var both tally
	for _, one := range []tally{old, now} {
		if err := both.addFrom(one.append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if both.first != at.Unix() || both.last != at.Add(90*time.Minute+5*time.Second).Unix() {
		t.Errorf("first %s, last %s", time.Unix(both.first, 0), time.Unix(both.last, 0))
	}
}
