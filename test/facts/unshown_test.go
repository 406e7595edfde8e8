package facts_test

// unshown are the facts that the model of RabbitMQ does not show yet. This list only becomes
// shorter: a fact that it shows is tried on it from then on.
var unshown = []struct {
	reason   string
	versions []string // nil: all
	facts    []string
}{
	{"it has no consumer timeout", []string{"4.3.6"}, []string{"TestAPublishRemindsAQuorumQueueOfConsumerTimeout"}},
	{"it does not know how a crash over an x-death goes on", []string{"3.10.8"}, []string{
		"TestFloatCountInXDeathEndsEachConsumersConnectionOn3",
		"TestMalformedXDeathCrashesAClassicQueueOn3",
		"TestMalformedXDeathEndsAtLeastOnceOn3",
		"TestMalformedXDeathIsLostByAQuorumQueueOn3",
	}},
}
