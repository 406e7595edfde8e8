package memredis

import (
	"fmt"
	"strconv"
	"strings"
)

// command is one that changes or reads the database and nothing else.
type command struct {
	do     func(*database, []string) answer
	least  int // arguments
	writes bool
	grows  bool // it is refused when the memory is full
}

var commands = map[string]command{
	"GET":       {do: get, least: 1},
	"SET":       {do: set, least: 2, writes: true, grows: true},
	"GETRANGE":  {do: getRange, least: 3},
	"EXISTS":    {do: exists, least: 1},
	"DEL":       {do: del, least: 1, writes: true},
	"PEXPIRE":   {do: pexpire, least: 2, writes: true},
	"TIME":      {do: clock},
	"HGET":      {do: hget, least: 2},
	"HMGET":     {do: hmget, least: 2},
	"HEXISTS":   {do: hexists, least: 2},
	"HGETALL":   {do: hgetall, least: 1},
	"HSCAN":     {do: hscan, least: 4},
	"HSET":      {do: hset, least: 3, writes: true, grows: true},
	"HSETNX":    {do: hsetnx, least: 3, writes: true, grows: true},
	"HDEL":      {do: hdel, least: 2, writes: true},
	"HINCRBY":   {do: hincrby, least: 3, writes: true, grows: true},
	"LINDEX":    {do: lindex, least: 2},
	"LRANGE":    {do: lrange, least: 3},
	"LPOP":      {do: lpop, least: 1, writes: true},
	"LTRIM":     {do: ltrim, least: 3, writes: true},
	"RPUSH":     {do: rpush, least: 2, writes: true, grows: true},
	"SADD":      {do: sadd, least: 2, writes: true, grows: true},
	"SREM":      {do: srem, least: 2, writes: true},
	"SMEMBERS":  {do: smembers, least: 1},
	"ZADD":      {do: zadd, least: 3, writes: true, grows: true},
	"ZREM":      {do: zrem, least: 2, writes: true},
	"ZRANGE":    {do: zrange, least: 3},
	"ZCARD":     {do: zcard, least: 1},
	"ZCOUNT":    {do: zcount, least: 3},
	"ZSCORE":    {do: zscore, least: 2},
	"XADD":      {do: xadd, least: 4, writes: true, grows: true},
	"XLEN":      {do: xlen, least: 1},
	"XRANGE":    {do: xrange, least: 3},
	"XREVRANGE": {do: xrevrange, least: 3},
}

// find is the command that the arguments name, or why there is none.
func find(args []string) (command, answer) {
	c, ok := commands[strings.ToUpper(args[0])]
	switch {
	case !ok:
		return c, failure(fmt.Sprintf("ERR unknown command '%.60s'", args[0]))
	case len(args)-1 < c.least:
		return c, failure(fmt.Sprintf("ERR wrong number of arguments for '%s' command", strings.ToLower(args[0])))
	}
	return c, nil
}

// run does a command.
func (c *command) run(d *database, args []string) (a answer) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case failure:
			a = e
		default:
			panic(e)
		}
	}()
	return c.do(d, args[1:])
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
