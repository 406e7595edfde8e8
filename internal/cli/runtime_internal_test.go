package cli

import (
	"testing"
	"testing/fstest"
)

func TestMemoryOfTheCgroup(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"container":      {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "134217728\n"}, 128 << 20},
		"no limit":       {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"unit":           {map[string]string{"proc/self/cgroup": "0::/system.slice/redrive.service\n", "sys/fs/cgroup/system.slice/redrive.service/memory.max": "67108864\n"}, 64 << 20},
		"slice of units": {map[string]string{"proc/self/cgroup": "0::/a.slice/redrive.service\n", "sys/fs/cgroup/a.slice/memory.max": "1000\n", "sys/fs/cgroup/a.slice/redrive.service/memory.max": "2000\n"}, 1000},
		"large slice":    {map[string]string{"proc/self/cgroup": "0::/a.slice/redrive.service\n", "sys/fs/cgroup/a.slice/memory.max": "3000\n", "sys/fs/cgroup/a.slice/redrive.service/memory.max": "2000\n"}, 2000},
		"version 1":      {map[string]string{"proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "5000\n"}, 5000},
		"no cgroups":     {nil, 0},
	} {
		files := fstest.MapFS{}
		for path, text := range c.files {
			files[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := cgroupMemory(files); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
