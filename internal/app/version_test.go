package app

import (
	"bytes"
	"runtime/debug"
	"testing"

	"github.com/alecthomas/kong"
)

func TestVersionIsTheModules(t *testing.T) {
	t.Parallel()
	own := debug.Module{Path: modulePath, Version: "v1.2.3"}
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}}
	for _, c := range []struct {
		info debug.BuildInfo
		want string
	}{
		{debug.BuildInfo{GoVersion: "go1.26", Main: own}, "executor v1.2.3 (go1.26)"},
		{debug.BuildInfo{GoVersion: "go1.26", Main: own, Settings: commit}, "executor v1.2.3 (0123456789ab+changes, go1.26)"},
		{debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Path: modulePath, Version: "(devel)"}}, "executor devel (go1.26)"},
		// A program with tools of its own: its version and commit are not those of what it holds.
		{debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Path: "example.com/x", Version: "v9.0.0"}, Deps: []*debug.Module{&own}, Settings: commit}, "executor v1.2.3 (go1.26)"},
		{debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Path: "example.com/x"}, Deps: []*debug.Module{{Path: modulePath, Version: "v1.0.0", Replace: &debug.Module{Path: "../x"}}}}, "executor devel (go1.26)"},
	} {
		if got := versionLine("executor", &c.info); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	var said [2]string
	for i, arg := range []string{"version", "--version"} {
		env := environ(nil)
		var flags struct {
			Version kong.VersionFlag `name:"version"`
			Serve   struct{}         `cmd:""`
		}
		if _, err := Parse("executor", "", &flags, []string{arg}, env); !Done(err) {
			t.Errorf("%s: %v", arg, err)
		}
		said[i] = env.Stdout.(*bytes.Buffer).String()
	}
	if said[0] == "" || said[0] != said[1] || said[0] != Version("executor")+"\n" {
		t.Errorf("version says %q, --version %q", said[0], said[1])
	}
}
