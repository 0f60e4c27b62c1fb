package mcptool

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentrun/executor/internal/child"
	"github.com/agentrun/executor/pkg/connector"
)

// exitPatience is how long a server has to end by itself after its input has ended.
const exitPatience = time.Second

// messageMax bounds one message of a server, in bytes: the largest that a call or a lookup can ask for.
const messageMax = 4*(connector.ResultBytesMax+1<<20) + 1<<20

// openStdio starts a server and talks to it over its standard input and output.
func openStdio(spec connector.MCPServerSpec) func(context.Context) (mcp.Connection, error) {
	return func(ctx context.Context) (mcp.Connection, error) {
		c, err := child.Start(program(spec), nil)
		if err != nil {
			return nil, err
		}
		in := &pipe{child: c}
		t := mcp.IOTransport{Reader: io.NopCloser(c.Stdout), Writer: in, MaxLineLength: messageMax}
		conn, err := t.Connect(ctx)
		if err != nil {
			c.Kill()
			c.Close()
			return nil, err
		}
		return &process{Connection: conn, child: c, in: in}, nil
	}
}

// program is the server that a spec describes.
func program(spec connector.MCPServerSpec) child.Program {
	return child.Program{Argv: spec.Command, Env: []map[string]string{spec.Env}, Setting: child.Setting(spec.ProcessSpec)}
}

// pipe is a server's standard input. The wire writes one message at a time, so written is the last message's.
type pipe struct {
	child   *child.Child
	written int
}

func (p *pipe) Write(b []byte) (n int, err error) {
	p.written, err = p.child.Stdin.Write(b)
	return p.written, err
}

func (p *pipe) Close() error { return p.child.Stdin.Close() }

// process is a connection that ends with its server.
type process struct {
	mcp.Connection
	child *child.Child
	in    *pipe
	end   sync.Once
}

// Write implements mcp.Connection. A server that does not read holds up a write no longer than ctx. A message that was cut
// off has broken the stream: then the server is ended.
func (p *process) Write(ctx context.Context, m jsonrpc.Message) error {
	p.in.written = 0
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		_ = p.child.Stdin.SetWriteDeadline(time.Unix(1, 0))
	})
	err := p.Connection.Write(ctx, m)
	if !stop() {
		<-cut
		_ = p.child.Stdin.SetWriteDeadline(time.Time{})
	}
	if err == nil {
		return nil
	}
	if p.in.written > 0 || ctx.Err() == nil {
		p.child.Kill()
	}
	if d := dispatchOf(ctx); d != nil && p.in.written == 0 {
		d.stayed()
	}
	return err
}

// Close implements mcp.Connection: it ends the server's input, and if that does not end the server, kills it.
func (p *process) Close() error {
	err := p.Connection.Close()
	p.end.Do(func() {
		go func() {
			patience := time.NewTimer(exitPatience)
			defer patience.Stop()
			select {
			case <-p.child.Exited():
			case <-patience.C:
				p.child.Kill()
				<-p.child.Exited()
			}
			p.child.Close()
		}()
	})
	return err
}
