// Package memredis is Redis in the memory of a test: as much of Redis 7.2 as
// internal/store/redisstore asks for, over connections in memory. It runs in a bubble of
// testing/synctest, where no socket can be, and it fails when and how a test says.
//
// It has one server with one database: strings, hashes, lists, sets, sorted sets and streams,
// times to live, scripts with their flags, sharded channels, maxmemory with noeviction, and an
// append-only file of which a crash loses what was not synced. It has no cluster, Sentinel,
// replicas, users, TLS, transactions or eviction; a command or an option that is not here is an
// error. Lua is gopher-lua, which prints all digits of a number where Redis's Lua prints 14, and
// gets `a, b = b, a` of local variables wrong, which no script has therefore. What redisstore needs
// of Redis is the same suite (storetest) on this and on Redis itself.
//
//	memredis.go   Options, New, Dial, Crash, Start, Close
//	connection.go one connection: commands in, answers out
//	protocol.go   RESP
//	serve.go      what a command waits for: faults, memory, the disk
//	commands.go   the commands that scripts and clients share
//	database.go   keys and their times to live
//	(hashes.go, lists.go, sets.go, sortedsets.go, streams.go, texts.go: the kinds of values)
//	scripts.go    EVAL and EVALSHA; lua.go: their language
//	file.go       the append-only file
//	channels.go   sharded channels
package memredis

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redrive-mq/redrive/testenv/pipe"
)

// Options say what Redis is like.
type Options struct {
	// MaxMemory is maxmemory in bytes; 0: there is no bound.
	MaxMemory int
	// EverySecond is `appendfsync everysec`; otherwise it is always.
	EverySecond bool
	// Fault, when not nil, decides how each command goes but for those that open a connection. It
	// is called for one command at a time, and must not wait.
	Fault func(Command) Fault
	// Done, when not nil, is called for each script after it was done, with what it returned. It
	// must not wait.
	Done func(Command, any)
}

// Command is what a client asks for.
type Command struct {
	Client string // the name that Dial was given
	Args   []string
	Script string // the text of the script that it runs; "" for none
}

// Fault is how a command goes.
type Fault struct {
	// Late is how late the command is on its way to Redis, and AnswerLate its answer.
	Late, AnswerLate time.Duration
	// Error, such as "BUSY …", is the answer instead of doing anything.
	Error string
	// Cut ends the connection before the command is done, and CutAnswer before it is answered.
	Cut, CutAnswer bool
}

// Server is one Redis. It is there at once, and empty.
type Server struct {
	options Options

	mu          sync.Mutex
	down        bool
	closed      bool
	loading     time.Time // until when it answers LOADING
	readOnly    bool
	data        *database // as clients see it
	file        *file
	scripts     *scripts
	connections map[*connection]bool
	lastClient  int64
	goroutines  sync.WaitGroup
	end         chan struct{} // closed by Close
}

// New starts a server.
func New(o Options) *Server {
	s := &Server{options: o, data: newDatabase(), file: newFile(), scripts: newScripts(), connections: map[*connection]bool{}, end: make(chan struct{})}
	if o.EverySecond {
		s.goroutines.Go(s.syncing)
	}
	return s
}

var errDown = errors.New("connection refused")

// Dial connects a client, whose name Options.Fault receives.
func (s *Server) Dial(_ context.Context, client string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down || s.closed {
		return nil, &net.OpError{Op: "dial", Net: "memory", Err: errDown}
	}
	end, other := pipe.New("Redis")
	s.lastClient++
	c := newConnection(s, other, client, s.lastClient)
	s.connections[c] = true
	s.goroutines.Go(c.run)
	return end, nil
}

// Crash ends Redis at once. Of what was written and not synced the first part stays, as long as
// survives says yes.
func (s *Server) Crash(survives func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = true
	s.cutAll()
	s.data, s.scripts = s.file.afterCrash(survives), newScripts()
}

// Start starts it again after a Crash. It answers LOADING for a while.
func (s *Server) Start(loads time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.loading = false, time.Now().Add(loads)
}

// SetReadOnly makes it refuse writes, as a replica does.
func (s *Server) SetReadOnly(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readOnly = on
}

// SetMaxMemory is CONFIG SET maxmemory.
func (s *Server) SetMaxMemory(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.options.MaxMemory = bytes
}

// Close cuts all connections and waits for the server's goroutines.
func (s *Server) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.end)
		s.cutAll()
	}
	s.mu.Unlock()
	s.goroutines.Wait()
}

func (s *Server) cutAll() {
	for c := range s.connections {
		c.cut()
	}
}
