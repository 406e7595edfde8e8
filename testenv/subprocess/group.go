//go:build !windows

package subprocess

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// ownGroup makes a command that starts later the leader of a process group.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func signalGroup(group int, s syscall.Signal) error { return syscall.Kill(-group, s) }

// tryLock locks a file until this process ends, unless another process has it locked.
func tryLock(path string) (f *os.File, ok bool, err error) {
	if f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, false, err
	}
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
		return f, true, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = nil
	}
	return nil, false, err
}

const stop, goOn = syscall.SIGSTOP, syscall.SIGCONT
