package memredis

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// scripts are those that were run since the start, and what runs them.
type scripts struct {
	byHash map[string]*script
	state  *lua.LState

	// Of the script that runs now.
	server *Server
	script *script
	unit   *unit
}

// script is one that was read.
type script struct {
	text      string
	code      *lua.FunctionProto
	readsOnly bool // no-writes
	allowOOM  bool
}

func newScripts() *scripts {
	s := &scripts{byHash: map[string]*script{}, state: newLua()}
	redis := s.state.NewTable()
	redis.RawSetString("call", s.state.NewFunction(func(l *lua.LState) int { return s.call(l, true) }))
	redis.RawSetString("pcall", s.state.NewFunction(func(l *lua.LState) int { return s.call(l, false) }))
	s.state.G.Global.RawSetString("redis", redis)
	return s
}

// named is the script that a command runs; nil when it runs none that is known.
func (s *scripts) named(args []string) *script {
	if len(args) < 2 {
		return nil
	}
	switch strings.ToUpper(args[0]) {
	case "EVALSHA":
		return s.byHash[strings.ToLower(args[1])]
	case "EVAL":
		sum := sha1.Sum([]byte(args[1]))
		return s.byHash[hex.EncodeToString(sum[:])]
	}
	return nil
}

// load reads a script, whose first line says what it may do.
func (s *scripts) load(text string) error {
	line, _, _ := strings.Cut(text, "\n")
	flags, ok := strings.CutPrefix(line, "#!lua")
	if !ok {
		return failure("ERR a script without a first line #!lua is none that memredis runs")
	}
	sc := &script{text: text}
	for flag := range strings.SplitSeq(strings.TrimPrefix(strings.TrimSpace(flags), "flags="), ",") {
		switch flag {
		case "no-writes":
			sc.readsOnly, sc.allowOOM = true, true
		case "allow-oom":
			sc.allowOOM = true
		case "":
		default:
			return failure("ERR Unexpected flag in script shebang: " + flag)
		}
	}
	chunk, err := parse.Parse(strings.NewReader("--"+text), "user_script")
	if err == nil {
		sc.code, err = lua.Compile(chunk, "user_script")
	}
	if err != nil {
		return failure("ERR Error compiling script (new function): " + strings.ReplaceAll(err.Error(), "\n", " "))
	}
	sum := sha1.Sum([]byte(text))
	s.byHash[hex.EncodeToString(sum[:])] = sc
	return nil
}

// eval is EVAL and EVALSHA.
func (s *Server) eval(c *connection, args []string) answer {
	if len(args) < 3 {
		return failure("ERR wrong number of arguments for 'eval' command")
	}
	if s.scripts.named(args) == nil {
		if isOption(args[0], "EVALSHA") {
			return failure("NOSCRIPT No matching script. Please use EVAL.")
		}
		if err := s.scripts.load(args[1]); err != nil {
			return err
		}
	}
	sc := s.scripts.named(args)
	n, err := strconv.Atoi(args[2])
	switch {
	case err != nil || n < 0 || n > len(args)-3:
		return failure("ERR Number of keys can't be greater than number of args")
	case s.readOnly && !sc.readsOnly:
		return failure("READONLY Can not run script with write flag on readonly replica.")
	case !sc.allowOOM && s.isFull():
		return failure("OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'")
	}
	u := &unit{at: s.data.now}
	a := s.scripts.run(s, sc, u, args[3:3+n], args[3+n:])
	s.written(c, u)
	if s.options.Done != nil {
		s.options.Done(s.described(c, args), a)
	}
	return a
}

// run runs a script, and notes in u what it writes.
func (s *scripts) run(on *Server, sc *script, u *unit, keys, args []string) answer {
	l := s.state
	s.server, s.script, s.unit = on, sc, u
	l.G.Global.RawSetString("KEYS", listOf(l, keys))
	l.G.Global.RawSetString("ARGV", listOf(l, args))
	l.Push(l.NewFunctionFromProto(sc.code))
	if err := l.PCall(0, 1, nil); err != nil {
		var said string
		if e, ok := err.(*lua.ApiError); ok && e.Object != nil {
			said = e.Object.String()
		} else {
			said = err.Error()
		}
		if code, _, _ := strings.Cut(said, " "); code != strings.ToUpper(code) || code == "" {
			said = "ERR " + said
		}
		return failure(strings.ReplaceAll(said, "\n", " "))
	}
	returned := l.Get(-1)
	l.Pop(1)
	return fromLua(returned)
}

// call is redis.call and redis.pcall.
func (s *scripts) call(l *lua.LState, raises bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		switch v := l.Get(i + 1).(type) {
		case lua.LString:
			args[i] = string(v)
		case lua.LNumber:
			args[i] = floatText(float64(v))
		default:
			l.RaiseError("ERR Lua redis lib command arguments must be strings or integers")
		}
	}
	if len(args) == 0 {
		l.RaiseError("ERR Please specify at least one argument for this redis.call() call")
	}
	a := answer(failure("ERR Write commands are not allowed from read-only scripts."))
	if !s.script.readsOnly || !commands[strings.ToUpper(args[0])].writes {
		a = s.server.call(s.unit, args, true)
	}
	if f, failed := a.(failure); failed && raises {
		l.Error(lua.LString(fmt.Sprintf("%s script: user_script", f)), 0)
	}
	l.Push(toLua(l, a))
	return 1
}
