package subprocess

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// A port is given once, and is none that a system gives to an outgoing connection.
func TestPorts(t *testing.T) {
	first := 32_768
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if _, err := fmt.Sscan(string(text), &first); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[int]bool{}
	for range 20 {
		ports, err := Ports(10)
		if err != nil || len(ports) != 10 {
			t.Fatalf("%v, %v", ports, err)
		}
		for _, p := range ports {
			if seen[p] || p >= first {
				t.Errorf("port %d is given, and outgoing connections have those from %d on; given before: %v", p, first, seen[p])
			}
			seen[p] = true
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
			if err != nil {
				t.Error(err)
				continue
			}
			l.Close()
		}
	}
}
