package main

import "syscall"

// mostMemory is what one process may have: a mutant that never ends may fill all there is.
const mostMemory = 4 << 30

// limitMemory limits the memory of the processes that this one starts.
func limitMemory() {
	_ = syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: mostMemory, Max: mostMemory})
}
