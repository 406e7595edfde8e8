package config

import (
	"strconv"
	"strings"
)

// ParseRate reads a rate per second, minute or hour ("200/s", "30/min", "5/h"), as messages
// per second.
func ParseRate(s string) (perSecond float64, ok bool) {
	number, per, _ := strings.Cut(s, "/")
	seconds := map[string]float64{"s": 1, "min": 60, "h": 3600}[strings.TrimSpace(per)]
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if seconds == 0 || err != nil || !(v > 0 && v/seconds <= mostRate) {
		return 0, false
	}
	return v / seconds, true
}
