package mcptool_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// A server as the SDK makes it, over every transport that it has.

const sdkVariable = "MCPTOOL_SDK"

type creditArgs struct {
	Invoice string `json:"invoice_id"`
	Amount  int64  `json:"amount_minor"`
	Do      string `json:"do,omitempty"`
}

type creditResult struct {
	Credit string `json:"credit_id"`
	Ref    string `json:"ref"`
	Key    string `json:"key"`
	Amount int64  `json:"amount_minor"`
}

// sdkServer counts the calls of its tools in calls.
func sdkServer(calls *atomic.Int64) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "billing", Version: "1"}, nil)
	no := false
	mcp.AddTool(s, &mcp.Tool{
		Name: "credit", Annotations: &mcp.ToolAnnotations{DestructiveHint: &no},
	}, func(ctx context.Context, r *mcp.CallToolRequest, a creditArgs) (*mcp.CallToolResult, creditResult, error) {
		calls.Add(1)
		switch a.Do {
		case "fail":
			return nil, creditResult{}, errors.New("no money")
		case "hang":
			<-ctx.Done()
			return nil, creditResult{}, ctx.Err()
		case "progress":
			for i := range 20 {
				_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: "p", Progress: float64(i)})
			}
		}
		ref, _ := r.Params.Meta["agentrun/operation_ref"].(string)
		key, _ := r.Params.Meta["agentrun/idempotency_key"].(string)
		return nil, creditResult{Credit: "cr_3", Ref: ref, Key: key, Amount: a.Amount}, nil
	})
	return s
}

func sdkStdio() int {
	if err := sdkServer(new(atomic.Int64)).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		return 1
	}
	return 0
}

// sdkKinds are the kinds for one server over each transport, by name, and the calls that it has seen (nil: in a process
// of its own).
func sdkKinds(t *testing.T) map[string]func() (*mcptool.Kind, *atomic.Int64) {
	t.Helper()
	kindFor := func(spec connector.MCPServerSpec, calls *atomic.Int64) (*mcptool.Kind, *atomic.Int64) {
		kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": spec})
		t.Cleanup(kind.Close)
		return kind, calls
	}
	out := map[string]func() (*mcptool.Kind, *atomic.Int64){
		"stdio": func() (*mcptool.Kind, *atomic.Int64) {
			return kindFor(connector.MCPServerSpec{Command: []string{os.Args[0]}, Env: map[string]string{sdkVariable: "1", "GORACE": quickExit}}, nil)
		},
	}
	for name, options := range map[string]*mcp.StreamableHTTPOptions{
		"http": {}, "http, stateless": {Stateless: true}, "http, JSON": {JSONResponse: true},
		"http, stateless JSON": {Stateless: true, JSONResponse: true}, "http, resumable": {EventStore: mcp.NewMemoryEventStore(nil)},
	} {
		out[name] = func() (*mcptool.Kind, *atomic.Int64) {
			calls := new(atomic.Int64)
			server := sdkServer(calls)
			handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options)
			return kindFor(connector.MCPServerSpec{URL: newServer(t, handler)}, calls)
		}
	}
	return out
}

func TestSDKServer(t *testing.T) {
	t.Parallel()
	for name, start := range sdkKinds(t) {
		t.Run(name, func(t *testing.T) {
			kind, calls := start()
			p := &peer{kind: kind}
			sent := 0
			do := func(args string, edit func(*connector.Spec)) envelope.Reply {
				sent++
				return compile(t, p, envelope.Write, edit).Caller.Call(t.Context(), call(args))
			}
			want := `{"amount_minor":500,"credit_id":"cr_3","key":"acme/r/s.p2","ref":"acme/r/s"}`
			for _, how := range []string{"", "progress"} {
				got := do(fmt.Sprintf(`{"invoice_id":"i","amount_minor":500,"do":%q}`, how), nil)
				if !got.OK || string(got.Result) != want {
					t.Errorf("%s: %+v %s", how, got.Row, got.Result)
				}
			}
			got := do(`{"invoice_id":"i","amount_minor":1,"do":"fail"}`, func(s *connector.Spec) {
				s.Errors = []connector.Rule{{When: "is_error && body == 'no money'", Code: "NO_MONEY", Category: envelope.Conflict}}
			})
			if got.Row.Code != "NO_MONEY" {
				t.Errorf("its own error: %+v", got)
			}
			got = do(`{"invoice_id":"i","amount_minor":1,"do":"hang"}`, func(s *connector.Spec) { s.Timeout = 200 * time.Millisecond })
			if !got.NoReply || got.Row.Code != envelope.CodeOutcomeUnknown {
				t.Errorf("hanging: %+v", got)
			}
			if calls != nil && calls.Load() != int64(sent) {
				t.Errorf("%d calls were %d", sent, calls.Load())
			}
			got = do(`{"amount_minor":"none"}`, nil)
			if got.OK || got.NotSent {
				t.Errorf("args that do not fit: %+v", got)
			}
			if calls != nil && calls.Load() != int64(sent)-1 {
				t.Errorf("%d calls were %d", sent-1, calls.Load())
			}
			offers, err := kind.List(t.Context(), "billing")
			if err != nil || len(offers) != 1 || offers[0].OutputSchema == nil || !offers[0].Changes() && offers[0].Destructive == nil {
				t.Errorf("%v: %+v", err, offers)
			}
		})
	}
}

// The same server at the same address, without its sessions: each call is on the wire once, and the one after the loss
// begins a session.
func TestSDKServerRestarted(t *testing.T) {
	t.Parallel()
	calls := new(atomic.Int64)
	server := sdkServer(calls)
	handler := func() http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	}
	var current atomic.Value
	current.Store(&holder{handler()})
	url := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { current.Load().(*holder).ServeHTTP(w, r) }))
	kind := mcptool.New(map[string]connector.MCPServerSpec{"billing": {URL: url}})
	t.Cleanup(kind.Close)
	tool := compile(t, &peer{kind: kind}, envelope.Write, nil)
	ok := 0
	for i := range 6 {
		if i%2 == 1 {
			current.Store(&holder{handler()})
		}
		got := tool.Caller.Call(t.Context(), call(`{"invoice_id":"i","amount_minor":1}`))
		switch {
		case got.OK:
			ok++
		case got.Row.CommitState != envelope.NotCommitted || got.Row.Code != envelope.CodeUpstreamUnavailable:
			t.Errorf("call %d: %+v", i, got)
		}
	}
	if ok < 3 || calls.Load() != int64(ok) {
		t.Errorf("%d calls were ok, %d arrived", ok, calls.Load())
	}
}

type holder struct{ http.Handler }
