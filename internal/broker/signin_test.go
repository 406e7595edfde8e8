package broker_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/broker"
	"github.com/redrive-mq/redrive/testenv/brokertest"
	"github.com/redrive-mq/redrive/wire"
)

// A connection that is cut while signing in, at whatever byte, is no fault of the password: that it
// is the password is said only where RabbitMQ says so.
func TestAConnectionCutWhileSigningInIsNoWrongPassword(t *testing.T) {
	brokertest.Each(t, func(t *testing.T, v *brokertest.VHost) {
		proxy := brokertest.NewProxy(t, v)
		signing, cuts := 0, 0
		for bytes := int64(0); ; bytes += 17 {
			before := proxy.Cuts()
			proxy.CutAfter(bytes)
			l, err := broker.NewProbe(t.Context(), broker.Config{URL: proxy.URL, Name: "test"})
			if err == nil {
				if err := l.Close(); err != nil { // the proxy counts a cut after it
					brokertest.Eventually(t, fmt.Sprintf("the cut that %q says", err), func() bool { return proxy.Cuts() > before })
				}
				if proxy.Cuts() == before { // all of it has passed
					break
				}
				continue
			}
			if cuts++; strings.Contains(err.Error(), "lost while signing in") {
				signing++
			}
			if broker.NeedsPerson(err) {
				t.Errorf("cut after %d bytes: %v", bytes, err)
			}
		}
		proxy.CutAfter(-1)
		if t.Logf("%d cuts, %d of them while signing in", cuts, signing); signing == 0 {
			t.Errorf("none of %d cuts was while signing in", cuts)
		}
		for name, password := range map[string]string{"guest": "wrong", "stranger": "guest"} {
			proxied := strings.Replace(v.URLAs("x", password), "//x:", "//"+name+":", 1)
			if _, err := broker.NewProbe(t.Context(), broker.Config{URL: proxied, Name: "test"}); !errors.Is(err, wire.ErrForbidden) || !strings.Contains(err.Error(), "wrong user or password") {
				t.Errorf("user %q, password %q: %v", name, password, err)
			}
		}
	})
}
