package decode

func (r *reading) confluent() bool { return false }
