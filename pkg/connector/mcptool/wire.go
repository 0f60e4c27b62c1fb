package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var errHeldBack = errors.New("held back before the first byte")

// nothingMore is the result that the SDK sees of a call whose real one has been taken: it would read numbers as floats.
var nothingMore = json.RawMessage(`{"content":[]}`)

// wire is the SDK's connection to a server, with the requests that we follow picked out.
type wire struct {
	mcp.Connection
	serial bool   // one message at a time, and the pipe is the place where it leaves (stdio)
	probe  *probe // nil: the session does not begin with server/discover

	writing chan struct{} // holds one token while serial
	refusal atomic.Int64  // the code of the last error that the server answered with, but to the probe

	mu       sync.Mutex
	waiting  map[jsonrpc.ID]*dispatch
	injected chan jsonrpc.Message
	incoming chan incoming
	gone     chan struct{} // closed by sever
	sever    func()
}

type incoming struct {
	message jsonrpc.Message
	err     error
}

// transport makes the wire of a session; open connects.
type transport struct {
	open   func(ctx context.Context) (mcp.Connection, error)
	serial bool
	probe  *probe

	mu   sync.Mutex
	wire *wire // once connected
}

func (t *transport) connected() *wire {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wire
}

// Connect implements mcp.Transport.
func (t *transport) Connect(ctx context.Context) (mcp.Connection, error) {
	c, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	w := &wire{
		Connection: c, serial: t.serial, probe: t.probe, writing: make(chan struct{}, 1), waiting: make(map[jsonrpc.ID]*dispatch),
		injected: make(chan jsonrpc.Message, 1), incoming: make(chan incoming), gone: make(chan struct{}),
	}
	w.sever = sync.OnceFunc(func() { close(w.gone) })
	go w.pump(context.WithoutCancel(ctx))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wire = w
	return w, nil
}

func (w *wire) pump(ctx context.Context) {
	for {
		m, err := w.Connection.Read(ctx)
		select {
		case w.incoming <- incoming{m, err}:
		case <-w.gone:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read implements mcp.Connection. After sever it ends, and with it every call that waits.
func (w *wire) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case <-w.gone:
		return nil, io.EOF
	default:
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.gone:
		return nil, io.EOF
	case m := <-w.injected:
		return m, nil
	case in := <-w.incoming:
		if r, ok := in.message.(*jsonrpc.Response); ok && in.err == nil {
			if fault, ok := errors.AsType[*jsonrpc.Error](r.Error); (w.probe == nil || !w.probe.answered(r)) && ok {
				w.refusal.Store(fault.Code)
			}
			return w.received(r), nil
		}
		return in.message, in.err
	}
}

// received takes the answer to a request that we follow, and returns what the SDK sees of it.
func (w *wire) received(r *jsonrpc.Response) *jsonrpc.Response {
	w.mu.Lock()
	d := w.waiting[r.ID]
	delete(w.waiting, r.ID)
	w.mu.Unlock()
	if d == nil {
		return r
	}
	d.answer(r)
	if d.method == methodCall && r.Error == nil {
		return &jsonrpc.Response{ID: r.ID, Result: nothingMore}
	}
	return r
}

// Write implements mcp.Connection.
func (w *wire) Write(ctx context.Context, m jsonrpc.Message) error {
	if r, ok := m.(*jsonrpc.Request); ok && r.Method == methodDiscover && w.probe != nil {
		return w.ask(ctx, r)
	}
	d := dispatchOf(ctx)
	if r, ok := m.(*jsonrpc.Request); d != nil && (!ok || !r.IsCall() || r.Method != d.method) {
		// A message about the request, its cancellation for one: not the request itself.
		d, ctx = nil, withDispatch(ctx, nil)
	}
	if r, ok := m.(*jsonrpc.Request); !ok || !r.IsCall() && r.Method != methodInitialized {
		ctx = context.WithValue(ctx, noteKey{}, true)
	}
	if d != nil {
		id := m.(*jsonrpc.Request).ID
		w.mu.Lock()
		w.waiting[id] = d
		w.mu.Unlock()
		defer w.forgetLater(d, id)
		b, err := json.Marshal(id.Raw())
		if err != nil {
			return err
		}
		ctx = context.WithValue(ctx, idKey{}, json.RawMessage(b))
	}
	return w.write(ctx, m, d)
}

// write hands a message to the connection. d is nil unless it is a request that we follow.
func (w *wire) write(ctx context.Context, m jsonrpc.Message, d *dispatch) error {
	if !w.serial {
		return w.Connection.Write(ctx, m)
	}
	return w.writeSerially(ctx, m, d)
}

// forgetLater forgets a request when it is settled, however that came about.
func (w *wire) forgetLater(d *dispatch, id jsonrpc.ID) {
	go func() {
		<-d.end
		w.mu.Lock()
		delete(w.waiting, id)
		w.mu.Unlock()
	}()
}

// writeSerially waits for its turn before it asks whether to leave, so that the answer is fresh however long the pipe was
// full.
func (w *wire) writeSerially(ctx context.Context, m jsonrpc.Message, d *dispatch) error {
	select {
	case w.writing <- struct{}{}:
		defer func() { <-w.writing }()
	case <-ctx.Done():
		return ctx.Err()
	case <-w.gone:
		return io.ErrClosedPipe
	}
	if d != nil && !d.leave() {
		// An error would end the session for everyone. The SDK gets an answer instead.
		select {
		case w.injected <- &jsonrpc.Response{ID: m.(*jsonrpc.Request).ID, Error: errHeldBack}:
		case <-w.gone:
		}
		return nil
	}
	return w.Connection.Write(ctx, m)
}
