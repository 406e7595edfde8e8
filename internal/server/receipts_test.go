package server

import (
	"testing"

	"github.com/redrive-mq/redrive/internal/store"
)

// What RabbitMQ may deliver again when this process ends has a receipt: all that may be
// outstanding to both intakes, and half as many besides, since what at-least-once
// dead-lettering publishes again may have been acknowledged.
func TestReceiptsCoverWhatIsOutstanding(t *testing.T) {
	if outstanding := prefetch + parkedPrefetch; store.ReceiptsKept < outstanding+outstanding/2 {
		t.Errorf("%d receipts are kept of a process, and %d messages may be outstanding to it", store.ReceiptsKept, outstanding)
	}
}
