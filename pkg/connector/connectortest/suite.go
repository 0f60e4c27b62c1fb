// Package connectortest is the conformance suite of kinds of tools: what every kind must make of a far side that is away,
// silent, slow, too talkative, unreadable, wrong or repetitive, for reads and for writes. A kind's own test gives it a Peer.
package connectortest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

// Do is what the far side does with a request once it has read all of it.
type Do int

const (
	Answer Do = iota // answers with Body, as a success
	Fail             // answers with Body, marked as an error the kind's own way (a status, a flag, an exit code)
	Lose             // drops the connection without a word
	Hang             // says nothing until the peer is closed
	Break            // begins to answer with Body and breaks off in the middle
	Twice            // answers twice
	Garble           // answers with Body, which is no UTF-8
)

func (d Do) String() string {
	return [...]string{"answer", "fail", "lose", "hang", "break", "twice", "garble"}[d]
}

// Script is what the far side does with every request until the next script.
type Script struct {
	Do   Do
	Body string
}

// Seen is one request as it arrived at the far side.
type Seen struct {
	OperationRef   string
	IdempotencyKey string
	Args           string // JSON, "" if the kind cannot tell
}

// Peer is the far side of one kind. Its methods are called from the test's goroutine.
type Peer interface {
	Kind() connector.Kind
	// Spec is a tool at this peer that takes its args as a whole.
	Spec(effect envelope.Effect) connector.KindSpec
	// Unreachable is a tool at which nothing can arrive.
	Unreachable(effect envelope.Effect) connector.KindSpec
	// Can reports whether the kind knows such an end.
	Can(Do) bool
	Script(Script)
	// Arrived is signalled (buffered, never blocking the peer) for each request that has been read to its end.
	Arrived() <-chan Seen
}

// Starter is a Peer that begins anew for each request, and takes up to StartTime until it can have read one.
type Starter interface{ StartTime() time.Duration }

// resultMax is the size limit of results in the suite, in bytes.
const resultMax = 4 << 10

type suite struct {
	peer   Peer
	effect envelope.Effect
}

// Run runs the suite. newPeer makes a peer that t closes.
func Run(t *testing.T, newPeer func(t *testing.T) Peer) {
	for _, effect := range []envelope.Effect{envelope.Read, envelope.Write} {
		t.Run(string(effect), func(t *testing.T) {
			for name, test := range map[string]func(*testing.T, *suite){
				"answered":         answered,
				"empty":            empty,
				"never sent":       neverSent,
				"lease gone":       leaseGone,
				"cancelled before": cancelledBefore,
				"cancelled":        cancelled,
				"sent and lost":    lost,
				"lost when reused": lostWhenReused,
				"slow":             slow,
				"broken off":       brokenOff,
				"huge":             huge,
				"malformed":        malformed,
				"ambiguous":        ambiguous,
				"garbled":          garbled,
				"error object":     errorObject,
				"marked an error":  markedError,
				"false success":    falseSuccess,
				"duplicate":        duplicate,
				"lookup":           lookup,
			} {
				t.Run(name, func(t *testing.T) { test(t, &suite{peer: newPeer(t), effect: effect}) })
			}
		})
	}
}

const args = `{"amount_minor":12345678901234567890,"invoice_id":"inv_7"}`

func call() *connector.Call {
	return &connector.Call{
		Tenant: "acme", RunID: "run_1", Step: "credit", OperationRef: "acme/run_1/credit", IdempotencyKey: "acme/run_1/credit.p2",
		Attempt: 1, Args: json.RawMessage(args),
	}
}

func (s *suite) tool(t *testing.T, edit func(*connector.Spec)) *connector.Tool {
	t.Helper()
	spec := connector.Spec{
		Name: "credit", Effect: s.effect, Kind: s.peer.Spec(s.effect), Timeout: 20 * time.Second, MaxResultBytes: resultMax,
	}
	if edit != nil {
		edit(&spec)
	}
	tool, err := connector.Compile(spec, s.peer.Kind())
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	return tool
}

// arrived takes the n requests that must have arrived, and makes sure that there is no other.
func (s *suite) arrived(t *testing.T, n int) (last Seen) {
	t.Helper()
	for i := range n {
		select {
		case last = <-s.peer.Arrived():
		case <-time.After(10 * time.Second):
			t.Fatalf("request %d of %d never arrived", i+1, n)
		}
	}
	select {
	case extra := <-s.peer.Arrived():
		t.Fatalf("a request too many arrived: %+v", extra)
	default:
	}
	return last
}

// expect checks the end of a call: the code by effect, and that a failure's flags agree.
func (s *suite) expect(t *testing.T, got envelope.Reply, read, write envelope.Code) {
	t.Helper()
	want := read
	if s.effect == envelope.Write {
		want = write
	}
	if got.OK || got.Row.Code != want {
		t.Fatalf("got ok=%v code=%s, want %s", got.OK, got.Row.Code, want)
	}
	if got.NotSent && got.Row.CommitState != envelope.NotCommitted {
		t.Fatalf("not sent, but commit state %s", got.Row.CommitState)
	}
	if s.effect == envelope.Read && got.Row.CommitState != envelope.NotCommitted {
		t.Fatalf("a read came to commit state %s", got.Row.CommitState)
	}
}
