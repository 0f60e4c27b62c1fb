package app

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// chatty is an MCP server in shell, with a banner before its first message and a tool find, which it says changes things.
const chatty = `
echo "billing-mcp 1.0 s3cr3t"
while IFS= read -r line; do
  id=${line#*'"id":'}; id=${id%%[,\}]*}
  case $line in
  *'"method":"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}' ;;
  *'"method":"tools/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"find","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":false}}]}}' ;;
  *'"method":"notifications/'*) ;;
  *) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"no"}}' ;;
  esac
done
`

// servers writes a config with one server of each kind of trouble, and one that works.
func servers(t *testing.T) string {
	t.Helper()
	script := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	refused := fmt.Sprintf("http://127.0.0.1:%d", bustest.Port(t))
	missing := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(missing.Close)
	return configFile(t, fmt.Sprintf(`
defaults: {owner: o, workflow: w, actor: a}
mcp_servers:
  absent: {command: [no-such-server-here]}
  chatty: {command: [sh, %q], import: ["find*", "gone*"]}
  dies: {command: [sh, %q]}
  missing: {url: %q}
  refused: {url: %q, import: ["*"]}
  works: {url: %q}
tools:
  drop: {effect: write, mcp: {server: works, tool: drop}, verify: {mcp: {server: works, tool: find_drop}, committed: "true"}}
  find: {effect: read, mcp: {server: chatty, tool: find}}
`, script("chatty", chatty), script("dies", `printf 'starting\n\033[2Jno license \302\233\342\200\256\n' >&2; exit 7`), missing.URL, refused,
		billing(t, map[string]*mcp.ToolAnnotations{"drop": nil})))
}

// check --mcp names the cause of what is wrong with each server, with the last words of one that has ended, made harmless; text
// among the messages is a warning.
func TestCheckMCPNamesTheCause(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := Check(t.Context(), &out, Checking{Config: servers(t), MCP: true}, noVariables)
	if err == nil {
		t.Error("all is well")
	}
	for _, part := range []string{
		"MCP server absent\n  mcp_servers.absent does not say which tools it has: there is no program no-such-server-here in PATH; start it",
		"find    changes things   input    find, a read: every call will be refused", "  warning: 1 line of its standard output is no JSON-RPC and was skipped",
		"dies does not say which tools it has: its program ended with exit code 7 before it answered initialize",
		"  the last lines of its standard error:\n    | starting\n    | \\x1b[2Jno license \\u009b\\u202e\n",
		"missing does not say which tools it has: it answers with status 404 Not Found",
		"refused does not say which tools it has: the connection is refused: nobody listens there",
		"wrong: it has no tool find_drop, which the lookup of drop calls (", "config.yaml:11:95)",
	} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("it lacks %q", part)
		}
	}
	if strings.ContainsAny(out.String(), "\x1b\u009b\u202e") || strings.Contains(out.String(), "s3cr3t") || t.Failed() {
		t.Errorf("%v\n%s", err, &out)
	}
}

// The doctor asks each server, and what the config names of it.
func TestDoctorAsksMCPServers(t *testing.T) {
	t.Parallel()
	d := &doctor{}
	d.Config = servers(t)
	d.tools(t.Context())
	want := map[string]struct {
		health Health
		found  string
	}{
		"mcp absent":  {Ill, "there is no program no-such-server-here in PATH"},
		"mcp chatty":  {Ill, "every call of find will be refused: it is a read here, and the server says that find is none"},
		"mcp dies":    {Ill, `its program ended with exit code 7 before it answered initialize; its standard error ends with: \x1b[2Jno license \u009b\u202e`},
		"mcp missing": {Ill, "it answers with status 404 Not Found"},
		"mcp refused": {Ill, "the connection is refused: nobody listens there"},
		"mcp works":   {Ill, "it has no tool find_drop, which the lookup of drop calls"},
	}
	for _, f := range d.findings {
		if w, ok := want[f.Check]; ok {
			if f.Health != w.health || f.Found != w.found || f.Fix == "" {
				t.Errorf("%+v", f)
			}
			delete(want, f.Check)
		}
	}
	if len(want) > 0 {
		t.Errorf("not looked at: %v, of %+v", want, d.findings)
	}
	d = &doctor{}
	path := filepath.Join(t.TempDir(), "chatty")
	if err := os.WriteFile(path, []byte(chatty), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Config = configFile(t, fmt.Sprintf("mcp_servers:\n  chatty: {command: [sh, %q]}\n  works: {url: %q, import: [drop]}\ntools: {}\n",
		path, billing(t, map[string]*mcp.ToolAnnotations{"drop": nil})))
	d.tools(t.Context())
	for check, health := range map[string]Health{"mcp chatty": Doubtful, "mcp works": Well} {
		found := false
		for _, f := range d.findings {
			found = found || f.Check == check && f.Health == health && strings.HasPrefix(f.Found, "1 tool")
		}
		if !found {
			t.Errorf("%s is not %s: %+v", check, health, d.findings)
		}
	}
}
