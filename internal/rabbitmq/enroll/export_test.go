package enroll

import "time"

// ReconnectFor sets how long tries to connect again go on.
func (m *Move) ReconnectFor(d time.Duration) { m.reconnectFor = d }
