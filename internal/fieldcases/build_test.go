package fieldcases

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build is one build of the two commands.
type build struct{ dir string }

func (b build) path(role string) string { return filepath.Join(b.dir, role) }

const moduleRoot = "../.."

// compile builds the commands from the sources in dir.
func compile(t *testing.T, dir string, flags ...string) build {
	t.Helper()
	b := build{t.TempDir()}
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", b.dir + "/"}, flags...)
	cmd := exec.Command("go", append(args, "./cmd/executor", "./cmd/reconciler")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v\n%s", dir, err, out)
	}
	return b
}

// thisBuild is the commands as they are now.
func thisBuild(t *testing.T) build {
	t.Helper()
	return compile(t, moduleRoot)
}

// previousFile names the commit that stands for the previous version; a release's tag may stand there too.
const previousFile = "testdata/previous"

// previousBuild builds the previous version from the history. ok is false, with the reason, where there is no history.
func previousBuild(t *testing.T) (b build, why string) {
	t.Helper()
	data, err := os.ReadFile(previousFile)
	if err != nil {
		t.Fatal(err)
	}
	commit, _, _ := strings.Cut(string(data), "\n")
	source := t.TempDir()
	var archive, problem bytes.Buffer
	git := exec.Command("git", "archive", "--format=tar", commit)
	git.Dir, git.Stdout, git.Stderr = moduleRoot, &archive, &problem
	if err := git.Run(); err != nil {
		return build{}, fmt.Sprintf("this checkout does not have the commit %s: %v: %s", commit, err, bytes.TrimSpace(problem.Bytes()))
	}
	tar := exec.Command("tar", "-x", "-C", source)
	tar.Stdin = &archive
	if out, err := tar.CombinedOutput(); err != nil {
		return build{}, fmt.Sprintf("unpacking %s: %v: %s", commit, err, out)
	}
	return compile(t, source), ""
}

// nextChanges make the sources of the next minor version: its records have members that this version does not know, set
// once when the object is made and never again, so that one that was lost stays lost.
var nextChanges = []struct{ file, from, to string }{
	{"internal/engine/record.go", "\tQueue    string `json:\"queue\"`\n", "\tQueue    string `json:\"queue\"`\n\tRegion   string `json:\"region,omitempty\"`\n"},
	{"internal/engine/record.go", "\tDigest   string           `json:\"digest\"`", "\tLane     *NextLane        `json:\"lane,omitempty\"`\n\tDigest   string           `json:\"digest\"`"},
	{"internal/engine/record.go", "// JobRef remembers", "// NextLane is an object that only the next version knows.\ntype NextLane struct {\n\tName string `json:\"name\"`\n}\n\n// JobRef remembers"},
	{"internal/engine/record.go", "\tReason      string               `json:\"reason,omitempty\"`", "\tZone        string               `json:\"zone,omitempty\"`\n\tReason      string               `json:\"reason,omitempty\"`"},
	{"internal/engine/record.go", "func (r *Run) note(e Event) {\n", "func (r *Run) note(e Event) {\n\te.Zone = \"z1\"\n"},
	{"internal/engine/accept.go", "Schema: RecordSchema, Tenant: id.Tenant,", "Schema: RecordSchema, Region: \"eu\", Tenant: id.Tenant,"},
	{"internal/engine/accept.go", "r.Steps = append(r.Steps, &Step{", "r.Steps = append(r.Steps, &Step{Lane: &NextLane{Name: \"fast\"},"},
	{"internal/reconcile/lead.go", "\tSettledThrough uint64        `json:\"settled_through\"`", "\tRegion string `json:\"region,omitempty\"`\n\tSettledThrough uint64        `json:\"settled_through\"`"},
	{"internal/reconcile/lead.go", "Schema: FleetSchema, ID: rc.ID,", "Schema: FleetSchema, Region: \"eu\", ID: rc.ID,"},
}

// nextBuild builds the next minor version: these sources with nextChanges laid over them.
func nextBuild(t *testing.T) build {
	t.Helper()
	root, err := filepath.Abs(moduleRoot)
	if err != nil {
		t.Fatal(err)
	}
	changed := map[string]string{}
	for _, c := range nextChanges {
		if _, ok := changed[c.file]; !ok {
			data, err := os.ReadFile(filepath.Join(root, c.file))
			if err != nil {
				t.Fatal(err)
			}
			changed[c.file] = string(data)
		}
		if strings.Count(changed[c.file], c.from) != 1 {
			t.Fatalf("%s does not have this once any more; change nextChanges with it:\n%s", c.file, c.from)
		}
		changed[c.file] = strings.Replace(changed[c.file], c.from, c.to, 1)
	}
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range changed {
		path := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, file)] = path
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return compile(t, moduleRoot, "-overlay", path)
}

// command is a process of a build.
func (w *world) command(b build, role, name string, flags ...string) *process {
	w.t.Helper()
	p := w.process(role, name, true, flags...)
	p.binary = b.path(role)
	return p
}
