package console

// Imported is what came of an import.
type Imported struct {
	Count  int64            `json:"count" doc:"Messages that are parked now; with dry_run: that would be."`
	Queues map[string]int64 `json:"queues" doc:"How many of each queue."`
}
