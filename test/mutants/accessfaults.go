package main

// Access control, queries, bodies and names.
var accessFaults = []fault{
	{"a caller needs no role", "internal/auth/caller.go",
		`case c.Role < role:`, `case false:`, "TestWhoMayMakeTokens TestTags TestTokens", ""},
	{"a read-only service is changed", "internal/auth/caller.go",
		`case c.ReadOnly && role > Viewer:`, `case false:`, "TestWhoMayMakeTokens TestSessions", ""},
	{"all queues are among a caller's", "internal/auth/caller.go",
		`return policy.MatchQueue(p, queue) }`, `return policy.MatchQueue(p, queue) || true }`, "TestTokensOfOthersQueues TestTokens", ""},
	{"a token of more queues than its maker's is made", "internal/auth/token.go",
		`if q, ok := c.covers(n.Queues); !ok {`, `if q, _ := c.covers(n.Queues); false {`, "TestWhoMayMakeTokens", ""},
	{"a token without queues has all of them", "internal/auth/token.go",
		`n.Queues = c.Queues`, `_ = c.Queues`, "TestWhoMayMakeTokens", ""},
	{"an expired token is valid", "internal/auth/token.go",
		`token.Expires != nil && !time.Now().Before(*token.Expires)`, `false`, "TestTokens", ""},
	{"a token stays valid after it was revoked", "internal/auth/token.go",
		`store.Entry{Name: key})`, `store.Entry{Name: key + "/revoked"})`, "TestTokens", ""},
	{"a token is made without an entry in the audit log", "internal/auth/token.go",
		`return fmt.Errorf("the audit log cannot be written, and nothing is done without it: %w", err)`, `done = func(string, int64) {}`, "TestTokens TestWhoMayMakeTokens", ""},
	{"a session never ends", "internal/auth/session.go",
		`return !now.Before(v.Idle) || !now.Before(v.End)`, `return !now.Before(v.Idle)`, "TestSessions", ""},
	{"an idle session goes on", "internal/auth/session.go",
		`return !now.Before(v.Idle) || !now.Before(v.End)`, `return !now.Before(v.End)`, "TestSessions", ""},
	{"a session survives its end by the user", "internal/auth/session.go",
		`delete(s.all, sha256.Sum256([]byte(id)))`, `_ = id`, "TestSessions", ""},
	{"sessions fill the memory", "internal/auth/session.go",
		`delete(s.all, key)
	}
	s.all`, `_ = key
	}
	s.all`, "TestSessionsAreBounded", ""},
	{"one guess more than the limit", "internal/auth/limit.go",
		`if level+1 > l.most {`, `if level > l.most {`, "TestFailuresAreLimited", ""},
	{"the limiter fills the memory", "internal/auth/limit.go",
		`key = ""
		}
	}
	level`, `_ = key
		}
	}
	level`, "TestTheLimiterIsBounded", ""},
	{"without sign-in, other machines are answered", "internal/auth/address.go",
		`if !peer(r).IsLoopback() {`, `if false {`, "TestWhereNobodySignsInOnlyThisMachineIsAnswered", ""},
	{"without sign-in, any name of this machine is answered", "internal/auth/address.go",
		`if !Loopback(r.Host) {`, `if false {`, "TestWhereNobodySignsInOnlyThisMachineIsAnswered", ""},
	{"anyone says where a request came from", "internal/auth/address.go",
		`i >= 0 && p.has(at); i--`, `i >= 0; i--`, "TestWhereARequestCameFrom", ""},
	{"a page of another site acts", "internal/auth/guard.go",
		`if Foreign(r) && r.Header.Get("Sec-Fetch-Dest") != "document" {`, `if false {`, "TestWhereNobodySignsInOnlyThisMachineIsAnswered", ""},
	{"a name with a colon guesses at another user's password", "internal/auth/rabbitmq.go",
		` || strings.Contains(name, ":") {`, ` {`, "TestNoWayOfWritingANameGivesMoreGuesses", ""},
	{"the lowest of several tags counts", "internal/auth/rabbitmq.go",
		`case g.Role > best.Role:`, `case g.Role > NoRole && (best.Role == NoRole || g.Role < best.Role):`, "TestTheHighestRoleOfSeveralTagsCounts", ""},
	{"an age and a time are compared the same way", "internal/query/bounds.go",
		`{greater: less, atLeast: atMost, less: greater, atMost: atLeast, between: between}`, `{greater: greater, atLeast: atLeast, less: less, atMost: atMost, between: between}`, "TestMatch TestNothingIsOutsideOfTheRange", ""},
	{"a query with or looks in the range of its last part alone", "internal/query/bounds.go",
		`if o.from.IsZero() || o.from.Before(s.from) {`, `if true {`, "TestTheRangeOfAnORHasBothSides", ""},
	{"what failed in a range of time is looked for by its due time", "internal/query/bounds.go",
		`s.to = time.Time{} //`, `_ = s.to //`, "TestNothingIsOutsideOfTheRange", ""},
	{"at most is less", "internal/query/holds.go",
		`return c <= 0`, `return c < 0`, "TestMatch", ""},
	{"a quoted name is a pattern", "internal/query/holds.go",
		`if l.quoted {`, `if false {`, "TestMatch", ""},
	{"a text is found in lower case alone", "internal/query/holds.go",
		`b += 'a' - 'A'`, `b += 0`, "TestAPartOfATextIsFound TestMatch", ""},
	{"a bomb is inflated", "internal/decode/unwrap.go",
		`if n := max(len(r.data)*mostRatio, smallOutput); n < most {`, `if n := 0; n > most {`, "TestBombs", ""},
	{"any number of layers is undone", "internal/decode/decode.go",
		`if len(r.layers) == mostSteps {`, `if false {`, "TestBombs", ""},
	{"a decoder that panics ends the request", "internal/decode/decode.go",
		`if p := recover(); p != nil {`, `if p := any(nil); p != nil {`, "TestAPanicBecomesAWord", ""},
	{"two queues share a retry exchange when their names are long", "wire/names.go",
		`sum := sha256.Sum256([]byte(queue))`, `sum := sha256.Sum256([]byte(prefix))`, "TestLongNamesNeverShareARetryExchange", ""},
	{"a queue is called as the short form of another", "wire/names.go",
		` && !looksShortened(name) {`, ` {`, "TestNoTwoQueuesShareARetryExchange", ""},
}
