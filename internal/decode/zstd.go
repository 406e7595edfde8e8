package decode

func (r *reading) zstd() bool      { return false }
func (r *reading) confluent() bool { return false }
