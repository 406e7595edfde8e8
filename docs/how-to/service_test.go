// Package howto_test runs what the guides print: their consumers, their commands,
// and the ways from each published recipe to Redrive.
package howto_test

import (
	"testing"

	"github.com/redrive-mq/redrive/internal/app/apptest"
	"github.com/redrive-mq/redrive/internal/broker/brokertest"
)

// serve runs the service until the test ends, and waits until it is ready.
func serve(t *testing.T, v *brokertest.VHost, yaml string) *apptest.Service {
	t.Helper()
	return apptest.Run(t, apptest.Config(t, v, yaml)).Ready(t)
}
