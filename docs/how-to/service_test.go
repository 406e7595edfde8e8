// Package howto_test runs what the guides print: their consumers, their commands,
// and the ways from each published recipe to Redrive.
package howto_test

import (
	"testing"

	"github.com/redrive-mq/redrive/internal/server/servertest"
	"github.com/redrive-mq/redrive/testenv/brokertest"
)

// serve runs the service until the test ends, and waits until it is ready.
func serve(t *testing.T, v *brokertest.VHost, yaml string) *servertest.Service {
	t.Helper()
	return servertest.Run(t, servertest.Config(t, v, yaml)).Ready(t)
}
