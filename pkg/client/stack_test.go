package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/app"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

// installation is a NATS server, an executor and a reconciler in this process, with a few tools in Go.
type installation struct {
	url  string
	stop func()

	mu       sync.Mutex
	payments int
	refuse   bool          // the bank says no
	hold     chan struct{} // closed: wait ends
}

const config = `
defaults:
  owner: billing-oncall
  workflow: refunds
  actor: "service:shop"
  retry: {initial_delay: 20ms, max_delay: 50ms, jitter: 0}
`

// install returns when everything is ready. It needs no test, so that examples can use it.
func install() (*installation, error) {
	dir, err := os.MkdirTemp("", "agentrun-client-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	server, err := app.StartEmbedded("127.0.0.1:0", filepath.Join(dir, "nats"), "")
	if err != nil {
		return nil, err
	}
	i := &installation{url: server.URL(), hold: make(chan struct{})}
	tools, err := i.tools()
	if err != nil {
		return nil, err
	}
	ready := make(chan string, 2)
	seams := app.Seams{Tools: tools, OnReady: func(addr string) { ready <- addr }}
	var executor app.ExecutorConfig
	var reconciler app.ReconcilerConfig
	args := []string{"--nats", i.url, "--config", file, "--http", "127.0.0.1:0", "--lease", "2s"}
	if err := app.Defaults(&executor, append(args, "--id", "e1", "--data", filepath.Join(dir, "journal"))); err != nil {
		return nil, err
	}
	if err := app.Defaults(&reconciler, append(args, "--id", "r1")); err != nil {
		return nil, err
	}
	executor.Seams, reconciler.Seams = seams, seams
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	i.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
		<-ended
		server.Close()
		_ = os.RemoveAll(dir)
	})
	go func() { ended <- app.Executor(ctx, executor) }()
	go func() { ended <- app.Reconciler(ctx, reconciler) }()
	late := time.After(30 * time.Second)
	for range 2 {
		select {
		case <-ready:
		case err := <-ended:
			ended <- nil
			i.stop()
			return nil, fmt.Errorf("a process did not start: %w", err)
		case <-late:
			i.stop()
			return nil, fmt.Errorf("not ready in time")
		}
	}
	return i, nil
}

func (i *installation) tools() (tools []*connector.Tool, err error) {
	for name, tool := range map[string]struct {
		effect envelope.Effect
		fn     connector.GoFunc
	}{
		"find_order": {envelope.Read, func(context.Context, *connector.Call) (json.RawMessage, error) {
			return json.RawMessage(`{"order":"o_1","paid_minor":1999}`), nil
		}},
		"refund": {envelope.Write, i.pay},
		"wait": {envelope.Read, func(ctx context.Context, _ *connector.Call) (json.RawMessage, error) {
			select {
			case <-i.hold:
				return nil, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}},
		"picky": {envelope.Write, func(ctx context.Context, c *connector.Call) (json.RawMessage, error) {
			var args struct{ N int }
			if json.Unmarshal(c.Args, &args) != nil {
				return nil, &connector.Fault{Code: envelope.CodeInvalidArgument, CommitState: envelope.NotCommitted}
			}
			<-i.hold
			return nil, nil
		}},
		"approved": {envelope.Write, i.pay},
		"break": {envelope.Write, func(context.Context, *connector.Call) (json.RawMessage, error) {
			return nil, context.DeadlineExceeded // a write that never answered: unknown
		}},
		"echo": {envelope.Read, func(_ context.Context, c *connector.Call) (json.RawMessage, error) {
			return json.Marshal(map[string]string{"traceparent": c.Traceparent})
		}},
	} {
		t, err := connector.Func(name, tool.effect, tool.fn, connector.WithSpec(func(s *connector.Spec) {
			s.Timeout = 10 * time.Second
			s.InputSchema = map[string]any{"type": "object"}
			s.RequiresApproval = name == "approved"
		}))
		if err != nil {
			return nil, err
		}
		tools = append(tools, t)
	}
	return tools, nil
}

func (i *installation) pay(context.Context, *connector.Call) (json.RawMessage, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.refuse {
		return nil, &connector.Fault{Code: envelope.CodeStateConflict, CommitState: envelope.NotCommitted}
	}
	i.payments++
	return json.RawMessage(fmt.Sprintf(`{"refund":"rf_%d"}`, i.payments)), nil
}

func (i *installation) refuses(no bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refuse = no
}

// connect returns a connection as a service would make one.
func (i *installation) connect() (*nats.Conn, error) {
	return nats.Connect(i.url, nats.Name("shop"), nats.MaxReconnects(-1), nats.CustomInboxPrefix("_INBOX_shop"))
}

func installed(t *testing.T) (*installation, *nats.Conn) {
	t.Helper()
	i, err := install()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.stop)
	nc, err := i.connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return i, nc
}
