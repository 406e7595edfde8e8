// Package version compares versions of RabbitMQ.
package version

import (
	"fmt"
	"slices"
)

// AtLeast tells whether a version such as "4.3.1" is major.minor or later; ok is false where it
// cannot be read.
func AtLeast(version string, major, minor int) (yes, ok bool) {
	var v [2]int
	_, err := fmt.Sscanf(version, "%d.%d", &v[0], &v[1])
	return err == nil && slices.Compare(v[:], []int{major, minor}) >= 0, err == nil
}

// Before tells whether a version is known and lower than major.minor.patch. A version without a
// patch, such as "4.3", is its first.
func Before(version string, major, minor, patch int) bool {
	var v [3]int
	n, _ := fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2])
	return n >= 2 && slices.Compare(v[:], []int{major, minor, patch}) < 0
}
