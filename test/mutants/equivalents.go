package main

// equivalent is a change of one token that no test can catch, and does not count in the score.
type equivalent struct {
	file string // from the root of the tree
	old  string // stands in the file exactly once
	new  string // the same with the other token
	why  string // nothing that can be seen is different
}

// source returns the file with the change.
func (e *equivalent) source(root string) (string, error) {
	return (&fault{file: e.file, old: e.old, new: e.new}).source(root)
}

var equivalents = []equivalent{
	{"policy/duration.go", `case d >= 10*time.Second:`, `case d > 10*time.Second:`, "10 s are the same rounded to 0.1 s or to 0.01 s"},
	{"policy/duration.go", `case d >= time.Second:`, `case d > time.Second:`, "1 s is the same rounded to 10 ms or to 10 µs"},
	{"policy/duration.go", `case d >= time.Millisecond:`, `case d > time.Millisecond:`, "1 ms is the same rounded to 10 µs or not at all"},
	{"internal/throttle/breaker.go", `to > first {`, `to >= first {`, "0 retries are as many either way"},
	{"internal/throttle/breaker.go", "if q.state != Ramp || q.forced || q.rules.Breaker == nil {", "if q.state != Ramp || q.forced && q.rules.Breaker == nil {", "a breaker in a ramp is not forced, and ends it when its rules are gone, before anyone asks"},
	{"internal/throttle/queue.go", `if q.rate > 0 {`, `if q.rate >= 0 {`, "without a rate the bucket is emptied each time"},
	{"internal/throttle/replicas.go", `const noState = -1`, `const noState = +1`, "no state begins in the first microsecond of 1970"},
	{"internal/throttle/rules.go", `math.Round(r*60)) < 1e-9:`, `math.Round(r*60)) <= 1e-9:`, "no rate that anyone writes differs by exactly that"},
	{"internal/query/fields.go", `len(fields)+2)`, `len(fields)-2)`, "only a capacity"},
	{"internal/query/holds.go", `s[i] >= utf8.RuneSelf`, `s[i] > utf8.RuneSelf`, "a query is valid UTF-8, where a character that is not ASCII begins with a larger byte"},
	{"internal/query/narrow.go", `e.known |= knowsState`, `e.known = knowsState`, "nothing is known before"},
	{"internal/query/value.go", `if n <= 0 {`, `if n < 0 {`, "without digits it is no number"},
	{"internal/query/value.go", `if u < 0 {`, `if u <= 0 {`, "a digit or a point is never the first of what is left behind a number"},
	{"internal/query/decimal.go", `"eE"); i >= 0 {`, `"eE"); i > 0 {`, "what begins with an e is no number, with an exponent or without"},
	{"internal/query/query.go", "least == no {\n\t\t\tbreak", "least == no {\n\t\t\tcontinue", "it only saves time: no part makes a no more than that"},
	{"internal/query/query.go", "most == yes {\n\t\t\tbreak", "most == yes {\n\t\t\tcontinue", "it only saves time: no part makes a yes less than that"},
	{"internal/retry/claimed.go", `if w.messages > 0 && messages`, `if w.messages >= 0 && messages`, "where nothing is on its way, a batch is never less than a quarter of what it may be"},
	{"internal/retry/receipts.go", `first.IsZero() || again.IsZero()`, `first.IsZero() && again.IsZero()`, "a time that is not known is far from each that is, and from each outage"},
}
