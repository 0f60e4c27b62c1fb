package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/client"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

// served is what one caller is shown, as long as the tools stay the same.
type served struct {
	of     *connector.Registry
	server *mcp.Server
}

const (
	serversMax = 1024
	bodyMax    = 1 << 20 // of one request: args are at most 256 KiB
	sayEvery   = 5 * time.Second
)

// server is what a caller is shown: only the tools that it may use.
func (g *Gateway) server(who *Caller) *mcp.Server {
	tools := g.Tools()
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.servers[who]; s.of == tools {
		return s.server
	}
	if len(g.servers) >= serversMax {
		clear(g.servers) // tokens that were renewed leave theirs behind
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "agentrun", Title: "agentrun gateway", Version: "1"}, &mcp.ServerOptions{
		Instructions: instructions, Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	for _, t := range Catalogue(tools, who) {
		tool, _ := tools.Get(t.Name)
		g.add(s, t, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return g.call(ctx, who, tool, r)
		})
	}
	g.add(s, statusTool, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return g.status(ctx, who, r)
	})
	g.servers[who] = served{tools, s}
	return s
}

const instructions = "Every call here is done at most once. Give a call that changes something a key in _meta (agentrun/idempotency_key) and make it " +
	"again with the same key when its answer is lost. An answer that says that the outcome is not known yet is no failure: do not send the call " +
	"again, ask agentrun_status."

// add takes a tool up, unless the protocol's library cannot show it.
func (g *Gateway) add(s *mcp.Server, t *mcp.Tool, h mcp.ToolHandler) {
	defer func() {
		if p := recover(); p != nil {
			g.Log.Warn("a tool is not shown: its schema is none that MCP takes", "tool", t.Name)
		}
	}()
	s.AddTool(t, h)
}

// Catalogue lists the tools that a caller may use, as MCP shows them. A read is shown as one only where the config says that
// it is; nothing that a server behind says makes a tool look safer than that.
func Catalogue(tools *connector.Registry, who *Caller) (out []*mcp.Tool) {
	for _, name := range tools.Names() {
		t, _ := tools.Get(name)
		if name == toolStatus || !who.May(name) || t.Allowed != nil && !t.Allowed(who.Tenant, who.Actor) {
			continue
		}
		input := advertised(t.Listing.InputSchema)
		if t.Listing.InputSchema == nil {
			input = map[string]any{"type": "object"}
		}
		if input == nil {
			continue // args are an object, always
		}
		l, read := &t.Listing, t.Effect == envelope.Read
		destructive := !read && (l.Destructive == nil || *l.Destructive)
		shown := &mcp.Tool{
			Name: name, Title: l.Title, Description: l.Description, InputSchema: input,
			Annotations: &mcp.ToolAnnotations{
				Title: l.Title, ReadOnlyHint: read, DestructiveHint: &destructive, OpenWorldHint: l.OpenWorld,
				IdempotentHint: read || l.Idempotent != nil && *l.Idempotent,
			},
		}
		if output := advertised(l.OutputSchema); output != nil {
			shown.OutputSchema = output
		}
		if t.RequiresApproval {
			shown.Description = strings.TrimSpace(shown.Description + "\nA person must approve each call before it is done.")
		}
		out = append(out, shown)
	}
	return out
}

// advertised is a schema as MCP takes it: of an object, said in so many words. nil is one that is not, and none.
func advertised(schema any) any {
	m, is := schema.(map[string]any)
	switch {
	case !is:
		return nil
	case m["type"] == "object":
		return m
	case m["type"] == nil && m["properties"] != nil:
		m = maps.Clone(m)
		m["type"] = "object"
		return m
	}
	return nil
}

var statusTool = &mcp.Tool{
	Name: toolStatus, Title: "What became of a call",
	Description: "Tells what became of an earlier call whose outcome was not known yet, or which waits for a person. Changes nothing.",
	InputSchema: json.RawMessage(`{"type":"object","properties":{"operation":{"type":"string","description":"as the answer named it"},` +
		`"wait_seconds":{"type":"number","minimum":0,"maximum":300,"description":"how long to wait for the end"}},"required":["operation"],"additionalProperties":false}`),
	Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: new(bool), OpenWorldHint: new(bool)},
}

