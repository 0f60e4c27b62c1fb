package connector

import (
	"context"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

// Names of the kinds of tools: Tool.Kind, and the name a Kind answers to.
const (
	KindHTTP    = "http"
	KindNATS    = "nats"
	KindMCP     = "mcp"
	KindCommand = "command"
	KindGo      = "go"
)

// Kind makes the transports of one kind of tool. It is the seam between what all tools share (schemas, rules,
// classification) and what speaks to the far side. Safe for concurrent use.
type Kind interface {
	// Name is one of the Kind constants.
	Name() string
	// Prepare checks the kind's part of a spec and returns its transport. It does no I/O on the network. An error is a
	// *SpecError whose path starts inside the kind's own key, e.g. ["url"].
	Prepare(p Preparation) (Transport, error)
}

// Preparation is what a kind is told about one tool, or about one tool's lookup.
type Preparation struct {
	Tool   string
	Spec   KindSpec
	Effect envelope.Effect // Read for a lookup
	Lookup bool
	// HasOutput: the config has a schema for the result.
	HasOutput bool
}

// Transport carries one tool's requests. Safe for concurrent use.
type Transport interface {
	// CheckArgs says whether the request can be built from these args (a JSON object, numbers as json.Number); if not,
	// it returns the JSON Pointer of the place that stands in the way. Pure.
	CheckArgs(args map[string]any) (field string, ok bool)
	// RoundTrip sends at most one request and returns what came back. It calls r.Last as the last statement before
	// anything leaves the process. It returns when the end is known or ctx is done.
	RoundTrip(ctx context.Context, r *Request) Response
}

// Outliving is a Transport whose requests may go on when their call, or this process, has ended: what they still do then, a
// lookup that is sent earlier does not see. Of a write by one that says so the consistency window must cover its timeout.
type Outliving interface {
	Outlives() bool
}

// Readied is a Transport that needs something before a request can leave, a session with its server for one. A call's own
// time begins when it is there.
type Readied interface {
	// Ready returns true when it is there, and false when it cannot be had or ctx is done. Nothing of a request leaves.
	Ready(ctx context.Context) bool
	// ReadyWithin bounds Ready.
	ReadyWithin() time.Duration
}

// ready reports whether a request can leave now.
func ready(ctx context.Context, t Transport) bool {
	r, is := t.(Readied)
	return !is || r.Ready(ctx)
}

func readyWithin(t Transport) time.Duration {
	if r, is := t.(Readied); is {
		return r.ReadyWithin()
	}
	return 0
}

// Request is one call or lookup on its way to the far side.
type Request struct {
	*Call
	ArgValues map[string]any // Args decoded, numbers as json.Number
	Effect    envelope.Effect
	Lookup    bool
	BodyMax   int // bytes of a body that are read; one that is longer is TooLarge
}

// Leave runs the caller's last check. A transport calls it as the last statement before the request leaves; on false
// nothing may be sent and the response is NotSent.
func (r *Request) Leave() bool { return r.Last == nil || r.Last() == nil }

// Failure says why there is no complete response.
type Failure uint8

const (
	Answered   Failure = iota // a complete response is there
	NotSent                   // provably nothing left the process
	NoReply                   // something may have left, and no response began
	Unreadable                // a response began, with its status where the kind has one, and its body broke off or cannot be decoded
	TooLarge                  // a response is there, but its body is longer than BodyMax and was dropped
	Cancelled                 // as NoReply, because ctx was cancelled
	Undecoded                 // a complete response is there, but its body is in an encoding that is not read, and was dropped
)

func (f Failure) String() string {
	return [...]string{"answered", "not sent", "no reply", "unreadable", "too large", "cancelled", "undecoded"}[f]
}

// Response is what came back, before anything is made of it. Only the fields of its kind are set. It carries no error
// text: how a call ended is told by these values alone, so nothing of the far side can leak through them.
type Response struct {
	Failure  Failure
	Status   int                 // http, and mcp over HTTP where the status is no success
	MCPCode  int                 // mcp: the code of a JSON-RPC error
	Header   map[string][]string // http, nats; names in lower case
	Renewal  *Renewal            // http, mcp: of a 401, the credentials are being renewed
	IsError  bool                // mcp isError; for nats an error header of the micro protocol
	ExitCode int                 // command
	Body     []byte              // http, nats; mcp: structured content, else text; command: standard output
	Fault    *Fault              // go: the function said how it failed; with NotSent: why nothing could be sent
}

// Renewal says that credentials which a far side has just refused are about to be replaced by others, so that the call, which
// was refused and not processed (RFC 9110, 15.5.2), may go out again.
type Renewal struct{ After time.Duration } // when they will be there; 0: for the next attempt

// Fault is how a Go tool says what its call came to, when that is more than "failed". It is an error so that a tool can
// return it. Text for people does not go through it: the messages of an envelope are fixed by code.
type Fault struct {
	Code        envelope.Code
	Category    envelope.Category // may be empty for the contract's own codes
	CommitState envelope.CommitState
	RetryAfter  time.Duration
	Details     envelope.Details // kept as they are, after the limits of safe_details
}

func (f *Fault) Error() string { return "tool fault " + string(f.Code) }
