// Package connector is the boundary between the runtime and a tool: what is called, how it is looked up, and how the end
// of a call is classified. One subpackage per kind of tool speaks to the far side; this package holds what they share.
package connector

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Call is one dispatch of a step, or one lookup of it.
type Call struct {
	Tenant, RunID, Step string
	OperationRef        string // never changes for a step
	IdempotencyKey      string // of this dispatch, or of the dispatch that is looked up
	Attempt             int
	Args                json.RawMessage  // resolved and validated
	Checked             *strictjson.Args // the same, from the runtime; nil: they are checked when they are needed
	Traceparent         string

	// Last is called as the last statement before the request leaves the process; an error means that the lease or the
	// deadline is gone, and the request must not be sent (Reply.NotSent). Nil allows.
	Last func() error
}

// values are the args decoded: a JSON object, which all who read it share. Who calls a tool with other args than it was called
// with itself may have left the checked ones as they were: they count only while they are the same.
func (c *Call) values() (map[string]any, bool) {
	if bytes.Equal(c.Args, c.Checked.Text()) {
		return c.Checked.Values()
	}
	args, _ := strictjson.ParseArgs(c.Args, strictjson.Bounds{})
	if args == nil {
		return nil, false
	}
	return args.Values()
}

// Caller calls a tool. One Call is at most one request on the wire: nothing below may send it again. It returns when the
// end is known or ctx is done; a cut-off call of which anything may have left is NoReply. Safe for concurrent use.
type Caller interface {
	Call(ctx context.Context, c *Call) envelope.Reply
}

// Looker asks the far side what became of an operation. Safe for concurrent use.
type Looker interface {
	Lookup(ctx context.Context, c *Call) envelope.Lookup
}

// Tool is a tool ready for use: its policy, its caller, its lookup (nil if it has none).
type Tool struct {
	run.Tool
	Kind        string // http, nats, mcp, command or go
	Caller      Caller
	Looker      Looker
	Concurrency int // calls at once per executor; 0: no limit
	Rate        *Rate
	// ReadyWithin is how long a call or a lookup may take, at most, before its own time begins: what it needs is made then.
	ReadyWithin time.Duration
	Listing     Listing
}

// CheckArgs says whether the tool takes these args; if not, it returns the JSON Pointer of the first place that stands in the
// way.
func (t *Tool) CheckArgs(args json.RawMessage) (field string, ok bool) {
	a, err := strictjson.ParseArgs(args, strictjson.Bounds{})
	if err != nil && len(args) > 0 {
		return "", false
	}
	return t.Fits(a)
}

// Rate limits how often a tool is called.
type Rate struct {
	PerSecond float64
	Burst     int
	Scope     string // "" or "executor": per executor; "fleet": shared by all executors
}

// Spec is one tool of the config file (contract §10), read but not yet compiled. Durations are resolved, defaults filled.
type Spec struct {
	Name             string
	Effect           envelope.Effect
	Owner            string
	Kind             KindSpec
	Timeout          time.Duration
	InputSchema      any // as decoded from YAML or JSON with json.Number for numbers; nil if absent
	OutputSchema     any
	ErrorSchema      any
	EvidenceRef      string // CEL
	Errors           []Rule
	SafeDetails      map[string]string // name -> CEL
	Response         string            // "" or "envelope"
	Verify           *VerifySpec
	IdempotencyKey   string // "operation" or "per_attempt"
	IdempotentFor    time.Duration
	Retry            run.Retry
	Allow            *Allow
	RequiresApproval bool
	Concurrency      int
	Rate             *Rate
	MaxResultBytes   int
	PoisonAfter      int
	Listing          Listing // its schemas are those above
}

// KindSpec has exactly one field set.
type KindSpec struct {
	HTTP    *HTTPSpec
	NATS    *NATSSpec
	MCP     *MCPSpec
	Command *CommandSpec
}

// HTTPSpec describes an HTTP request.
type HTTPSpec struct {
	Method            string
	URL               string
	Headers           map[string]string
	Body              any    // as decoded, numbers as json.Number: the JSON body with {name} in its texts; nil: the args
	Form              any    // likewise, sent as application/x-www-form-urlencoded; at most one of the two
	IdempotencyHeader string // "" means Idempotency-Key
	TLS               *TLSSpec
	OAuth2            *OAuth2Spec
	Secrets           []SecretFile // whose content stands in URL, headers, body or form
	ProxyFromEnv      bool
	MaxConnsPerHost   int
}

// TLSSpec has PEM file names.
type TLSSpec struct {
	CA, Cert, Key, ServerName string
}

// OAuth2Spec is how access tokens are got: by client credentials (RFC 6749, 4.4). They go out as Authorization: Bearer.
type OAuth2Spec struct {
	TokenURL, ClientID, ClientSecret string
	Scopes                           []string
	Params                           map[string]string // further ones for the token endpoint, audience for one
	AuthStyle                        string            // "header" (HTTP Basic) or "body"
	Timeout                          time.Duration     // of one request for a token
	Secrets                          []SecretFile      // whose content stands in the above
}

// NATSSpec is request and reply on a subject.
type NATSSpec struct{ Subject string }

// MCPSpec names a tool of a server of mcp_servers.
type MCPSpec struct{ Server, Tool string }

// CommandSpec is a program and its arguments; no shell.
type CommandSpec struct {
	Argv []string
	Env  map[string]string
	ProcessSpec
}

// ProcessSpec is what a program finds when it begins, beside its environment. The zero value is the default. All but Cwd
// need Linux; User needs the capabilities CAP_SETUID, CAP_SETGID and CAP_KILL.
type ProcessSpec struct {
	Cwd    string            // absolute; "": this process's
	User   string            // name or uid, and after a colon a group's; "": this process's. Without other groups than that
	Umask  string            // octal; "": 022
	Limits map[string]uint64 // soft and hard: as, core, cpu (seconds), data, fsize, memlock, nofile, nproc, stack; sizes in bytes
}

// MCPServerSpec is one of mcp_servers: URL (streamable HTTP) or Command (stdio).
type MCPServerSpec struct {
	URL     string
	Headers map[string]string
	TLS     *TLSSpec
	OAuth2  *OAuth2Spec
	Secrets []SecretFile // whose content stands in URL or headers
	Command []string
	Env     map[string]string
	ProcessSpec
}

// Rule is one line of errors: first match wins, before the default table.
type Rule struct {
	When        string // CEL
	Code        envelope.Code
	Category    envelope.Category
	CommitState envelope.CommitState
	RetryAfter  string // CEL: seconds, a time since 1970, a date; "": what the headers say
}

// VerifySpec is a tool's lookup.
type VerifySpec struct {
	Kind              KindSpec
	Committed         string // CEL
	NotCommitted      string // CEL
	Disputed          string // CEL; wins over the others
	Pending           string // CEL: the operation is known and under way
	Failed            []Rule // When, Code and Category: the operation was ended for good and nothing was done
	Result            string // CEL
	EvidenceRef       string // CEL
	ConsistencyWindow time.Duration
	HasWindow         bool
	Timeout           time.Duration
	MaxAttempts       int
	Always            bool
}

// Allow names who may use a tool; an empty list allows everyone on that side.
type Allow struct {
	Tenants, Actors []string
}

// SpecError is what is wrong with a Spec, with the place inside the tool's config, e.g. ["errors", 0, "when"].
type SpecError struct {
	Path    []any
	Line    int // within the value, from 1; 0 if it does not apply (a CEL expression has positions of its own)
	Column  int
	Message string
}

func (e *SpecError) Error() string { return fmt.Sprintf("%v: %s", e.Path, e.Message) }
