package stories_test

import (
	"os"
	"testing"

	"github.com/redrive-mq/redrive/internal/broker/brokertest"
)

func TestMain(m *testing.M) {
	brokertest.AlsoByTLS()
	os.Exit(m.Run())
}
