package metrics

import (
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/internal/throttle"
)

func TestTheHelpHasEachWaitReason(t *testing.T) {
	for _, why := range throttle.WaitReasons {
		if !strings.Contains(pausedDesc.String(), string(why)) {
			t.Errorf("%s is not in %s", why, pausedDesc)
		}
	}
}
