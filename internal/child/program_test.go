//go:build linux

package child_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/agentrun/executor/internal/child"
)

// shell is a program that runs a script.
func shell(script string) child.Program {
	return child.Program{Argv: []string{"sh", "-c", script}}
}

// said runs a program to its end and returns what it has written.
func said(t *testing.T, p child.Program) string {
	t.Helper()
	c, err := child.Start(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.Stdin.Close()
	out, err := io.ReadAll(c.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	<-c.Exited()
	return strings.TrimSpace(string(out))
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: no program can be started as another user here")
	}
}

// Nothing of this process reaches a program but what is named, however odd this process itself was started.
func TestNothingIsInheritedUnnamed(t *testing.T) {
	t.Setenv("NATS_PASSWORD", "s3cr3t")
	t.Setenv("HTTPS_PROXY", "http://proxy")
	t.Setenv("TZ", "Europe/Berlin")
	var kept [2]int // open, and not closed at exec
	if err := syscall.Pipe(kept[:]); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = syscall.Close(kept[0]), syscall.Close(kept[1]) }()
	defer syscall.Umask(syscall.Umask(0o077))
	for name, p := range map[string]child.Program{
		"plain":       shell(`env; echo; ls /proc/$$/fd; umask; ulimit -Sn`),
		"with limits": {Argv: shell(`env; echo; ls /proc/$$/fd; umask; ulimit -Sn`).Argv, Setting: child.Setting{Limits: map[string]uint64{"core": 0}}},
	} {
		env, rest, _ := strings.Cut(said(t, p), "\n\n")
		if got := strings.Fields(rest); !slices.Equal(got, []string{"0", "1", "2", "0022", "1024"}) && !slices.Equal(got, []string{"0", "1", "10", "2", "0022", "1024"}) {
			t.Errorf("%s: files, umask and soft limit of files are %q", name, got)
		}
		for _, line := range strings.Split(env, "\n") {
			v, _, _ := strings.Cut(line, "=")
			if !slices.Contains(child.Inherited, v) && !slices.Contains([]string{"PWD", "SHLVL", "_", "OLDPWD"}, v) { // the shell's own
				t.Errorf("%s: it has %s", name, line)
			}
		}
		if !strings.Contains(env, "TZ=Europe/Berlin") {
			t.Errorf("%s: it lacks TZ", name)
		}
	}
}

func TestSetting(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := shell(`pwd; umask; ulimit -Sn; ulimit -Hn; ulimit -v; ulimit -t; ulimit -f`)
	p.Setting = child.Setting{Cwd: dir, Umask: "027", Limits: map[string]uint64{"nofile": 64, "as": 1 << 30, "cpu": 7, "fsize": 512 << 10}}
	blocks := "1024" // of 512 bytes; bash's are of 1024
	if got := strings.Fields(said(t, p)); !slices.Equal(got, []string{dir, "0027", "64", "64", "1048576", "7", blocks}) && !slices.Equal(got, []string{dir, "0027", "64", "64", "1048576", "7", "512"}) {
		t.Errorf("got %q", got)
	}
	if err := child.Try(p); err != nil {
		t.Errorf("Try: %v", err)
	}
	// A limit that is exceeded is the program's own end, and what it has started ends as ever.
	p = shell(`sleep 600 & head -c 100000 /dev/zero > ` + filepath.Join(dir, "big") + `; echo $?`)
	p.Limits = map[string]uint64{"fsize": 1000}
	if got := said(t, p); got == "0" || got == "" {
		t.Errorf("a file grew beyond its limit: %q", got)
	}
	// A limit that leaves the runtime that sets it no memory at all is set all the same.
	p = child.Program{Argv: []string{"sh", "-c", "ulimit -v"}, Setting: child.Setting{Limits: map[string]uint64{"as": 16 << 20}}}
	if got := said(t, p); got != "16384" {
		t.Errorf("16 MiB of address space: %q", got)
	}
}

func TestUser(t *testing.T) {
	needRoot(t)
	t.Setenv("TMPDIR", "/root/tmp")
	p := shell(`id -u; id -g; id -G; echo "${USER-none} ${LOGNAME-none} ${HOME-none} ${TMPDIR-none}"; grep CapEff /proc/self/status`)
	nobody, err := exec.Command("id", "-g", "nobody").Output()
	if err != nil {
		t.Skipf("no user nobody: %v", err)
	}
	group := strings.TrimSpace(string(nobody))
	home, _ := exec.Command("sh", "-c", "echo ~nobody").Output()
	for user, want := range map[string]string{
		"nobody":       fmt.Sprintf("65534 %s %s nobody nobody %s none CapEff: 0000000000000000", group, group, strings.TrimSpace(string(home))),
		"nobody:12345": fmt.Sprintf("65534 12345 12345 nobody nobody %s none CapEff: 0000000000000000", strings.TrimSpace(string(home))),
		"54321:12345":  "54321 12345 12345 none none none none CapEff: 0000000000000000",
	} {
		p.User = user
		if got := strings.Join(strings.Fields(said(t, p)), " "); got != want {
			t.Errorf("%s:\n got %s\nwant %s", user, got, want)
		}
	}
}

