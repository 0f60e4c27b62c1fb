package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/internal/bus/bustest"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

type creditArgs struct {
	Of string `json:"of"`
}

type credit struct {
	ID  string `json:"id"`
	Ref any    `json:"ref"`
}

// A run with a step of every kind, each taking its arg from the step before and telling its operation; a tool that is
// taken over from an MCP server among them. Field case 3, as far as one executor goes: what the histories count is what
// the tools have seen.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	var calls [5]atomic.Int64 // of http, nats, mcp, command (which nobody counts) and go

	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls[0].Add(1)
		fmt.Fprintf(w, `{"id":"http","ref":%q}`, r.Header.Get("Agentrun-Operation-Ref"))
	}))
	defer web.Close()

	nc, err := nats.Connect(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Subscribe("billing.credit", func(m *nats.Msg) {
		calls[1].Add(1)
		_ = m.Respond(fmt.Appendf(nil, `{"id":"nats","ref":%q,"got":%s}`, m.Header.Get("Agentrun-Operation-Ref"), m.Data))
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}

	server := mcp.NewServer(&mcp.Implementation{Name: "billing", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "mcp_credit"}, func(_ context.Context, r *mcp.CallToolRequest, _ creditArgs) (*mcp.CallToolResult, credit, error) {
		calls[2].Add(1)
		return nil, credit{ID: "mcp", Ref: r.Params.Meta["agentrun/operation_ref"]}, nil
	})
	mcpWeb := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	defer mcpWeb.Close()

	own, err := connector.Func("go_credit", envelope.Write, func(_ context.Context, c *connector.Call) (json.RawMessage, error) {
		calls[4].Add(1)
		return fmt.Appendf(nil, `{"id":"go","ref":%q}`, c.OperationRef), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	config := write(t, "c.yaml", fmt.Sprintf(`
defaults: {owner: o, workflow: w, actor: a}
mcp_servers: {billing: {url: %q, import: [mcp_credit]}}
tools:
  http_credit: {effect: write, http: {url: %q}}
  nats_credit: {effect: write, nats: {subject: billing.credit}}
  command_credit:
    effect: write
    command: {argv: [/bin/sh, -c, 'cat >/dev/null; printf "{\"id\":\"command\",\"ref\":\"%%s\"}" "$AGENTRUN_OPERATION_REF"']}
`, mcpWeb.URL, web.URL))
	p := serveWith(t, []*connector.Tool{own}, "--nats", s.URL, "--config", config, "--data", t.TempDir())
	var steps, want []string
	before := ""
	for _, kind := range []string{"http", "nats", "mcp", "command", "go"} {
		args := `{"of":"nothing"}`
		if before != "" {
			args = fmt.Sprintf(`{"of":{"$from":"%s#/id"}}`, before)
		}
		steps = append(steps, fmt.Sprintf(`{"step":%q,"tool":"%s_credit","args":%s}`, kind, kind, args))
		want = append(want, kind+":ok")
		before = kind
	}
	job := `{"schema":"agentrun.job/v1","tenant":"acme","run_id":"r1","steps":[` + strings.Join(steps, ",") + `]}`
	code, out, errs := command(t, nil, job, "submit", "--nats", s.URL, "--wait", "--timeout", "20s")
	if code != 0 || lines(t, out) != strings.Join(want, " ")+" RUN:ok" {
		t.Fatalf("exit code %d, %q, %q", code, out, errs)
	}
	for _, kind := range []string{"http", "nats", "mcp", "command", "go"} {
		if !strings.Contains(out, fmt.Sprintf(`"ref":"acme/r1/%s"`, kind)) {
			t.Errorf("%s did not learn its operation: %s", kind, out)
		}
	}
	if !strings.Contains(out, `"got":{"of":"http"}`) {
		t.Errorf("nats did not get its arg: %s", out)
	}
	for i, n := range []int64{1, 1, 1, 0, 1} {
		if calls[i].Load() != n {
			t.Errorf("kind %d was called %d times", i, calls[i].Load())
		}
	}
	if code := p.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.log)
	}
}

// executor check of a program with tools of its own names them, and a name that the config has too is an error.
func TestCheckOwnTools(t *testing.T) {
	t.Parallel()
	own, err := connector.Func("refund", envelope.Write, func(context.Context, *connector.Call) (json.RawMessage, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{
		"tools: {}\n": 0,
		"tools: {refund: {effect: read, command: {argv: [a]}}}\n": 1,
	} {
		var out, errs strings.Builder
		env := app.Env{Lookup: func(string) (string, bool) { return "", false }, Stdout: &out, Stderr: &errs}
		code := Run(t.Context(), []string{"check", "--config", write(t, "c.yaml", text)}, env, own)
		if code != want || !strings.Contains(out.String()+errs.String(), "refund") {
			t.Errorf("%s: exit code %d, %q %q", text, code, &out, &errs)
		}
	}
}
