package policy

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// FormatDuration writes a duration for people: "1.5s", "17m 3s", "2d 4h". From a
// minute on it shows the two largest units only.
func FormatDuration(d time.Duration) string {
	if d < 0 {
		return "-" + FormatDuration(-max(d, -math.MaxInt64)) // the least of all has no opposite
	}
	if d < time.Minute {
		if d = d.Round(roundTo(d)); d < time.Minute {
			return d.String()
		}
	}
	d = d.Round(time.Second)
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}
	var parts []string
	for _, u := range units {
		n := d / u.size
		d %= u.size
		if n > 0 {
			parts = append(parts, strconv.FormatInt(int64(n), 10)+u.name)
		}
		if len(parts) == 2 || len(parts) == 1 && n == 0 {
			break
		}
	}
	return strings.Join(parts, " ")
}

func roundTo(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return 100 * time.Millisecond
	case d >= time.Second:
		return 10 * time.Millisecond
	case d >= time.Millisecond:
		return 10 * time.Microsecond
	}
	return 1
}
