package subprocess

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// No process can be stopped and go on there; these numbers are Linux's.
const stop, goOn = syscall.Signal(19), syscall.Signal(18)

// tryLock locks nothing there.
func tryLock(path string) (f *os.File, ok bool, err error) {
	f, err = os.Create(path)
	return f, err == nil, err
}

// Windows has no process groups: a signal ends the process that was started, whichever it is.
func ownGroup(*exec.Cmd) {}

func signalGroup(group int, s syscall.Signal) error {
	if s == stop || s == goOn {
		return errors.ErrUnsupported
	}
	p, err := os.FindProcess(group)
	if err != nil {
		return err
	}
	return p.Kill()
}
