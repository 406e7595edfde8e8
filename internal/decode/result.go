// Package decode shows a body as people can read it: a chain of steps (base64,
// compression, JSON, Protobuf…) that never fails, says what each step found, and
// never takes more than its limits of memory and time, whatever the bytes are.
package decode

// Result is a body as far as it could be read.
type Result struct {
	Size  int    `json:"size" doc:"Of the raw body, in bytes."`
	Steps []Step `json:"steps" doc:"What each decoder found, outermost first."`
	// Format is what the innermost bytes are.
	Format string `json:"format" enum:"empty,json,text,xml,messagepack,cbor,protobuf,binary"`
	// Text is the innermost content for people: indented JSON for json, messagepack,
	// cbor and protobuf; else the text. It is valid UTF-8, with invalid bytes shown
	// as \xHH, and at most the limit long. Empty for binary.
	Text string `json:"text,omitempty"`
	// Hex is a hex dump of the innermost bytes, its first 4 KiB.
	Hex string `json:"hex,omitempty"`
	// Truncated: Text is not all of it.
	Truncated bool `json:"truncated,omitempty"`
	// Schema is the Protobuf message type that was used, and which rule chose it;
	// empty for a view without one.
	Schema string `json:"schema,omitempty"`
	// LooksLike are the Protobuf message types that the bytes fit, the best first, where nothing names
	// one: Text is read with the first, which is a guess.
	LooksLike []string `json:"looks_like,omitempty" doc:"Protobuf types that the body fits, the best first, where nothing names its type: text is read with the first, which is a guess."`
	// Value is the innermost content as Go values for queries: map[string]any, []any,
	// string, bool, nil, json.Number (exact). nil where there is no structure.
	Value any `json:"-"`
	// Inner is the innermost bytes.
	Inner []byte `json:"-"`
}

// Step is what one decoder found.
type Step struct {
	Decoder string `json:"decoder" enum:"base64,gzip,zlib,deflate,zstd,confluent,json,text,xml,messagepack,cbor,protobuf,hex"`
	Found   string `json:"found" doc:"What it decoded, or why it stopped."`
	Size    int    `json:"size" doc:"Of what came out, in bytes."`
}
