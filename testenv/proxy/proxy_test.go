package proxy_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/testenv/proxy"
)

// echo is a server that answers with what it gets.
func echo(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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

// All connections together are held to the limit, each way, and nothing is lost by it.
func TestALinkIsNoFasterThanItsLimit(t *testing.T) {
	const each, perSecond = 100_000, 500_000
	p := proxy.New(t, echo(t))
	p.Limit(perSecond)
	began := time.Now()
	came := make(chan error)
	for range 2 {
		go func() {
			came <- func() error {
				c, err := net.Dial("tcp", p.Addr())
				if err != nil {
					return err
				}
				defer c.Close()
				sent := make(chan error, 1)
				go func() {
					_, err := c.Write(make([]byte, each))
					sent <- err
				}()
				if _, err := io.ReadFull(c, make([]byte, each)); err != nil {
					return err
				}
				return <-sent
			}()
		}()
	}
	for range 2 {
		if err := <-came; err != nil {
			t.Fatal(err)
		}
	}
	took, least := time.Since(began), time.Second*2*each/perSecond
	if took < least {
		t.Errorf("%d bytes took %s there and back, and should take %s at least", 2*each, took, least)
	}
}
