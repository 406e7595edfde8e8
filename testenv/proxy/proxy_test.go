package proxy_test

import (
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/redrive-mq/redrive/testenv/expect"
	"github.com/redrive-mq/redrive/testenv/proxy"
)

// echo is a server that answers with what it gets.
func echo(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

// One way is cut at its byte, whatever passes the other way.
func TestOneWayIsCutAtItsByte(t *testing.T) {
	p := proxy.New(t, echo(t))
	for _, c := range []struct {
		name string
		cut  func(int64)
	}{{"to the server", p.CutToServerAfter}, {"to the client", p.CutToClientAfter}} {
		for bytes := range int64(3) {
			conn, err := net.Dial("tcp", p.Addr())
			expect.NoError(t, err)
			cuts := p.Cuts()
			_, before := p.Passed()
			c.cut(bytes)
			expect.NoError(t, expect.ErrOf(conn.Write([]byte("12345"))))
			_, _ = io.Copy(io.Discard, conn) // until it is cut
			for p.Cuts() == cuts {           // which is counted just after
				runtime.Gosched()
			}
			conn.Close()
			toServer, toClient := p.Passed()
			if got := toClient - before; got > bytes || c.name == "to the client" && got != bytes {
				t.Errorf("%s: %d bytes came back of %d", c.name, got, bytes)
			}
			if want := map[string]int64{"to the server": bytes * (bytes + 1) / 2, "to the client": 3 + 5*(bytes+1)}[c.name]; toServer != want {
				t.Errorf("%s: %d bytes reached the server when %d are cut, not %d", c.name, toServer, bytes, want)
			}
		}
	}
}

// A connection that comes just as all are refused passes nothing afterwards.
func TestNothingPassesOnceConnectionsAreRefused(t *testing.T) {
	p := proxy.New(t, echo(t))
	for range 300 {
		came := make(chan net.Conn)
		go func() {
			conn, err := net.Dial("tcp", p.Addr())
			if err != nil {
				t.Error(err)
			}
			came <- conn
		}()
		runtime.Gosched()
		allow := p.Refuse()
		conn := <-came
		if conn == nil {
			return
		}
		_, _ = conn.Write([]byte("x"))
		if n, _ := conn.Read(make([]byte, 1)); n > 0 {
			t.Error("what was sent after Refuse came back")
		}
		conn.Close()
		allow()
	}
}

// Connections in line pass nothing before all are admitted; then each is cut at its own byte, and
// those that come later wait.
func TestEachConnectionIsCutAtItsByte(t *testing.T) {
	p := proxy.New(t, echo(t))
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", p.Addr())
		expect.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		_, _ = conn.Write([]byte("12345"))
		return conn
	}
	before := dial()
	expect.NoError(t, expect.ErrOf(io.ReadFull(before, make([]byte, 5))))
	p.Gather()
	if n, _ := before.Read(make([]byte, 1)); n > 0 {
		t.Error("a connection from before Gather passes something")
	}
	for bytes := range int64(5) {
		var all []net.Conn
		for range 3 {
			all = append(all, dial())
		}
		for p.Gathered() < len(all) {
			runtime.Gosched()
		}
		cuts := p.Cuts()
		passed := p.Admit(proxy.Bytes{ToServer: -1, ToClient: bytes})
		for _, conn := range all {
			if got, _ := io.ReadAll(conn); int64(len(got)) != bytes {
				t.Errorf("%d bytes came of a connection that is cut at %d", len(got), bytes)
			}
		}
		for p.Cuts() < cuts+len(all) {
			runtime.Gosched()
		}
		for _, each := range passed() {
			expect.Equal(t, each, (proxy.Bytes{ToServer: 5, ToClient: bytes}), "passed of one that is cut at %d", bytes)
		}
		if p.Cuts() > cuts+len(all) {
			t.Error("a connection is counted twice")
		}
	}
	late := dial()
	for p.Gathered() == 0 {
		runtime.Gosched()
	}
	if to, _ := p.Passed(); to != 5+5*3*5 {
		t.Errorf("%d bytes passed, also of a connection in line", to)
	}
	p.Open()
	for _, conn := range []net.Conn{late, dial()} {
		expect.Err(t, expect.ErrOf(io.ReadFull(conn, make([]byte, 5))), nil, "nothing is held any more, and")
	}
}
