package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// schema compiles a schema of docs/schema.
func schema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(read(t, "docs/schema/"+name)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, document); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

func validate(t *testing.T, s *jsonschema.Schema, what, text string) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err == nil {
		err = s.Validate(value)
	}
	if err != nil {
		t.Errorf("%s: %v\n%s", what, err, text)
	}
}

func TestTheExampleJobFitsItsSchema(t *testing.T) {
	t.Parallel()
	job := schema(t, "job.json")
	validate(t, job, "examples/job.json", read(t, "examples/job.json"))
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(`{"schema":"agentrun.job/v1","tenant":"a b"}`))
	if err != nil {
		t.Fatal(err)
	}
	if job.Validate(value) == nil {
		t.Error("the schema takes anything")
	}
}

// TestShippedConfigsFitTheSchema holds every config that is handed out to what an editor says of it.
func TestShippedConfigsFitTheSchema(t *testing.T) {
	shape, seen := schema(t, "config.json"), 0
	for _, pattern := range []string{"deploy/config.yaml", "deploy/kubernetes/base/config.yaml", "examples/*/*.yaml", "internal/config/testdata/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var value any
			if err := yaml.Unmarshal(text, &value); err != nil {
				t.Fatal(err)
			}
			asJSON, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			validate(t, shape, file, string(asJSON))
			seen++
		}
	}
	if seen < 9 {
		t.Errorf("only %d configs", seen)
	}
}

// follows checks what an example printed about its run: outcomes that fit their schema, the last of them the run's end.
func follows(t *testing.T, printed string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(printed), "\n")
	shape := schema(t, "outcome.json")
	var ends []string
	for _, line := range lines {
		validate(t, shape, "an outcome", line)
		var o outcome
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, o.Scope+":"+o.Step+":"+o.Outcome)
	}
	if got := strings.Join(ends, " "); got != "step:load_invoice:ok step:apply_credit:ok run::ok" {
		t.Errorf("it printed %s", got)
	}
}

// publisherEnvironment is what the examples connect with.
func publisherEnvironment(n *natsServer) []string {
	return []string{"NATS_URL=" + n.as("publisher-acme"), "AGENTRUN_INBOX_PREFIX=" + inbox("publisher-acme"), "TIMEOUT_SECONDS=60"}
}

// TestTypeScriptExample compiles and runs it against a real executor, as a publisher; the second time the run has ended
// already, and is told as it ended.
func TestTypeScriptExample(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: npm and its compiler take ten seconds")
	}
	node, npm := need(t, "node", "nodejs"), need(t, "npm", "npm")
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "tsconfig.json", "src/publish.ts"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, path, read(t, "examples/typescript/"+name))
	}
	install := exec.CommandContext(t.Context(), npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "ENOTFOUND") || strings.Contains(string(out), "EAI_AGAIN") {
			t.Skipf("the npm registry cannot be reached: %s", out)
		}
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	toolIn(t, dir, nil, npm, "run", "build")
	n := startShipped(t)
	n.fleet(t, toolConfig(t))
	job, err := filepath.Abs(filepath.Join(root, "examples/job.json"))
	if err != nil {
		t.Fatal(err)
	}
	follows(t, toolIn(t, dir, publisherEnvironment(n), node, "dist/publish.js", job))
	again := toolIn(t, dir, publisherEnvironment(n), node, "dist/publish.js", job)
	if !strings.Contains(again, `"id":"acme/run_1042/run/1"`) {
		t.Errorf("the second time: %s", again)
	}
	if lines := n.refuse.take(); len(lines) > 0 {
		t.Errorf("it tried more than a publisher may: %v", lines)
	}
}

func TestPythonExample(t *testing.T) {
	t.Parallel()
	python := need(t, "python3", "python3")
	tool(t, nil, python, "-c", "import ast; ast.parse(open('examples/python/publish.py').read())")
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import nats").CombinedOutput(); err != nil {
		t.Skipf("it was only parsed: the Python package nats-py is not installed (%s)", strings.TrimSpace(string(out[strings.LastIndexByte(strings.TrimSpace(string(out)), '\n')+1:])))
	}
	n := startShipped(t)
	n.fleet(t, toolConfig(t))
	follows(t, tool(t, publisherEnvironment(n), python, "examples/python/publish.py", "examples/job.json"))
}

var (
	commandBlock   = regexp.MustCompile("(?s)```sh\n(.*?)```")
	contextCommand = regexp.MustCompile("(?m)^nats context save .*$")
)

// TestNATSCommandLineExample runs the document's commands as a publisher.
func TestNATSCommandLineExample(t *testing.T) {
	t.Parallel()
	dir, home := t.TempDir(), t.TempDir()
	toolIn(t, filepath.Join(root, "test/natscli"), nil, "go", "build", "-o", filepath.Join(dir, "nats"), "github.com/nats-io/natscli/nats")
	n := startShipped(t)
	n.fleet(t, toolConfig(t))
	env := []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + home, "XDG_CONFIG_HOME=" + home}
	readme := read(t, "examples/nats-cli/README.md")
	context := strings.Replace(contextCommand.FindString(readme), "127.0.0.1:4222", n.url, 1)
	if context == "" {
		t.Fatal("the document saves no context")
	}
	toolIn(t, dir, env, "sh", "-ec", context)
	heard := n.publisher(t, "publisher-acme")
	end, err := heard.nc.SubscribeSync("agentrun.results.acme.*.run")
	if err != nil {
		t.Fatal(err)
	}
	if err := heard.nc.FlushTimeout(limit); err != nil {
		t.Fatal(err)
	}
	blocks := commandBlock.FindAllStringSubmatch(readme, -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of commands", len(blocks))
	}
	if out := toolIn(t, filepath.Join(root, "examples/nats-cli"), env, "sh", "-ec", blocks[0][1]); !strings.Contains(out, `"AGENTRUN_JOBS"`) {
		t.Errorf("publishing: %s", out)
	}
	if _, err := end.NextMsg(limit); err != nil {
		t.Fatal(err)
	}
	if out := toolIn(t, filepath.Join(root, "examples/nats-cli"), env, "sh", "-ec", blocks[1][1]); !strings.Contains(out, `"acme/run_1042/run/1"`) {
		t.Errorf("reading the end: %s", out)
	}
}
