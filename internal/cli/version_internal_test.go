package cli

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestAVersionComesFromTheReleaseOrFromWhatGoRecords(t *testing.T) {
	recorded := &debug.BuildInfo{Main: debug.Module{Version: "v1.4.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc123"}, {Key: "vcs.time", Value: "2026-11-01T10:00:00Z"}}}
	folder := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	release := Build{Version: "1.4.0", Commit: "def456", Date: "2026-11-02T10:00:00Z"}
	for name, c := range map[string]struct {
		set  Build
		info *debug.BuildInfo
		want Build
	}{
		"release":                 {release, recorded, release},
		"go install":              {Build{}, recorded, Build{Version: "v1.4.0", Commit: "abc123", Date: "2026-11-01T10:00:00Z"}},
		"go build without commit": {Build{}, folder, Build{Version: "dev"}},
		"nothing recorded":        {Build{}, nil, Build{Version: "dev"}},
	} {
		c.want.Go, c.want.System = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
		if got := c.set.complete(c.info); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
