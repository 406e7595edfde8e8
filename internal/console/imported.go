package console

// Imported is what came of an import.
type Imported struct {
	Imported int64    `json:"imported" doc:"How many messages were kept, or would be."`
	Refused  int64    `json:"refused" doc:"How many lines were not taken."`
	Errors   []string `json:"errors,omitempty" doc:"Why, for the first of them, with their lines."`
}