func (g *Gateway) status(ctx context.Context, who *Caller, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var args struct {
		Operation string  `json:"operation"`
		Wait      float64 `json:"wait_seconds"`
	}
	bad := strictjson.CheckJSON(r.Params.Arguments, strictjson.Bounds{MaxBytes: 4 << 10, MaxDepth: 4})
	if bad != nil || json.Unmarshal(r.Params.Arguments, &args) != nil || args.Wait < 0 || args.Wait > 300 {
		return result(Refuse(&Problem{Text: "agentrun_status takes operation, a text, and wait_seconds, 0 to 300"})), nil
	}
	return result(g.Status(ctx, who, args.Operation, time.Duration(args.Wait*float64(time.Second)))), nil
}

func (g *Gateway) call(ctx context.Context, who *Caller, tool *connector.Tool, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	began := time.Now()
	c, bad := ReadCall(who, tool.Name, r.Params.Arguments, r.Params.Meta)
	var a *Answer
	if bad != nil {
		a = Refuse(bad)
	} else {
		told, done := g.progress(ctx, r)
		a = g.Call(ctx, tool, c, told)
		done()
	}
	g.Log.Info("call", "tool", tool.Name, "tenant", who.Tenant, "actor", who.Actor, "caller", who.Name, "operation", a.Place.Ref(),
		"answer", a.State, "ms", time.Since(began).Milliseconds())
	return result(a), nil
}

// progress tells a caller who asked for it that his call is worked on: with each outcome, and every few seconds. done ends
// that, and returns when nothing is said any more.
func (g *Gateway) progress(ctx context.Context, r *mcp.CallToolRequest) (told func(*client.Outcome), done func()) {
	token := r.Params.GetProgressToken()
	if token == nil {
		return nil, func() {}
	}
	var mu sync.Mutex
	n := 0.0
	say := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		n++
		// Who has gone away is told nothing.
		_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: n, Message: text})
	}
	ctx, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	ended.Go(func() {
		say("taken up")
		for tick := time.NewTicker(sayEvery); ; {
			select {
			case <-tick.C:
				say("working")
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	})
	return func(o *client.Outcome) {
			if !o.Terminal {
				say(fmt.Sprintf("%s: %s", o.Outcome.Outcome, o.ReasonCode))
			}
		}, func() {
			cancel()
			ended.Wait()
		}
}

// result is an answer as MCP has it. _meta names the operation, for agentrun_status and for people.
func result(a *Answer) *mcp.CallToolResult {
	text := a.Text
	if a.IsError {
		text += "\n" + a.structuredText() // clients that hand on text only
	}
	out := &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, IsError: a.IsError, StructuredContent: a.Structured}
	if a.Place != (Place{}) {
		out.Meta = mcp.Meta{"agentrun/operation": a.Place.Ref(), "agentrun/outcome": a.State}
	}
	return out
}

type callerKey struct{}

// Handler serves MCP by streamable HTTP, without sessions: each request can go to any gateway. find knows a caller by the
// bearer token, "" if there is none; nil refuses. origins are pages of other hosts that may call.
func (g *Gateway) Handler(find func(token string) *Caller, origins ...string) (http.Handler, error) {
	crossOrigin := http.NewCrossOriginProtection()
	for _, o := range origins {
		if err := crossOrigin.AddTrustedOrigin(o); err != nil {
			return nil, err
		}
	}
	streamable := mcp.NewStreamableHTTPHandler(func(r *http.Request) *mcp.Server {
		return g.server(r.Context().Value(callerKey{}).(*Caller))
	}, &mcp.StreamableHTTPOptions{Stateless: true, MaxRequestBodyBytes: bodyMax, PropagateRequestCancellation: true})
	return crossOrigin.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "bearer") {
			token = ""
		}
		who := find(strings.TrimSpace(token))
		if who == nil {
			w.Header().Set("WWW-Authenticate", `Bearer realm="agentrun"`)
			http.Error(w, "a bearer token that this gateway knows is needed", http.StatusUnauthorized)
			return
		}
		streamable.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, who)))
	})), nil
}

// Stdio serves one caller until in ends or ctx does.
func (g *Gateway) Stdio(ctx context.Context, who *Caller, in io.ReadCloser, out io.WriteCloser) error {
	return g.server(who).Run(ctx, &mcp.IOTransport{Reader: in, Writer: out, MaxLineLength: bodyMax})
}
