// Package config reads the file of contract §10, YAML or JSON, one file for executor and reconciler, into tools and
// defaults. It is strict: what it does not know it refuses, with file, line and column, and it reports everything it
// finds, not only the first thing. What keys there are, and what their values look like, is said by schema.json alone; what
// must hold between them, by the code. It compiles nothing: CEL, JSON Schema and connectors are checked by whoever builds
// the tools, and File.Locate turns their complaints into places of the file.
package config

import (
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

const (
	// bytesMax bounds the file. A thousand tools with schemas take about a third of it.
	bytesMax = 1 << 20
	// depthMax bounds the nesting of mappings and lists, as args are bounded (contract §12).
	depthMax = 64
	tooDeep  = "nested deeper than 64 levels: make it flatter"
	// aliasedMax bounds the values that the aliases of a file stand for, in all: aliases of aliases could stand for billions.
	aliasedMax = 20_000
	// errorsMax is how many errors are printed; the rest is counted.
	errorsMax = 20
	// secretBytesMin is the length from which a value of the environment is redacted (contract §4).
	secretBytesMin = 8
)

// File is a config file, read and checked.
type File struct {
	Name       string // as given to Load or Parse
	Defaults   Defaults
	Tools      []connector.Spec // by name
	MCPServers map[string]connector.MCPServerSpec
	MCPImports []MCPImport // in the order of the file
	Tenants    map[string]Tenant
	// Secrets are the values that came from ${NAME} and ${file:PATH} and are 8 bytes or longer, the longest first, so that replacing them
	// in this order leaves no piece of a longer one behind.
	Secrets  []string
	Warnings []Warning // by place
	// Files are what the config takes in by ${file:PATH}, and the TLS files that it names, with what they held when it was
	// read.
	Files map[string]Digest

	doc  *document
	text []byte
}

// Defaults hold for jobs and tools that do not say otherwise.
type Defaults struct {
	Owner     string // "" if the file names none: then every first job must
	Workflow  string // likewise
	Actor     string // likewise
	Budget    budget.Limits
	MaxBudget *budget.Ceiling // nil: no ceiling
	Retry     run.Retry
	// PoisonAfter is how many losses of one step in one episode make it POISON_JOB.
	PoisonAfter int
	// UnknownToolGrace is for how long a run waits for another executor that has a tool which this one does not know.
	UnknownToolGrace time.Duration
}

// Tenant is one tenant's share of the fleet.
type Tenant struct {
	Concurrency int // slots at once per executor; 0: no limit of its own
	Weight      int // share beside other tenants when all want more than there is; 1 by default
}

// MCPImport takes tools from an MCP server without an entry of their own under tools. An entry there wins.
type MCPImport struct {
	Server string
	Match  string // a tool's name there, or its beginning followed by *
	Prefix string // stands before the names here, so that two servers may have a tool of one name
	Effect envelope.Effect
	Place  Place

	// As for a tool with an entry of its own.
	Timeout     time.Duration
	Retry       run.Retry
	SafeDetails map[string]string
}

// Place is a position in a file, both from 1; columns count characters.
type Place struct {
	File         string
	Line, Column int
}

func (p Place) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

func (p Place) before(q Place) bool {
	if p.Line != q.Line {
		return p.Line < q.Line
	}
	return p.Column < q.Column
}

// Error is one thing that is wrong with the file. It never holds a value that came from the environment.
type Error struct {
	Place
	Message string
}

func (e Error) Error() string { return e.Place.String() + ": " + e.Message }

// Errors is everything that is wrong with the file, by place. Printed, it is one line each, at most 20.
type Errors []Error

func (es Errors) Error() string {
	var b strings.Builder
	for i, e := range es {
		if i == errorsMax {
			fmt.Fprintf(&b, "\n%s: and %d more errors", es[i].Place, len(es)-errorsMax)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(e.Error())
	}
	return b.String()
}

// Warning is something that is legal and probably not meant.
type Warning struct {
	Place
	Message string
}

func (w Warning) String() string { return w.Place.String() + ": warning: " + w.Message }

// Load reads the file at path, and the files that it names by ${file:PATH}. env looks a variable up, as os.LookupEnv does.
// What is wrong with the content comes as Errors; any other error means that the file could not be read.
func Load(path string, env func(string) (string, bool)) (*File, []Warning, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read config: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, bytesMax+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read config: %w", err)
	}
	return parse(path, data, env, newFiles())
}

// LoadBytes is Load for a config that is not in a file of its own. name is only used in messages.
func LoadBytes(name string, data []byte, env func(string) (string, bool)) (*File, []Warning, error) {
	return parse(name, data, env, newFiles())
}

// Again reads the same text with the files that it names as they are now: a secret that was renewed does not take in what
// else somebody is just changing.
func (f *File) Again(env func(string) (string, bool)) (*File, []Warning, error) {
	return parse(f.Name, f.text, env, newFiles())
}

// Parse reads the file's content. It has no side effect and reads no file; name is only used in messages. On failure the
// error is of type Errors and the File is nil; the warnings found so far come all the same.
func Parse(name string, data []byte, env func(string) (string, bool)) (*File, []Warning, error) {
	return parse(name, data, env, nil)
}

func parse(name string, data []byte, env func(string) (string, bool), from *files) (*File, []Warning, error) {
	d := &decoder{name: name, env: env, files: from, secrets: map[string]bool{}}
	f := d.file(data)
	sort.SliceStable(d.errs, func(i, j int) bool { return d.errs[i].before(d.errs[j].Place) })
	sort.SliceStable(d.warnings, func(i, j int) bool { return d.warnings[i].before(d.warnings[j].Place) })
	if len(d.errs) > 0 {
		return nil, d.warnings, d.errs
	}
	f.Warnings, f.text = d.warnings, data
	if from != nil {
		f.Files = from.digests()
	}
	return f, d.warnings, nil
}

// The built-in defaults of contract §10.
const (
	defaultTimeout           = 30 * time.Second
	defaultVerifyAttempts    = 5
	defaultPoisonAfter       = 3
	defaultUnknownToolGrace  = 5 * time.Minute
	defaultMaxResultBytes    = 256 << 10
	defaultIdempotencyHeader = "Idempotency-Key"
)

func builtinRetry() run.Retry {
	return run.Retry{
		MaxAttempts: 3, InitialDelay: 500 * time.Millisecond, MaxDelay: time.Minute, Multiplier: 2, Jitter: 0.2,
		MaxRetryAfter: 15 * time.Minute,
	}
}

func builtinBudget() budget.Limits {
	return budget.Limits{
		MaxTurns: 12, MaxToolCalls: 32, MaxAttemptsPerStep: 3, MaxElapsedMillis: (15 * time.Minute).Milliseconds(),
		MaxInputTokens: 500_000, MaxOutputTokens: 80_000, MaxEstimatedCostMinorUnits: 500,
	}
}
