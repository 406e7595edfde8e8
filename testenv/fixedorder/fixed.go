//go:build fixedorder

package fixedorder

import (
	"runtime"
	_ "unsafe" // for go:linkname
)

// Fixed tells whether this program was built with Overlay.
const Fixed = true

//go:linkname fixOrder runtime.FixOrder
var fixOrder func(order uint64, begin bool)

// Begin has a number decide the order from now on, until End.
func Begin(order uint64) {
	for range 10_000 {
		runtime.Gosched() // the runtime's own goroutines end what they have begun
	}
	fixOrder(order, true)
}

// End has chance decide again.
func End() { fixOrder(0, false) }
