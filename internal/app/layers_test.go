package app

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/agentrun/executor/"

// The layers of CONTRIBUTING.md: what each package's code may import of this module and of the outside. Every package is in
// one of them.
var (
	public  = []string{"pkg/run", "pkg/budget", "pkg/envelope", "pkg/deadletter", "internal/strictjson"}
	core    = append([]string{"internal/engine"}, public...)
	words   = []string{"internal/port"}
	names   = []string{"internal/topology"}
	aside   = []string{"internal/fair", "internal/boottime", "internal/child", "internal/pause"}
	drivers = []string{"internal/worker", "internal/reconcile", "internal/operator", "internal/record", "internal/generation", "internal/audit"}
	edges   = []string{"internal/bus", "internal/streams", "internal/queue", "internal/journal", "internal/config", "internal/observe", "internal/trace", "internal/terminal", "internal/fleet", "pkg/connector"}
	publish = []string{"pkg/client"}
	doors   = []string{"internal/gateway"}
	wiring  = []string{"internal/app", "internal/cli", "internal/demo", "pkg/executor", "cmd"}
	outside = []string{"internal/bench", "internal/crash", "internal/sim", "internal/fieldcases", "internal/schemadoc", "examples", "test"}

	impure = []string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand", "sync", "context", "io/fs", "os/exec"}
)

func under(pkg string, layer []string) bool {
	for _, p := range layer {
		if pkg == p || strings.HasPrefix(pkg, p+"/") {
			return true
		}
	}
	return false
}

// forbidden says why pkg must not import this path, "" if it may.
func forbidden(pkg, path string) string {
	own, ours := strings.CutPrefix(path, module)
	knows := func(layers ...[]string) bool { return !ours || under(own, slices.Concat(layers...)) }
	switch {
	case under(pkg, public) && !knows(public):
		return "what users see knows nothing of the rules behind it"
	case under(pkg, core) && !knows(core):
		return "the core knows the core only"
	case under(pkg, core) && slices.Contains(impure, path):
		return "the core is pure"
	case under(pkg, words) && !knows(core):
		return "the words between drivers and edges are made of the core's only"
	case under(pkg, aside) && !knows(core):
		return "what stands beside the layers knows none of them"
	case under(pkg, drivers) && !knows(core, words, aside, drivers):
		return "a driver asks for an interface, and never imports an edge"
	case under(pkg, names) && !knows(core, words):
		return "what streams and subjects are called follows from the words only"
	case under(pkg, edges) && !knows(core, words, aside, names, edges):
		return "an edge knows no driver"
	case under(pkg, edges) && ours && under(own, edges):
		// A kind of tool is part of the connector; config reads specs, which are the connector's types. NATS has three rooms:
		// what keeps the streams and what pulls stand on the connection.
		same := strings.Split(pkg, "/")[1] == strings.Split(own, "/")[1]
		stands := under(pkg, []string{"internal/streams", "internal/queue"}) && under(own, []string{"internal/bus"})
		if !same && !stands && own != "pkg/connector" {
			return "an edge knows no other edge"
		}
	case under(pkg, publish) && !knows(public, words, names, []string{"internal/bus", "internal/pause"}):
		return "a publisher's build holds no more than it needs"
	case under(pkg, doors) && !knows(public, publish, []string{"pkg/connector"}, doors):
		return "who comes in by a door publishes as everybody does, and sees the tools and no more"
	case under(pkg, wiring) && !knows(core, words, aside, names, drivers, edges, publish, doors, wiring):
		return "nothing that runs knows what tests and measures it"
	}
	return ""
}

// layers counts the layers that a package is in.
func layers(pkg string) (n int) {
	for _, l := range [][]string{core, words, aside, names, drivers, edges, publish, doors, wiring, outside} {
		if under(pkg, l) {
			n++
		}
	}
	return n
}

