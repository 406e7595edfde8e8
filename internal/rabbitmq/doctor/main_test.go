package doctor

import (
	"os"
	"testing"

	"github.com/redrive-mq/redrive/testenv/brokertest"
)

func TestMain(m *testing.M) {
	brokertest.AlsoByTLS()
	os.Exit(m.Run())
}
