package mcptool

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/agentrun/executor/pkg/connector"
)

// dispatch follows one request through the SDK. It is in the context of the request's write, and of no other message's.
type dispatch struct {
	method string
	ask    func() bool // the caller's last check
	max    int         // bytes of a whole message in answer to it

	mu      sync.Mutex
	over    bool // nothing may leave any more
	refused bool // ask has said no
	left    bool // something may have left
	settled bool
	end     chan struct{} // closed once settled

	// How it ended, readable once end is closed.
	failure connector.Failure
	unheld  error               // why there was no token to send it with
	status  int                 // of an HTTP response that is no success
	header  map[string][]string // its header, names in lower case
	session bool                // the request named a session
	token   uint64              // that it carried, by its ID
	result  json.RawMessage     // as it arrived
	fault   *jsonrpc.Error
	words   string // what a refusal without one says
}

func newDispatch(method string, limit int, ask func() bool) *dispatch {
	// A message may hold a result twice, as structure and as text, and text in JSON is longer than it is.
	return &dispatch{method: method, ask: ask, max: 4*limit + 1<<20, end: make(chan struct{})}
}

type dispatchKey struct{}

func withDispatch(ctx context.Context, d *dispatch) context.Context {
	return context.WithValue(ctx, dispatchKey{}, d)
}

func dispatchOf(ctx context.Context) *dispatch {
	d, _ := ctx.Value(dispatchKey{}).(*dispatch)
	return d
}

// leave is asked as the last statement before the first byte is written; on false nothing may be.
func (d *dispatch) leave() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return false
	}
	if d.ask != nil && !d.ask() {
		d.over, d.refused = true, true
		return false
	}
	d.left = true
	return true
}

// wasRefused reports whether the caller's last check has said no.
func (d *dispatch) wasRefused() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused
}

// stayed takes leave back: the write failed before a single byte.
func (d *dispatch) stayed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = false
}

// hasLeft reports whether something may have left.
func (d *dispatch) hasLeft() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.left
}

// settle notes the end, once; set fills it in.
func (d *dispatch) settle(set func(d *dispatch)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settled {
		return
	}
	d.settled, d.over = true, true
	set(d)
	close(d.end)
}

// fail settles it without an answer: not sent if nothing has left, else as told.
func (d *dispatch) fail(f connector.Failure) {
	d.settle(func(d *dispatch) {
		d.failure = f
		if !d.left {
			d.failure = connector.NotSent
		}
	})
}

// answer settles it with what a response says.
func (d *dispatch) answer(r *jsonrpc.Response) {
	d.settle(func(d *dispatch) {
		switch err := r.Error.(type) {
		case nil:
			d.result = r.Result
		case *jsonrpc.Error:
			d.fault = err
		default: // the SDK's own word that a stream ended without a response
			d.failure = connector.NoReply
		}
	})
}