func TestArrowsOnlyGoDown(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	seen := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root && d.Name() != ".." {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(rel)
		if n := layers(pkg); n != 1 && !seen[pkg] {
			t.Errorf("%s is in %d layers: put it into one, here and in CONTRIBUTING.md", pkg, n)
		}
		seen[pkg] = true
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range file.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if why := forbidden(pkg, name); why != "" {
				t.Errorf("%s imports %s: %s", path, name, why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range slices.Concat(core, words, aside, names, drivers, edges, publish, doors) {
		if !seen[p] {
			t.Errorf("%s was not looked at", p)
		}
	}
}

// The rule itself finds what it is there to find.
func TestForbidden(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		pkg, path string
		allowed   bool
	}{
		{"pkg/run", module + "pkg/budget", true},
		{"pkg/run", "encoding/json", true},
		{"pkg/run", module + "internal/journal", false},
		{"pkg/run", module + "internal/strictjson", true},
		{"pkg/run", "os", false},
		{"pkg/run", module + "internal/engine", false},
		{"internal/engine", module + "pkg/run", true},
		{"internal/engine", module + "internal/port", false},
		{"internal/engine", "context", false},
		{"pkg/client", module + "internal/engine", false},
		{"internal/strictjson", "sync", false},
		{"internal/worker", module + "internal/record", true},
		{"internal/worker", module + "internal/port", true},
		{"internal/worker", module + "internal/fair", true},
		{"internal/worker", module + "internal/demo", false},
		{"internal/port", module + "pkg/run", true},
		{"internal/port", module + "internal/record", false},
		{"internal/fair", module + "internal/port", false},
		{"internal/bus", module + "internal/port", true},
		{"internal/bus", module + "internal/record", false},
		{"internal/bus", module + "internal/streams", false},
		{"internal/bus", module + "internal/queue", false},
		{"internal/streams", module + "internal/bus", true},
		{"internal/streams", module + "internal/queue", false},
		{"internal/queue", module + "internal/bus", true},
		{"internal/queue", module + "internal/streams", false},
		{"internal/worker", module + "internal/topology", false},
		{"internal/topology", module + "internal/bus", false},
		{"pkg/client", module + "internal/bus", true},
		{"pkg/client", module + "internal/queue", false},
		{"pkg/client", module + "internal/journal", false},
		{"internal/app", module + "internal/crash", false},
		{"internal/worker", module + "internal/bus", false},
		{"internal/worker", module + "internal/app", false},
		{"internal/bus", module + "pkg/run", true},
		{"internal/bus", module + "internal/journal", false},
		{"internal/bus", module + "internal/worker", false},
		{"internal/config", module + "pkg/connector", true},
		{"pkg/connector/httptool", module + "pkg/connector", true},
		{"internal/app", module + "internal/worker", true},
		{"cmd/executor", module + "internal/app", true},
	} {
		if why := forbidden(x.pkg, x.path); (why == "") != x.allowed {
			t.Errorf("%s importing %s: %q", x.pkg, x.path, why)
		}
	}
	if layers("internal/unheard") != 0 || layers("internal/bus/bustest") != 1 {
		t.Error("a package of no layer is not found")
	}
}

// TestOneOwnerOfTheAPI: the subjects of the JetStream API and the library's client of it are made in one place, which knows
// the domain or the prefix. Harnesses that run their own server beside the product may ask it directly.
func TestOneOwnerOfTheAPI(t *testing.T) {
	t.Parallel()
	const owner = "internal/bus/jsapi.go"
	harness := []string{"internal/bench", "internal/crash"}
	root, seen := filepath.Join("..", ".."), false
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if under(rel, harness) {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			made := ""
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Kind == token.STRING && (strings.Contains(n.Value, "$JS.API") || strings.Contains(n.Value, `"$JS."`)) {
					made = n.Value
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "jetstream" && strings.HasPrefix(n.Sel.Name, "New") {
					made = "jetstream." + n.Sel.Name
				}
			}
			switch {
			case made != "" && rel == owner:
				seen = true
			case made != "" && !(rel == "internal/app/flags.go" && strings.HasPrefix(made, "`")): // a flag's help
				t.Errorf("%s has %s of its own: ask bus.API", rel, made)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !seen {
		t.Errorf("%s was not looked at", owner)
	}
}
