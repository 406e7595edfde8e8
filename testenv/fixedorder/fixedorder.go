// Package fixedorder builds Go programs in which a number decides what chance decides elsewhere: the
// order of goroutines, which case of a select is taken, and the order of maps. Bubbles of
// testing/synctest have fake time; this gives them the same run each time, byte for byte.
//
// Go has no such build: Overlay changes eight files of its runtime, for `go build -overlay`. The
// program needs the build tag fixedorder, and runs
//
//   - with GOMAXPROCS=1 and CGO_ENABLED=0, or threads act beside each other;
//   - with debug.SetGCPercent(-1) after runtime.GC(), since the garbage collector's goroutines run by real
//     time, also those that have not begun;
//   - with Begin where all others of its goroutines wait;
//   - without real connections, files or time in what is to be the same.
//
// On other architectures than amd64 and arm64 it was not tried.
package fixedorder

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// patch is a change of a file of the runtime.
type patch struct{ file, is, becomes string }

// patches were made for Go 1.26. begun is set between Begin and End.
var patches = []patch{
	// Maps, math/rand/v2 and the hashes of other packages draw here. A new thread draws too, and when
	// there is one is chance.
	{"rand.go", "func rand() uint64 {\n", "func rand() uint64 {\n\tif begun {\n\t\treturn drawn()\n\t}\n"},
	{"rand.go", "mp.cheaprand = rand()", "mp.cheaprand = bootstrapRand()"},
	// What hashes begin with differs between processes, and the order of large maps with it.
	{"alg.go", "uintptr(bootstrapRand())", "uintptr(i) * 0x9e3779b97f4a7c15"},
	{"alg.go", "key[i] = bootstrapRand()", "key[i] = uint64(i) * 0x9e3779b97f4a7c15"},
	// Memory begins at another address in each process, and maps whose keys are pointers have another order.
	{"malloc.go", "randomizeHeapBase = goexperiment.RandomizedHeapBase64 && ", "randomizeHeapBase = false && "},
	{"select.go", "j := cheaprandn(uint32(norder + 1))", "j := uint32(uint64(drawn32()) * uint64(norder+1) >> 32)"},
	// Timers of a bubble that end at one instant.
	{"time.go", "t.rand = cheaprand()", "t.rand = drawn32()"},
	// A goroutine is not interrupted when it has run for 10 ms of real time.
	{"proc.go", "const forcePreemptNS = 10 * 1000 * 1000", "const forcePreemptNS = 1 << 62"},
	// Nor does another go on while it is in a system call that takes long.
	{"proc.go", "func retake(now int64) uint32 {\n", "func retake(now int64) uint32 {\n\tif begun {\n\t\treturn 0\n\t}\n"},
	// A mutex goes to its waiters in another way when one has waited for 1 ms of real time.
	{"sema.go", "func internal_sync_nanotime() int64 {\n", "func internal_sync_nanotime() int64 {\n\tif begun {\n\t\treturn 0\n\t}\n"},
	// Without the garbage collector much memory is used but once, and half the time would go to page faults.
	{"mem_linux.go", "\tsetVMAName(p, n, vmaName)\n\n\t// Disable huge pages if", "\tsetVMAName(p, n, vmaName)\n\tsysHugePageOS(p, n)\n\n\t// Disable huge pages if"},
	// The goroutine that returns memory to the system wakes by real time, in between all others.
	{"mgcscavenge.go", "func (s *scavengerState) wake() {\n", "func (s *scavengerState) wake() {\n\tif begun {\n\t\treturn\n\t}\n"},
}

// added is what rand.go has besides: splitmix64, and what Begin and End set. The scheduler looks at the
// queue of all threads at each 61st turn: it counts from Begin on.
const added = `
var (
	begun bool
	draws uint64
)

//go:nosplit
func drawn() uint64 {
	draws += 0x9e3779b97f4a7c15
	z := draws
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func drawn32() uint32 {
	if begun {
		return uint32(drawn() >> 32)
	}
	return cheaprand()
}

//go:linkname FixOrder
var FixOrder = func(order uint64, begin bool) {
	draws, begun = order, begin
	getg().m.p.ptr().schedtick = 0
}
`

// Overlay writes the changed files of the installed Go's runtime into a folder, and returns the file for
// `go build -overlay`.
func Overlay(folder string) (file string, err error) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("asking go for GOROOT: %w", err)
	}
	runtime := filepath.Join(strings.TrimSpace(string(root)), "src", "runtime")
	changed := map[string]string{}
	for _, p := range patches {
		path := filepath.Join(runtime, p.file)
		if changed[path] == "" {
			b, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			changed[path] = string(b)
		}
		if n := strings.Count(changed[path], p.is); n != 1 {
			return "", fmt.Errorf("%s has %d times %q, and one was expected: the order of goroutines cannot be fixed with this version of Go until testenv/fixedorder knows it", path, n, p.is)
		}
		changed[path] = strings.Replace(changed[path], p.is, p.becomes, 1)
	}
	replace := map[string]string{}
	for path, source := range changed {
		if filepath.Base(path) == "rand.go" {
			source += added
		}
		replace[path] = filepath.Join(folder, filepath.Base(path))
		if err := os.WriteFile(replace[path], []byte(source), 0o600); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(folder, "overlay.json")
	return file, os.WriteFile(file, overlay, 0o600)
}
