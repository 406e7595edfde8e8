package delay

import (
	"fmt"
	"slices"
)

// VersionAtLeast reports whether a version such as "4.3.1" is major.minor or later; ok is false where it
// cannot be read.
func VersionAtLeast(version string, major, minor int) (yes, ok bool) {
	var v [2]int
	_, err := fmt.Sscanf(version, "%d.%d", &v[0], &v[1])
	return err == nil && slices.Compare(v[:], []int{major, minor}) >= 0, err == nil
}
