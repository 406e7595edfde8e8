package decode

// Protobuf is which message types there are, and who has which. Files are chosen
// here and nowhere else.
type Protobuf struct {
	Files          []string // .proto
	ImportPaths    []string
	DescriptorSets []string // as protoc --descriptor_set_out --include_imports writes them
	Queues         []QueueType
	Header         string // the header that names a message's type, if any
	TypeProperty   bool   // the type property names it
}

// QueueType is the message type of what is in some queues; the first that matches counts.
type QueueType struct {
	Queues  []string // names or patterns
	Message string
}

type schemas struct{}

func load(Protobuf) (*schemas, error) { return &schemas{}, nil }
