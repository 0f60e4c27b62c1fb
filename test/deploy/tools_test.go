package deploy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// toolLimit bounds one run of a tool, a build included.
const toolLimit = 5 * time.Minute

// need returns where a tool is, or skips the test with the reason.
func need(t *testing.T, tool, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Skipf("%s is not installed (Debian package %s)", tool, debianPackage)
	}
	return path
}

// tool runs a tool in the repository and returns its standard output; it must succeed.
func tool(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	return toolIn(t, root, env, name, args...)
}

func toolIn(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), toolLimit)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errs
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String()
}

// passwordFile is what `make up` writes.
func passwordFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "env")
	writeFile(t, file, tool(t, nil, "deploy/passwords.sh"))
	return file
}

// TestNATSServerAcceptsTheConfiguration runs the server itself on the files, with the passwords that make up makes.
func TestNATSServerAcceptsTheConfiguration(t *testing.T) {
	t.Parallel()
	env := strings.Fields(string(readPath(t, passwordFile(t))))
	env = append(env, "NATS_SERVER_NAME=a", "NATS_ROUTES_USER=u", "NATS_ROUTES_PASSWORD=p",
		"NATS_ROUTE_1=nats://u:p@a:6222", "NATS_ROUTE_2=nats://u:p@b:6222", "NATS_ROUTE_3=nats://u:p@c:6222")
	server := filepath.Join(t.TempDir(), "nats-server")
	tool(t, nil, "go", "build", "-o", server, "github.com/nats-io/nats-server/v2")
	for _, file := range []string{"nats.conf", "cluster.conf"} {
		tool(t, env, server, "-t", "-c", "deploy/nats/"+file)
	}
	// Without the passwords it must not start.
	cmd := exec.CommandContext(t.Context(), server, "-t", "-c", "deploy/nats/nats.conf")
	cmd.Dir, cmd.Env = root, []string{"PATH=" + os.Getenv("PATH")}
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("the server starts without passwords: %s", out)
	}
}

func readPath(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

var goBuild = regexp.MustCompile(`(?m)^RUN CGO_ENABLED=0 (go build .*) -o /out/ (.*)$`)

// TestTheImagesBinaries builds with the Dockerfile's own command, twice, from what its .dockerignore lets through: the
// binaries are static and the same byte for byte.
func TestTheImagesBinaries(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: both binaries are built twice")
	}
	m := goBuild.FindStringSubmatch(read(t, "deploy/Dockerfile"))
	if m == nil {
		t.Fatal("the Dockerfile has no line RUN CGO_ENABLED=0 go build … -o /out/ …")
	}
	var sums [2]string
	for i := range sums {
		source, out := buildContext(t), t.TempDir()
		command := fmt.Sprintf("CGO_ENABLED=0 %s -o %s/ %s", m[1], out, m[2])
		toolIn(t, source, nil, "sh", "-c", command)
		for _, name := range []string{"executor", "reconciler"} {
			path := filepath.Join(out, name)
			sums[i] += fmt.Sprintf("%s %x\n", name, sha256.Sum256(readPath(t, path)))
			if i == 0 {
				static(t, path)
				tool(t, nil, path, "--version")
			}
		}
	}
	if sums[0] != sums[1] {
		t.Errorf("two builds differ:\n%s%s", sums[0], sums[1])
	}
}

// static fails if the binary needs a loader or a library: an image from scratch has none.
func static(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	libraries, err := f.ImportedLibraries()
	if err != nil || len(libraries) > 0 {
		t.Errorf("%s needs %v (%v)", path, libraries, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s needs a loader", path)
		}
	}
}

// buildContext copies what Dockerfile.dockerignore lets through.
func buildContext(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, line := range strings.Fields(read(t, "deploy/Dockerfile.dockerignore")) {
		name, included := strings.CutPrefix(line, "!")
		if !included {
			continue
		}
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if !info.IsDir() {
			writeFile(t, filepath.Join(dir, name), read(t, name))
			continue
		}
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(root, name))); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == "testdata":
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			return filepath.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			return os.Remove(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// composeCommand is the plugin, or the older command that Debian has.
func composeCommand(t *testing.T) []string {
	t.Helper()
	if docker, err := exec.LookPath("docker"); err == nil && exec.CommandContext(t.Context(), docker, "compose", "version").Run() == nil {
		return []string{docker, "compose"}
	}
	return []string{need(t, "docker-compose", "docker-compose")}
}

func TestComposeConfig(t *testing.T) {
	t.Parallel()
	command := append(composeCommand(t), "-p", "agentrun", "--env-file", passwordFile(t), "-f", "deploy/compose.yaml", "config")
	out := tool(t, nil, command[0], command[1:]...)
	for _, service := range []string{"nats", "executor-1", "executor-2", "reconciler-1", "reconciler-2", "prometheus", "grafana"} {
		if !strings.Contains(out, "\n  "+service+":\n") {
			t.Errorf("there is no service %s:\n%s", service, out)
		}
	}
}

func TestSystemdUnits(t *testing.T) {
	t.Parallel()
	analyze := need(t, "systemd-analyze", "systemd")
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"executor", "reconciler"} {
		// The commands need not be installed here: any executable stands for them.
		unit := filepath.Join(dir, "agentrun-"+name+".service")
		writeFile(t, unit, strings.ReplaceAll(read(t, "deploy/systemd/agentrun-"+name+".service"), "/usr/bin/"+name, self))
		if out := tool(t, nil, analyze, "verify", "--man=no", unit); strings.Contains(out, unit) {
			t.Errorf("%s", out)
		}
		// Exposure of at most 2 of 10.
		tool(t, nil, analyze, "security", "--offline=true", "--threshold=20", unit)
	}
}

func TestPrometheusRules(t *testing.T) {
	t.Parallel()
	promtool := need(t, "promtool", "prometheus")
	tool(t, nil, promtool, "check", "config", "deploy/prometheus/prometheus.yaml")
	if out := tool(t, nil, promtool, "check", "rules", "deploy/prometheus/rules.yaml"); !strings.Contains(out, "SUCCESS") {
		t.Error(out)
	}
	toolIn(t, filepath.Join(root, "deploy/prometheus"), nil, promtool, "test", "rules", "rules_test.yaml", "rules_day_test.yaml")
}

// TestTheExampleConfigIsValid runs executor check on it.
func TestTheExampleConfigIsValid(t *testing.T) {
	t.Parallel()
	env := []string{"BILLING_URL=https://billing.internal", "BILLING_TOKEN=none"}
	for _, file := range []string{"deploy/config.yaml", "deploy/kubernetes/base/config.yaml"} {
		out := tool(t, env, "go", "run", "./cmd/executor", "check", "--config", file)
		if !strings.Contains(out, "apply_credit") {
			t.Errorf("%s: %s", file, out)
		}
	}
	if read(t, "deploy/config.yaml") != read(t, "deploy/kubernetes/base/config.yaml") {
		t.Error("the two example configs differ; they are one file in two places")
	}
}
