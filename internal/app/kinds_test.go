package app

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

type nothing struct{}

type found struct {
	Credit string `json:"credit_id"`
}

// billing is an MCP server with these tools, by name: what they say about themselves.
func billing(t *testing.T, tools map[string]*mcp.ToolAnnotations) (url string) {
	t.Helper()
	s := mcp.NewServer(&mcp.Implementation{Name: "billing", Version: "1"}, nil)
	for name, hints := range tools {
		mcp.AddTool(s, &mcp.Tool{Name: name, Annotations: hints}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, found, error) {
			return nil, found{Credit: name}, nil
		})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return "http://" + l.Addr().String()
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func noVariables(string) (string, bool) { return "", false }

func loadFile(t *testing.T, k *kinds, imports importing, text string) (*Toolbox, string, error) {
	t.Helper()
	box, warnings, err := k.load(t.Context(), configFile(t, text), noVariables, imports)
	var lines []string
	for _, w := range warnings {
		lines = append(lines, w.String())
	}
	return box, strings.Join(lines, "\n"), err
}

func TestImport(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	url := billing(t, map[string]*mcp.ToolAnnotations{
		"find_credit": {ReadOnlyHint: true}, "find_other": nil, "find_and_delete": {DestructiveHint: &yes},
		"make_credit": {DestructiveHint: &no}, "drop": {DestructiveHint: &yes},
	})
	k := testKinds(t)
	box, warnings, err := loadFile(t, k, importWait, `
defaults: {retry: {max_attempts: 7}}
mcp_servers:
  billing: {url: "`+url+`", import: [{match: "find_*", effect: read}, "make_*", "nothing_*"]}
tools:
  looks_up: {effect: read, mcp: {server: billing, tool: find_other}}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]envelope.Effect{
		"looks_up": envelope.Read, "find_credit": envelope.Read, "find_and_delete": envelope.Write, "make_credit": envelope.Write,
	}
	if got := box.Registry.Names(); len(got) != len(want) {
		t.Errorf("tools %v", got)
	}
	for name, effect := range want {
		tool, ok := box.Registry.Get(name)
		if !ok || tool.Effect != effect || tool.Retry.MaxAttempts != 7 || tool.PoisonAfter != 3 {
			t.Errorf("%s: %+v", name, tool)
		}
	}
	for _, part := range []string{"find_and_delete of billing is taken over as a write", "billing has no tool nothing_*"} {
		if !strings.Contains(warnings, part) {
			t.Errorf("the warnings lack %q: %s", part, warnings)
		}
	}
	tool, _ := box.Registry.Get("make_credit")
	got := tool.Caller.Call(t.Context(), &connector.Call{OperationRef: "a/b/c", IdempotencyKey: "a/b/c", Args: json.RawMessage(`{}`)})
	if !got.OK || string(got.Result) != `{"credit_id":"make_credit"}` {
		t.Errorf("got %+v", got)
	}
	if field, ok := tool.CheckArgs(json.RawMessage(`{"unknown":1}`)); ok || field != "/unknown" {
		t.Errorf("the server's input schema is not held: %q %v", field, ok)
	}
}

// Two servers have a tool of one name, and what is taken over has its own limits.
func TestImportWithAPrefix(t *testing.T) {
	t.Parallel()
	yes := true
	a := billing(t, map[string]*mcp.ToolAnnotations{"find": {ReadOnlyHint: true}, "own": nil})
	b := billing(t, map[string]*mcp.ToolAnnotations{"find": {ReadOnlyHint: true}, "drop": {DestructiveHint: &yes}})
	file := `
defaults: {retry: {max_attempts: 7}}
mcp_servers:
  a: {url: "` + a + `", import: [find, own]}
  b:
    url: "` + b + `"
    import: [{match: "*", effect: read, prefix: "b.", timeout: 3s, retry: {max_delay: 9s}, safe_details: {reason: "body.credit_id"}}]
tools:
  mine: {effect: read, mcp: {server: a, tool: own}}
`
	box, warnings, err := loadFile(t, testKinds(t), importMust, file)
	if err != nil || !strings.Contains(warnings, "drop of b is taken over as a write") {
		t.Fatalf("%v %s", err, warnings)
	}
	if got := strings.Join(box.Registry.Names(), " "); got != "b.drop b.find find mine" {
		t.Errorf("tools %s", got)
	}
	tool, _ := box.Registry.Get("b.find")
	if tool.Timeout != 3*time.Second || tool.Retry.MaxDelay != 9*time.Second || tool.Retry.MaxAttempts != 7 {
		t.Errorf("%v %+v", tool.Timeout, tool.Retry)
	}
	if other, _ := box.Registry.Get("find"); other.Timeout != 30*time.Second {
		t.Errorf("the other has %v", other.Timeout)
	}
	// It is the server's name that is called.
	got := tool.Caller.Call(t.Context(), &connector.Call{OperationRef: "a/b/c", IdempotencyKey: "a/b/c", Args: json.RawMessage(`{}`)})
	if !got.OK || string(got.Result) != `{"credit_id":"find"}` {
		t.Errorf("got %+v", got)
	}
	var out strings.Builder
	if err := Check(t.Context(), &out, Checking{Config: configFile(t, file), MCP: true}, noVariables); err != nil {
		t.Fatal(err)
	}
	shown := strings.Join(strings.Fields(out.String()), " ")
	for _, part := range []string{"b.* read mcp imported from b 3s repeated no 7", "b.find, imported, a read", "own nothing input, output mine, a read"} {
		if !strings.Contains(shown, part) {
			t.Errorf("it lacks %q:\n%s", part, &out)
		}
	}
	// What an entry took away is not listed as imported.
	if strings.Contains(shown, "own write") {
		t.Errorf("own is listed:\n%s", &out)
	}
	_, _, err = loadFile(t, testKinds(t), importNone, strings.Replace(file, "body.credit_id", "boddy.credit_id", 1))
	if err == nil || !strings.Contains(err.Error(), "config.yaml:7:14: import of *.safe_details.reason: undeclared reference") {
		t.Errorf("a wrong expression: %v", err)
	}
}

// A tool is taken over whatever regular expressions its schemas have: what RE2 lacks is matched all the same, and what nobody
// can read is left out and told.
func TestImportWithPatterns(t *testing.T) {
	t.Parallel()
	s := mcp.NewServer(&mcp.Implementation{Name: "zod", Version: "4"}, nil)
	for name, schema := range map[string]string{
		"invite": `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"email":{"type":"string","format":"email","pattern":"^(?!\\.)(?!.*\\.\\.)[a-z.]+@[a-z.]+$"}}}`,
		"pay":    `{"$schema":"https://example.invalid/dialect","type":"object","properties":{"amount":{"anyOf":[{"type":"number"},{"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}]}}}`,
		"broken": `{"type":"object","properties":{"a":{"type":"string","pattern":"(["},"b":{"type":"string","pattern":"^b"}}}`,
	} {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(schema)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{}, nil
		})
	}
	server := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
	t.Cleanup(server.Close)
	box, warnings, err := loadFile(t, testKinds(t), importMust, `mcp_servers: {zod: {url: "`+server.URL+`", import: ["*"]}}`)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(warnings, "\n") != 0 || !strings.Contains(warnings, "broken of zod: 1 pattern in its schemas cannot be read") || strings.Contains(warnings, "([") {
		t.Errorf("warnings: %s", warnings)
	}
	for _, c := range []struct{ tool, args, field string }{
		{"invite", `{"email":"ada@example.org"}`, ""},
		{"invite", `{"email":"ada..l@example.org"}`, "/email"},
		{"pay", `{"amount":"12.50"}`, ""},
		{"pay", `{"amount":"+."}`, "/amount"},
		{"broken", `{"a":"anything","b":"b"}`, ""},
		{"broken", `{"a":"anything","b":"c"}`, "/b"},
	} {
		tool, there := box.Registry.Get(c.tool)
		if !there {
			t.Errorf("%s is not taken over", c.tool)
			continue
		}
		if field, ok := tool.CheckArgs(json.RawMessage(c.args)); field != c.field || ok != (c.field == "") {
			t.Errorf("%s of %s: %q %v", c.tool, c.args, field, ok)
		}
	}
}

func TestImportRefused(t *testing.T) {
	t.Parallel()
	url := billing(t, map[string]*mcp.ToolAnnotations{"same": nil})
	k := testKinds(t)
	for text, want := range map[string]string{
		`{a: {url: "` + url + `", import: ["*"]}, b: {url: "` + url + `", import: ["same"]}}`: "has a tool same, and so has",
		`{a: {command: ["/nonexistent/server"], import: ["*"]}}`:                              "mcp_servers.a does not say which tools it has",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if strings.Contains(text, "nonexistent") {
			cancel() // it would be waited for
		}
		_, _, err := k.load(ctx, configFile(t, "mcp_servers: "+text+"\n"), noVariables, importWait)
		cancel()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	_, _, err := loadFile(t, k, importMust, `mcp_servers: {a: {command: ["/nonexistent/server"], import: ["*"]}}`)
	if err == nil || !strings.Contains(err.Error(), "config.yaml:1:62: mcp_servers.a does not say") {
		t.Errorf("at a reload: %v", err)
	}
	_, warnings, err := loadFile(t, k, importSeen, `mcp_servers: {a: {command: ["/nonexistent/server"], import: ["*"]}}`)
	if err != nil || !strings.Contains(warnings, "its tools are not known here") {
		t.Errorf("%v %s", err, warnings)
	}
	box, warnings, err := loadFile(t, k, importNone, `mcp_servers: {a: {command: ["/nonexistent/server"], import: ["*"]}}`)
	if err != nil || warnings != "" || len(box.Registry.Names()) != 0 {
		t.Errorf("%v %s", err, warnings)
	}
}

func TestCheckMCP(t *testing.T) {
	t.Parallel()
	yes := true
	url := billing(t, map[string]*mcp.ToolAnnotations{"drop": {DestructiveHint: &yes}, "find": {ReadOnlyHint: true}})
	path := configFile(t, `
mcp_servers: {billing: {url: "`+url+`", import: [find]}}
tools: {drop_it: {effect: read, mcp: {server: billing, tool: drop}}}
`)
	var out strings.Builder
	if err := Check(t.Context(), &out, Checking{Config: path, MCP: true}, noVariables); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"MCP server billing", "destructive", "drop_it, a read: every call will be refused", "read only", "imported, a write"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("it lacks %q:\n%s", part, &out)
		}
	}
	out.Reset()
	away := configFile(t, "mcp_servers: {billing: {command: [\"/nonexistent/server\"]}}\ntools: {}\n")
	if err := Check(t.Context(), &out, Checking{Config: away, MCP: true}, noVariables); err == nil {
		t.Error("a server that is away is not told")
	}
	if err := Check(t.Context(), &out, Checking{Config: away}, noVariables); err != nil {
		t.Errorf("without --mcp: %v", err)
	}
}

// Any kind looks any kind up.
func TestVerifyOfAnyKind(t *testing.T) {
	t.Parallel()
	kindsOf := map[string]string{
		"http":    `http: {url: "http://127.0.0.1:1/?ref={operation_ref}"}`,
		"nats":    `nats: {subject: a.b}`,
		"mcp":     `mcp: {server: billing, tool: find}`,
		"command": `command: {argv: [find]}`,
	}
	k := testKinds(t)
	for tool, toolConfig := range kindsOf {
		for lookup, lookupConfig := range kindsOf {
			box, _, err := loadFile(t, k, importNone, `
mcp_servers: {billing: {url: "http://127.0.0.1:1/"}}
tools: {x: {effect: write, `+toolConfig+`, verify: {`+lookupConfig+`, committed: "body.found"}}}
`)
			if err != nil {
				t.Errorf("%s looked up by %s: %v", tool, lookup, err)
				continue
			}
			if x, _ := box.Registry.Get("x"); x.Kind != tool || x.Looker == nil {
				t.Errorf("%s looked up by %s: %+v", tool, lookup, x)
			}
		}
	}
}

func TestOwnTools(t *testing.T) {
	t.Parallel()
	tool, err := connector.Func("refund", envelope.Write, func(context.Context, *connector.Call) (json.RawMessage, error) {
		return json.RawMessage(`{}`), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k := newKinds(tool)
	t.Cleanup(k.close)
	box, _, err := loadFile(t, k, importWait, `{defaults: {poison_after: 9, retry: {max_attempts: 5}}, tools: {}}`)
	if err != nil {
		t.Fatal(err)
	}
	got, ok := box.Registry.Get("refund")
	if !ok || got.Retry.MaxAttempts != 5 || got.PoisonAfter != 9 || tool.PoisonAfter != 0 {
		t.Errorf("got %+v", got)
	}
	if _, _, err := loadFile(t, k, importWait, `tools: {refund: {effect: read, command: {argv: [a]}}}`); err == nil || !strings.Contains(err.Error(), "refund") {
		t.Errorf("two tools of one name: %v", err)
	}
}
