package main

// What people do to many messages.
var operationFaults = []fault{
	{"a plan is started twice", "internal/operations/start.go",
		`case op.progress.State != "":`, `case false:`, "TestPlansThatCannotStart TestAPlanSaysWhatItWouldDoAndDoesNothing", ""},
	{"a blocked plan is started", "internal/operations/start.go",
		`case len(h.Blocked) > 0:`, `case false:`, "TestPlansThatCannotStart", ""},
	{"a plan of another count than expected is started", "internal/operations/start.go",
		`case s.ExpectCount != nil && *s.ExpectCount != h.Count:`, `case false:`, "TestPlansThatCannotStart", ""},
	{"the rest is changed though the canary failed again", "internal/operations/canary.go",
		`case failed > 0:`, `case false:`, "TestTheRestIsChangedOnlyIfTheCanaryDoesNotFailAgain", ""},
	{"the wait of a canary begins before its messages are sent", "internal/operations/canary.go",
		`case pending > 0:`, `case false:`, "TestTheRestIsChangedOnlyIfTheCanaryDoesNotFailAgain TestTheFirstFewAreThoseThatWereSent TestACanarySurvivesARestart", ""},
	{"a canary's messages are not kept over a restart", "internal/operations/step.go",
		`if len(canaries) > 0 {`, `if false {`, "TestACanarySurvivesARestart", ""},
	{"an operation ignores its rate", "internal/operations/step.go",
		`if op.limit != nil && !op.limit.AllowN(now, len(next)) {`, `if false {`, "TestAnOperationKeepsItsRate", ""},
	{"an operation goes on to a queue that is gone", "internal/operations/step.go",
		`if q, known := at[queue]; known && !q.Exists {`, `if q, known := at[queue]; known && q.Kind == "gone" {`, "TestAQueueThatIsGoneStopsTheOperation", ""},
	{"an operation replays to a queue without a policy", "internal/operations/step.go",
		`if op.Verb == actions.Replay && !r.Inspect.HasPolicy(queue) {`, `if false {`, "TestAQueueWithoutAPolicyIsNotReplayed", ""},
	{"plans are kept for ever", "internal/operations/forget.go",
		`old = plans > mostPlans || !now.Before(op.Expires)`, `old = false`, "TestOldPlansAndOperationsAreForgotten", ""},
	{"the messages of a plan lose their order", "internal/operations/frozen.go",
		`entries = append(entries, entryOf(chunkName(f.plan, f.chunks), part))`, `slices.Reverse(part); entries = append(entries, entryOf(chunkName(f.plan, f.chunks), part))`, "TestTheMessagesOfAPlanAreKeptInOrder", ""},
}
