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
}
