package management_test

import (
	"encoding/json"
	"testing"

	"github.com/redrive-mq/redrive/internal/rabbitmq/management"
)

// A consumer whose channel has just closed: its queue must be read all the same.
func TestAConsumerThatHasJustGone(t *testing.T) {
	for _, text := range []string{`{"consumer_tag":"a","channel_details":[]}`, `{"consumer_tag":"a","channel_details":{}}`, `{"consumer_tag":"a"}`} {
		var c management.QueueConsumer
		if err := json.Unmarshal([]byte(text), &c); err != nil || c.Tag != "a" || c.Channel.User != "" {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	var c management.QueueConsumer
	if err := json.Unmarshal([]byte(`{"channel_details":{"user":"dana","connection_name":"c","node":"n"}}`), &c); err != nil || c.Channel.User != "dana" || c.Channel.Connection != "c" {
		t.Errorf("%+v, %v", c, err)
	}
}
