package memredis

import (
	"fmt"
	"strings"
	"time"
)

// opens are the commands by which a client opens a connection, or cleans one up: they never fail.
var opens = map[string]bool{"HELLO": true, "CLIENT": true, "CLUSTER": true, "SELECT": true, "DISCARD": true, "UNSUBSCRIBE": true, "PUNSUBSCRIBE": true, "SUNSUBSCRIBE": true}

// serve does a command and answers it; false: the connection ends.
func (c *connection) serve(args []string) bool {
	s := c.server
	f := s.fault(c, args)
	if !c.wait(f.Late) || f.Cut {
		return false
	}
	a := answer(failure(f.Error))
	if f.Error == "" {
		a = s.answer(c, args)
	}
	if !c.wait(f.AnswerLate) || f.CutAnswer {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.send(a)
	return !c.isEnded
}

func (s *Server) fault(c *connection, args []string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.options.Fault == nil || opens[strings.ToUpper(args[0])] {
		return Fault{}
	}
	return s.options.Fault(s.described(c, args))
}

func (s *Server) described(c *connection, args []string) Command {
	is := Command{Client: c.client, Args: args}
	if sc := s.scripts.named(args); sc != nil {
		is.Script = sc.text
	} else if len(args) > 1 && isOption(args[0], "EVAL") {
		is.Script = args[1]
	}
	return is
}

// answer does a command that no fault has.
func (s *Server) answer(c *connection, args []string) answer {
	if strings.EqualFold(args[0], "WAITAOF") {
		return s.waitForDisk(c, args[1:])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.isEnded {
		return nil
	}
	name := strings.ToUpper(args[0])
	s.data.now = time.Now()
	if a, done := s.connectionCommand(c, name, args[1:]); done {
		return a
	}
	if s.data.now.Before(s.loading) && name != "INFO" && name != "CONFIG" {
		return failure("LOADING Redis is loading the dataset in memory")
	}
	switch name {
	case "PING":
		return status("PONG")
	case "WAIT":
		return int64(0)
	case "CONFIG":
		return s.config(args[1:])
	case "SPUBLISH":
		return s.publish(args[1:])
	case "EVAL", "EVALSHA":
		return s.eval(c, args)
	}
	u := &unit{at: s.data.now}
	a := s.call(u, args, false)
	s.written(c, u)
	return a
}

// connectionCommand does what is about the connection, and tells whether it was that.
func (s *Server) connectionCommand(c *connection, name string, a []string) (answer, bool) {
	switch name {
	case "HELLO":
		if c.version = 2; len(a) > 0 {
			c.version = integer(a[0])
		}
		return pairs{"server", "redis", "version", version, "proto", int64(c.version), "id", c.number, "mode", "standalone", "role", "master", "modules", []any{}}, true
	case "CLIENT", "SELECT":
		return status("OK"), true
	case "CLUSTER":
		return failure("ERR This instance has cluster support disabled"), true
	case "DISCARD":
		return failure("ERR DISCARD without MULTI"), true
	case "SSUBSCRIBE":
		return s.subscribe(c, a), true
	case "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE":
		return s.unsubscribe(c, strings.ToLower(name)), true
	}
	return nil, false
}

// call does a command of a client or a script, and notes in u what it writes.
func (s *Server) call(u *unit, args []string, inScript bool) answer {
	if strings.EqualFold(args[0], "INFO") {
		return s.info()
	}
	c, wrong := find(args)
	switch {
	case wrong != nil:
		return wrong
	case c.writes && s.readOnly:
		return failure("READONLY You can't write against a read only replica.")
	case c.grows && !inScript && s.isFull():
		return failure("OOM command not allowed when used memory > 'maxmemory'.")
	}
	a := c.run(s.data, args)
	if _, failed := a.(failure); c.writes && !failed {
		u.commands = append(u.commands, args)
	}
	return a
}

// written puts into the file what was written.
func (s *Server) written(c *connection, u *unit) {
	if len(u.commands) == 0 {
		return
	}
	s.file.write(*u)
	c.wrote = s.file.written
	if !s.options.EverySecond {
		s.file.sync()
	}
}

func (s *Server) isFull() bool {
	return s.options.MaxMemory > 0 && s.data.memory() > s.options.MaxMemory
}

// version is that of Redis which this is like.
const version = "7.2.4"

func (s *Server) info() answer {
	return strings.ReplaceAll(fmt.Sprintf(`redis_version:%s
role:master
connected_slaves:0
loading:0
aof_enabled:1
used_memory:%d
maxmemory:%d
total_system_memory:%d
maxmemory_policy:noeviction
`, version, s.data.memory(), s.options.MaxMemory, 64<<30), "\n", "\r\n")
}

func (s *Server) config(a []string) answer {
	if len(a) != 2 || !isOption(a[0], "GET") || !isOption(a[1], "appendfsync") {
		return syntaxError
	}
	if s.options.EverySecond {
		return pairs{"appendfsync", "everysec"}
	}
	return pairs{"appendfsync", "always"}
}
