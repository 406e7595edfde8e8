package facts_test

// unshown are the facts that the model of RabbitMQ does not show yet. This list only becomes
// shorter: a fact that it shows is tried on it from then on.
var unshown = []struct {
	reason   string
	versions []string // nil: all
	facts    []string
}{
	{"it has no quorum queues", nil, []string{
		"TestAQuorumQueueDeliversAfterItConfirmedACancelUnlessTheWindowIsFull",
		"TestAQuorumQueueIsNotDeletedOnlyIfEmptyOrUnused",
		"TestAtLeastOnceKeepsMessagesWithoutATarget",
		"TestAtMostOnceDeletesMessagesOfAnUnavailableTarget",
		"TestAtMostOnceLosesMessagesWithoutATarget",
		"TestDeliveryLimitCanBeSwitchedOffByAHugeOne",
		"TestDeliveryLimitCountsRejectsAndUntil42AlsoNacks",
		"TestDeliveryLimitOfQuorumQueuesIs20Since4",
		"TestFloatCountInXDeathEndsEachConsumersConnectionOn3",
		"TestLoopsOfTheBrokerAloneJamUnderAtLeastOnce/delivery_limit",
		"TestLoopsOfTheBrokerAloneJamUnderAtLeastOnce/expired",
		"TestLoopsOfTheBrokerAloneJamUnderAtLeastOnce/maxlen",
		"TestLoopsOfTheBrokerAloneLoseWhatWasNotRejected/delivery_limit",
		"TestMalformedXDeathEndsAtLeastOnceOn3",
		"TestMalformedXDeathIsLostByAQuorumQueueOn3",
		"TestMalformedXDeathThatHarmsNothing",
		"TestMessageTTLExpiresAtTheHeadOnly",
		"TestNativeDelayedRetryIsIgnoredBefore43",
		"TestSince43ARejectedMessageArrivesAsRedelivered",
		"TestXExpiresDeletesTheMessagesInside",
	}},
	{"it has no quorum queues", []string{"4.3.6"}, []string{
		"TestAPublishRemindsAQuorumQueueOfConsumerTimeout",
		"TestNativeDelayedRetryGrowsAfterRejectOnly",
	}},
	{"it has no x-expires", nil, []string{"TestDeclaringAgainRenewsXExpiresOfAClassicQueueOnly"}},
	{"it has no policies", nil, []string{
		"TestArgumentsBeatAPolicyKeyByKey",
		"TestOnePolicyAtATimeAndTheHigherPriorityShadows",
	}},
	{"it has no alarms", nil, []string{"TestAnAlarmStopsAcksOfConnectionsThatPublishOnly"}},
	{"it has no CC and BCC", nil, []string{"TestCCStaysAndIsReadAgainOnARepublishSince313"}},
	{"it has no field type L", nil, []string{"TestHeaderOfTypeLIsDeliveredAsItIsBefore4AndSignedSince"}},
	{"it refuses a header that fills its frame", nil, []string{"TestDeadLetteringGrowsAHeaderFramePastItsLimit"}},
	{"it refuses an x-death that RabbitMQ did not write", []string{"3.10.8"}, []string{"TestMalformedXDeathCrashesAClassicQueueOn3"}},
}