// A program of another user, and what it has started, end as any other does.
func TestAnotherUsersProgramIsEnded(t *testing.T) {
	needRoot(t)
	p := shell(`setsid sleep 600 & echo $!; exec sleep 600`)
	p.User = "54321:54321"
	c, err := child.Start(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var pid int
	if _, err := fmt.Fscan(c.Stdout, &pid); err != nil {
		t.Fatal(err)
	}
	c.Kill()
	<-c.Exited()
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v", pid, err)
	}
}

// Whatever stands in the way of a start is named, by Try as by Start, and nothing runs.
func TestNotStarted(t *testing.T) {
	dir := t.TempDir()
	mark := filepath.Join(dir, "ran")
	touch := func(s child.Setting) child.Program {
		p := shell("touch " + mark)
		p.Setting = s
		return p
	}
	private := filepath.Join(dir, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, key string
		root      bool
		p         child.Program
	}{
		{"no program", "argv", false, child.Program{Argv: []string{"no-such-program"}}},
		{"no file", "argv", false, child.Program{Argv: []string{"/nonexistent/program"}}},
		{"a directory", "argv", false, child.Program{Argv: []string{dir}}},
		{"nothing", "argv", false, child.Program{}},
		{"no directory", "cwd", false, touch(child.Setting{Cwd: "/nonexistent"})},
		{"no directory, with limits", "cwd", false, touch(child.Setting{Cwd: "/nonexistent", Limits: map[string]uint64{"core": 0}})},
		{"a file as directory", "cwd", false, touch(child.Setting{Cwd: "/etc/passwd"})},
		{"relative directory", "cwd", false, touch(child.Setting{Cwd: "tmp"})},
		{"no user", "user", false, touch(child.Setting{User: "nosuchuser"})},
		{"no group", "user", false, touch(child.Setting{User: "0:nosuchgroup"})},
		{"a user without a group", "user", false, touch(child.Setting{User: "54321"})},
		{"nobody's number", "user", false, touch(child.Setting{User: "4294967295:0"})},
		{"umask", "umask", false, touch(child.Setting{Umask: "9"})},
		{"limit that is none", "limits.files", false, touch(child.Setting{Limits: map[string]uint64{"files": 3}})},
		{"limit above the system's", "limits.nofile", false, touch(child.Setting{Limits: map[string]uint64{"nofile": 1 << 40}})},
		{"directory of another user", "cwd", true, touch(child.Setting{User: "54321:54321", Cwd: private})},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root {
				needRoot(t)
			}
			_, started := child.Start(c.p, nil)
			for how, err := range map[string]error{"Start": started, "Try": child.Try(c.p)} {
				var cause *child.NotStarted
				if !errors.As(err, &cause) || cause.Key != c.key {
					t.Errorf("%s: %v, want the blame on %s", how, err, c.key)
				}
			}
			if _, err := os.Stat(mark); err == nil {
				t.Error("it ran")
			}
		})
	}
}

// Without the right to do so no program is started as another user, and it is said which right is missing.
func TestUserNeedsRights(t *testing.T) {
	needRoot(t)
	for _, drop := range []string{"-setuid", "-setgid", "-kill"} {
		cmd := exec.Command("setpriv", "--bounding-set", drop, "--inh-caps", drop, os.Args[0])
		cmd.Env = append(os.Environ(), tryVariable+"=54321:54321")
		out, err := cmd.Output()
		if errors.Is(err, exec.ErrNotFound) {
			t.Skip("no setpriv on this machine")
		}
		if got := string(out); err != nil || !strings.HasPrefix(got, "user: ") || !strings.Contains(got, "CAP_KILL") {
			t.Errorf("%s: %q, %v", drop, got, err)
		}
	}
}

// Rights that a service manager has given to this process only do not reach a program, as whatever user it runs.
func TestAmbientRightsAreNotInherited(t *testing.T) {
	needRoot(t)
	cmd := exec.Command("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "--inh-caps", "+net_bind_service", "--ambient-caps", "+net_bind_service", os.Args[0])
	cmd.Env = append(os.Environ(), capsVariable+"=1")
	cmd.Dir = "/"
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no setpriv on this machine")
	}
	if got := strings.Join(strings.Fields(string(out)), " "); err != nil || got != "own CapAmb: 0000000000000400 program CapAmb: 0000000000000000 CapEff: 0000000000000000" {
		t.Errorf("%q, %v", got, err)
	}
}
