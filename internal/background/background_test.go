package background

import (
	"testing"
	"testing/synctest"
	"time"
)

// Work of many pieces rests as often as it says, by whoever they are done, and work
// that begins does not.
func TestPausesTakeMostOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := Work{For: 2 * time.Millisecond, Rest: time.Millisecond}
		began := time.Now()
		w.Pause()
		if time.Since(began) != 0 {
			t.Error("it rests before it has begun")
		}
		const pieces = 100
		for range pieces {
			time.Sleep(500 * time.Microsecond) // the piece, in fake time
			w.Pause()
		}
		worked := pieces * 500 * time.Microsecond
		if rested := time.Since(began) - worked; rested < worked/4 || rested > worked/2 {
			t.Errorf("it rested %v in %v of work", rested, worked)
		}
		time.Sleep(time.Hour)
		began = time.Now()
		if w.Pause(); time.Since(began) != 0 {
			t.Error("it rests when it begins again")
		}
	})
}
