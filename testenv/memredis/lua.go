package memredis

import (
	"math"

	lua "github.com/yuin/gopher-lua"
)

// gopher-lua fills a table up to the index that is set, and scripts have tables by hour since 1970:
// these must be beyond what it takes for a list.
func init() { lua.MaxArrayIndex = 200_000 }

// newLua is Lua with the libraries that scripts have in Redis, as far as redisstore uses them.
// A script that reads or sets a global variable that is not there fails, as in Redis.
func newLua() *lua.LState {
	l := lua.NewState(lua.Options{SkipOpenLibs: true, RegistrySize: 16 << 10, RegistryMaxSize: 4 << 20, RegistryGrowStep: 64 << 10})
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	bit := l.NewTable()
	bit.RawSetString("bor", l.NewFunction(func(l *lua.LState) int {
		n := int32(0)
		for i := 1; i <= l.GetTop(); i++ {
			n |= int32(uint32(int64(l.CheckNumber(i))))
		}
		l.Push(lua.LNumber(n))
		return 1
	}))
	l.G.Global.RawSetString("bit", bit)
	unpackAll := l.G.Global.RawGetString("unpack")
	l.G.Global.RawSetString("unpack", l.NewFunction(func(l *lua.LState) int {
		t := l.CheckTable(1)
		if t.Len() >= mostUnpacked {
			l.RaiseError("too many results to unpack")
		}
		l.Push(unpackAll)
		l.Push(t)
		l.Call(1, lua.MultRet)
		return l.GetTop() - 1
	}))
	for _, name := range []string{"print", "dofile", "loadfile"} {
		l.G.Global.RawSetString(name, lua.LNil)
	}
	strict := l.NewTable()
	strict.RawSetString("__index", l.NewFunction(func(l *lua.LState) int {
		l.RaiseError("Script attempted to access nonexistent global variable '%s'", l.CheckString(2))
		return 0
	}))
	strict.RawSetString("__newindex", l.NewFunction(func(l *lua.LState) int {
		l.RaiseError("Attempt to modify a readonly table")
		return 0
	}))
	l.G.Global.Metatable = strict
	return l
}

// mostUnpacked is how much of a table does not fit on the stack of Redis's Lua.
const mostUnpacked = 8000

func listOf(l *lua.LState, all []string) *lua.LTable {
	t := l.CreateTable(len(all), 0)
	for _, one := range all {
		t.Append(lua.LString(one))
	}
	return t
}

// toLua is an answer as a script sees it.
func toLua(l *lua.LState, a answer) lua.LValue {
	all := func(some []any) lua.LValue {
		t := l.CreateTable(len(some), 0)
		for i, one := range some {
			t.RawSetInt(i+1, toLua(l, one))
		}
		return t
	}
	switch a := a.(type) {
	case int64:
		return lua.LNumber(a)
	case string:
		return lua.LString(a)
	case status:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(a))
		return t
	case failure:
		t := l.NewTable()
		t.RawSetString("err", lua.LString(a))
		return t
	case pairs:
		return all(a)
	case []any:
		return all(a)
	}
	return lua.LFalse
}

// fromLua is what a script returned as an answer: a number loses its fraction, and a table ends
// before its first nil.
func fromLua(v lua.LValue) answer {
	switch v := v.(type) {
	case lua.LNumber:
		return int64(math.Trunc(float64(v)))
	case lua.LString:
		return string(v)
	case lua.LBool:
		if v {
			return int64(1)
		}
	case *lua.LTable:
		if text, ok := v.RawGetString("err").(lua.LString); ok {
			return failure(text)
		}
		if text, ok := v.RawGetString("ok").(lua.LString); ok {
			return status(text)
		}
		all := []any{}
		for i := 1; ; i++ {
			one := v.RawGetInt(i)
			if one == lua.LNil {
				return all
			}
			all = append(all, fromLua(one))
		}
	}
	return nil
}
