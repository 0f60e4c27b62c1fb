package mcptool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentrun/executor/internal/child"
	"github.com/agentrun/executor/pkg/connector"
)

// exitPatience is how long a server has to end by itself after its input has ended.
const exitPatience = time.Second

// messageMax bounds one message of a server, in bytes: the largest that a call or a lookup can ask for. A line that is none
// is bounded by strayMax.
const (
	messageMax = 4*(connector.ResultBytesMax+1<<20) + 1<<20
	strayMax   = 1 << 20
)

// openStdio starts a server and talks to it over its standard input and output.
func (s *server) openStdio(context.Context) (mcp.Connection, error) {
	var words *tail
	what := program(s.spec)
	if s.listens {
		var err error
		if words, what.Stderr, err = newTail(); err != nil {
			return nil, err
		}
		defer what.Stderr.Close()
	}
	c, err := child.Start(what, nil)
	if err != nil {
		return nil, err
	}
	return &process{server: s, child: c, words: words, out: bufio.NewReaderSize(c.Stdout, 64<<10)}, nil
}

// program is the server that a spec describes.
func program(spec connector.MCPServerSpec) child.Program {
	return child.Program{Argv: spec.Command, Env: []map[string]string{spec.Env}, Setting: child.Setting(spec.ProcessSpec)}
}

// process is a connection that ends with its server: a message is a line.
type process struct {
	server *server
	child  *child.Child
	words  *tail // nil: nobody listens to its standard error
	end    sync.Once

	out    *bufio.Reader
	queue  []jsonrpc.Message // of a batch that has been read
	strays atomic.Int64      // lines that were no JSON-RPC
	spoke  atomic.Bool       // a line was JSON-RPC
	ownEnd atomic.Bool       // it was seen to end before it was told to
}

// SessionID implements mcp.Connection.
func (*process) SessionID() string { return "" }

// Read implements mcp.Connection. Servers, and what they call, print banners and logs to where only messages belong: a line
// that is no JSON-RPC is skipped and counted. It ends with the server's output, whatever ctx says.
func (p *process) Read(context.Context) (jsonrpc.Message, error) {
	for len(p.queue) == 0 {
		line, err := readLine(p.out)
		if err != nil {
			return nil, err
		}
		if p.queue = decodeLine(line); len(p.queue) > 0 {
			p.spoke.Store(true)
		} else if len(bytes.TrimSpace(line)) > 0 {
			first := p.strays.Add(1) == 1
			p.server.mu.Lock()
			p.server.strays++
			p.server.mu.Unlock()
			p.server.desk.stray(p.server.name, first)
		}
	}
	m := p.queue[0]
	p.queue = p.queue[1:]
	return m, nil
}

// Write implements mcp.Connection. A server that does not read holds up a write no longer than ctx. A message that was cut
// off has broken the stream: then the server is ended. The wire writes one message at a time.
func (p *process) Write(ctx context.Context, m jsonrpc.Message) error {
	line, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		_ = p.child.Stdin.SetWriteDeadline(time.Unix(1, 0))
	})
	written := 0
	if err = ctx.Err(); err == nil {
		written, err = p.child.Stdin.Write(append(line, '\n'))
	}
	if !stop() {
		<-cut
		_ = p.child.Stdin.SetWriteDeadline(time.Time{})
	}
	if err == nil {
		return nil
	}
	if written > 0 || ctx.Err() == nil {
		p.child.Kill()
	}
	if d := dispatchOf(ctx); d != nil && written == 0 {
		d.stayed()
	}
	return err
}

// Close implements mcp.Connection: it ends the server's input, and if that does not end the server, kills it.
func (p *process) Close() error {
	p.end.Do(func() {
		_ = p.child.Stdin.Close()
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
	return nil
}

// lastWords are the last lines of its standard error so far, all of them if it has ended.
func (p *process) lastWords() []string {
	if p.words == nil {
		return nil
	}
	select {
	case <-p.child.Exited():
		p.words.finish()
	default:
	}
	return p.words.lines()
}

var errLineTooLong = errors.New("a line is longer than any message may be")

// readLine reads a line of at most messageMax bytes; one that does not begin as a message does has no more than strayMax. The
// slice is good until the next read.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return lastLine(line, err)
	}
	limit := strayMax
	if mayBeMessage(line) {
		limit = messageMax
	}
	long := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(long) > limit {
			return nil, errLineTooLong
		}
		line, err = in.ReadSlice('\n')
		long = append(long, line...)
	}
	return lastLine(long, err)
}

// lastLine takes what comes before the end for a line.
func lastLine(line []byte, err error) ([]byte, error) {
	if len(line) > 0 && errors.Is(err, io.EOF) {
		return line, nil
	}
	return line, err
}

var byteOrderMark = []byte("\xef\xbb\xbf")

func mayBeMessage(line []byte) bool {
	line = bytes.TrimLeft(bytes.TrimPrefix(line, byteOrderMark), " \t\r\n")
	return len(line) > 0 && (line[0] == '{' || line[0] == '[')
}

// decodeLine is the message in a line, those of a batch, or none if it is anything else.
func decodeLine(line []byte) []jsonrpc.Message {
	if !mayBeMessage(line) {
		return nil
	}
	line = bytes.Clone(bytes.TrimSpace(bytes.TrimPrefix(line, byteOrderMark))) // the message keeps parts of it
	raw := []json.RawMessage{line}
	if line[0] == '[' && json.Unmarshal(line, &raw) != nil {
		return nil
	}
	var out []jsonrpc.Message
	for _, one := range raw {
		m, err := jsonrpc.DecodeMessage(one)
		if err != nil {
			return nil
		}
		out = append(out, m)
	}
	return out
}
