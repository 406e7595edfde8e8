package cli

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Build says which program this is. What a release does not set comes from what Go records in
// the binary: `go install …@version` has its version, a build in the repository its commit.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"` // of the commit, RFC 3339
	Go      string `json:"go"`
	System  string `json:"system"`
}

// complete returns b with what info has and b lacks.
func (b Build) complete(info *debug.BuildInfo) Build {
	recorded := map[string]string{}
	if info != nil {
		recorded["version"] = info.Main.Version
		for _, s := range info.Settings {
			recorded[s.Key] = s.Value
		}
	}
	if recorded["version"] == "(devel)" {
		recorded["version"] = ""
	}
	b.Version = cmp.Or(b.Version, recorded["version"], "dev")
	b.Commit = cmp.Or(b.Commit, recorded["vcs.revision"])
	b.Date = cmp.Or(b.Date, recorded["vcs.time"])
	b.Go, b.System = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
	return b
}

func (p *program) versionCommand() *cobra.Command {
	return p.withFormats(&cobra.Command{
		Use:   "version",
		Short: "Show the version of this program, its commit and its Go",
		Args:  exactArgs(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			return write(p, p.build, func(b Build) string { return b.Version }, func(w io.Writer) {
				fmt.Fprintf(w, "redrive\t%s\ncommit\t%s\ndate\t%s\ngo\t%s %s\n", plain(p.build.Version),
					cmp.Or(plain(p.build.Commit), "unknown"), cmp.Or(plain(p.build.Date), "unknown"), p.build.Go, p.build.System)
			})
		},
	}, "table", "json", "yaml", "name")
}
