package world

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is in memory. It can be full, and a crash leaves what was synced and, by chance, some of
// the rest.
type disk struct {
	*vfs.MemFS
	full atomic.Bool
}

func newDisk() *disk { return &disk{MemFS: vfs.NewCrashableMem()} }

// GetDiskUsage implements vfs.FS.
func (d *disk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	u := vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 41, UsedBytes: 1 << 40}
	if d.full.Load() {
		u.AvailBytes, u.UsedBytes = 0, u.TotalBytes
	}
	return u, nil
}

// afterCrash is what a power cut leaves: of what was not synced, each write with a chance of
// survives percent.
func (d *disk) afterCrash(survives int, r *rand.Rand) *disk {
	return &disk{MemFS: d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: survives, RNG: r})}
}
