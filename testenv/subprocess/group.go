//go:build !windows

package subprocess

import (
	"os/exec"
	"syscall"
)

// ownGroup makes a command that starts later the leader of a process group.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func signalGroup(group int, s syscall.Signal) error { return syscall.Kill(-group, s) }

const stop, goOn = syscall.SIGSTOP, syscall.SIGCONT
