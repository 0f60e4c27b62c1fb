package connector

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

const (
	depthMax         = 512 // nesting of a reply; args are bounded by the core (contract §12)
	detailBytesMax   = 256 // contract §4
	evidenceBytesMax = 512 // a longer reference is no reference
)

// rule is a compiled line of errors.
type rule struct {
	when       *expr
	committed  bool
	row        envelope.Row
	retryAfter *expr // nil: the headers say, if anything does
}

type detail struct {
	name  string
	value *expr
}

// classifier turns responses into replies: the tool's rules first, then the default table of contract §6.
type classifier struct {
	kind      string
	effect    envelope.Effect
	envelope  bool
	hasLookup bool
	resultMax int
	rules     []rule
	details   []detail
	evidence  *expr
	output    *jsonschema.Schema
	errors    *jsonschema.Schema
	now       func() time.Time
}

// caller is the Caller of every configured tool.
type caller struct {
	transport  Transport
	classifier *classifier
	timeout    time.Duration
}

// Call implements Caller: one dispatch, classified. It never panics and never returns later than its transport takes to be
// ready and the tool's timeout after it, by more than the classification does.
func (t *caller) Call(ctx context.Context, call *Call) (reply envelope.Reply) {
	c := t.classifier
	sent := false
	defer func() {
		// A tool's data must not take the executor down with it: whatever breaks here is this call's own end.
		if recover() != nil {
			reply = envelope.Reply{Row: envelope.RowFor(envelope.CodeInternalError, c.effect), NotSent: !sent}
			if !sent {
				reply.Row = envelope.RowFor(envelope.CodeInternalError, envelope.Read)
			}
		}
	}()
	args, ok := call.values()
	if !ok {
		return refused("")
	}
	if field, ok := t.transport.CheckArgs(args); !ok {
		return refused(field)
	}
	r := &Request{Call: call, ArgValues: args, Effect: c.effect, BodyMax: c.resultMax}
	if c.envelope {
		r.BodyMax += envelopeBytes
	}
	if !ready(ctx, t.transport) {
		return c.classify(&Response{Failure: NotSent}, r)
	}
	ctx, cancel := within(ctx, t.timeout)
	defer cancel()
	sent = true
	resp := t.transport.RoundTrip(ctx, r)
	return c.classify(&resp, r)
}

// within bounds ctx by timeout, unless it ends sooner anyway.
func within(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if d, ok := ctx.Deadline(); ok && time.Until(d) <= timeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, timeout)
}

// refused is the end of a call whose args do not fit, found when it was already due: nothing was sent.
func refused(field string) envelope.Reply {
	return envelope.Reply{
		NotSent: true, Row: envelope.RowFor(envelope.CodeInvalidArgument, envelope.Read), Details: envelope.Details{"field": field},
	}
}

// classify says what a response comes to, and what it looked like. A failure's details have the status or the code that the
// far side gave, the runtime's own words for them; a config that names such a key itself has the say.
func (c *classifier) classify(resp *Response, r *Request) envelope.Reply {
	reply := c.classified(resp, r)
	reply.Seen.HTTPStatus, reply.Seen.MCPCode = resp.Status, resp.MCPCode
	if reply.OK {
		return reply
	}
	for name, n := range map[string]int{"http_status": resp.Status, "mcp_code": resp.MCPCode} {
		if _, given := reply.Details[name]; n != 0 && !given {
			reply.Details = addDetail(reply.Details, name, json.Number(strconv.Itoa(n)))
		}
	}
	if _, given := reply.Details["content_encoding"]; resp.Failure == Undecoded && !given {
		reply.Details = addDetail(reply.Details, "content_encoding", "not supported")
	}
	return reply
}

func (c *classifier) classified(resp *Response, r *Request) envelope.Reply {
	switch {
	case resp.Failure == NotSent && resp.Fault != nil:
		reply := c.fault(resp.Fault, r) // why nothing could be sent
		reply.NotSent = true
		return reply
	case resp.Failure == NotSent:
		return envelope.Reply{NotSent: true, Row: envelope.RowFor(envelope.CodeUpstreamUnavailable, envelope.Read)}
	case resp.Failure == NoReply || resp.Failure == Cancelled:
		return c.noReply()
	case resp.Fault != nil:
		return c.fault(resp.Fault, r)
	}
	s := c.scope(resp, r)
	if c.kind == KindMCP && resp.Status != 0 {
		reply, success := c.byStatus(resp) // no answer of the tool: no rule is about it
		if success {
			return c.noReply()
		}
		return c.waiting(reply, resp, s, nil)
	}
	reply := c.decide(resp, s)
	if reply.OK {
		if ref := evidence(c.evidence, s); ref != "" {
			reply.EvidenceRef = ref // the config's comes before an envelope's
		}
		return reply
	}
	reply.Details = c.safeDetails(s)
	return reply
}

// noReply is "sent, then timeout, reset, or a response that cannot be read".
func (c *classifier) noReply() envelope.Reply {
	code := envelope.CodeUpstreamTimeout
	if c.effect == envelope.Write {
		code = envelope.CodeOutcomeUnknown
	}
	return envelope.Reply{NoReply: true, Row: envelope.RowFor(code, c.effect)}
}

func (c *classifier) fail(code envelope.Code) envelope.Reply {
	return envelope.Reply{Row: envelope.RowFor(code, c.effect)}
}

// failedOrUnknown is a row of the table that reads "UPSTREAM_ERROR, retry never" for a read and OUTCOME_UNKNOWN for a write.
func (c *classifier) failedOrUnknown() envelope.Reply {
	if c.effect == envelope.Write {
		return c.fail(envelope.CodeOutcomeUnknown)
	}
	return neverRetried()
}

// neverRetried is "UPSTREAM_ERROR, retry never" (contract §6).
func neverRetried() envelope.Reply {
	return envelope.Reply{Row: envelope.RowFor(envelope.CodeUpstreamError, envelope.Read).NeverRetried()}
}

// scope shows a response to expressions. The body is decoded here, once.
func (c *classifier) scope(resp *Response, r *Request) *scope {
	s := &scope{
		status: int64(resp.Status), isError: resp.IsError, exitCode: int64(resp.ExitCode),
		args: r.ArgValues, ref: r.OperationRef, key: r.IdempotencyKey,
	}
	if c.kind == KindHTTP || c.kind == KindNATS {
		s.headers = make(map[string]string, len(resp.Header))
		for k, v := range resp.Header {
			s.headers[k] = strings.Join(v, ", ")
		}
	}
	if resp.Failure == Answered {
		s.body, s.bodyKnown = decodeBody(resp.Body)
	}
	return s
}

// decodeBody reads a body: nothing is null, JSON is JSON, other text is a string, and what reads in more than one way
// cannot be read.
func decodeBody(b []byte) (any, bool) {
	if len(bytes.TrimLeft(b, " \t\r\n")) == 0 {
		return nil, true
	}
	v, err := decodeJSON(b)
	if errors.Is(err, errNotJSON) {
		return string(b), true
	}
	return v, err == nil
}

var (
	errNotJSON    = errors.New("not JSON")
	errUnreadable = errors.New("JSON that reads in more than one way, or beyond the limits")
)

// decodeJSON reads one JSON value. It returns errNotJSON for what the grammar refuses, and errUnreadable for bytes that are
// no UTF-8, duplicate keys, lone surrogates and values beyond the limits: two readers could disagree about those, so nobody
// acts on them.
func decodeJSON(b []byte) (any, error) {
	if !utf8.Valid(b) {
		return nil, errUnreadable
	}
	if fault, bad := errors.AsType[*strictjson.JSONError](strictjson.CheckJSON(b, strictjson.Bounds{MaxDepth: depthMax})); bad {
		switch fault.Fault {
		case strictjson.FaultDuplicateKey, strictjson.FaultSurrogate:
			if json.Valid(b) {
				return nil, errUnreadable
			}
		case strictjson.FaultTooDeep:
			return nil, errUnreadable
		}
		return nil, errNotJSON
	}
	v, ok := strictjson.Decode(b)
	if !ok {
		return nil, errUnreadable
	}
	return v, nil
}

func (c *classifier) decide(resp *Response, s *scope) envelope.Reply {
	for i := range c.rules {
		if r := &c.rules[i]; r.when.matches(s) {
			if r.committed {
				return c.committed(resp, s)
			}
			return c.waiting(envelope.Reply{Row: r.row}, resp, s, r.retryAfter)
		}
	}
	if resp.Failure == Unreadable {
		return c.noReply()
	}
	if c.envelope && s.bodyKnown {
		if reply, ok := c.ownWord(resp, s); ok {
			if reply.RetryAfter == 0 {
				reply = c.waiting(reply, resp, s, nil)
			}
			return reply
		}
	}
	reply, success := c.byDefault(resp)
	switch {
	case !success:
		return c.waiting(reply, resp, s, nil)
	case resp.Failure == TooLarge:
		return c.fail(envelope.CodeResultTooLarge)
	case resp.Failure == Undecoded:
		return c.fail(envelope.CodeResultInvalid) // it would come so again
	case !s.bodyKnown:
		return c.noReply()
	case c.envelope:
		return c.fail(envelope.CodeResultInvalid) // ownWord has not taken it
	case c.errors != nil && fits(c.errors, s.body):
		return c.failedOrUnknown()
	}
	return c.result(s.body, raw(resp.Body, s.body))
}

// raw is the body as compact JSON with its digits untouched.
func raw(body []byte, v any) json.RawMessage {
	switch v := v.(type) {
	case nil:
		return json.RawMessage("null")
	case string:
		if !json.Valid(body) {
			text, _ := strictjson.AppendValue(nil, v)
			return text
		}
	}
	return bytes.Clone(strictjson.Compact(body))
}

// result is a success whose result still has to fit.
func (c *classifier) result(v any, b json.RawMessage) envelope.Reply {
	switch {
	case len(b) > c.resultMax:
		return c.fail(envelope.CodeResultTooLarge)
	case !fits(c.output, v):
		return c.fail(envelope.CodeResultInvalid)
	}
	return envelope.Reply{OK: true, Result: b}
}

// committed is a rule's word that the operation took effect: with a lookup the result is looked up, without one the body
// is the result, and one that does not fit goes to a person as committed.
func (c *classifier) committed(resp *Response, s *scope) envelope.Reply {
	if c.hasLookup {
		return envelope.Reply{OK: true, LookUp: true}
	}
	reply := c.fail(envelope.CodeResultInvalid)
	switch {
	case resp.Failure == TooLarge:
		reply = c.fail(envelope.CodeResultTooLarge)
	case s.bodyKnown:
		reply = c.result(s.body, raw(resp.Body, s.body))
	}
	if !reply.OK && c.effect == envelope.Write {
		reply.Row = reply.Row.Escalated()
		reply.Row.CommitState = envelope.Committed
	}
	return reply
}

// evidence evaluates a reference to text; "" if there is none.
func evidence(e *expr, s *scope) string {
	if e == nil {
		return ""
	}
	v, ok := e.value(s)
	if !ok {
		return ""
	}
	text := ""
	switch v := v.(type) {
	case string:
		text = v
	case json.Number:
		text = string(v)
	}
	if len(text) > evidenceBytesMax {
		return ""
	}
	return text
}

// safeDetails holds what the config names and nothing else; a value that does not fit the limits is left out whole.
func (c *classifier) safeDetails(s *scope) envelope.Details {
	var out envelope.Details
	for _, d := range c.details {
		if v, ok := d.value.value(s); ok {
			out = addDetail(out, d.name, v)
		}
	}
	return out
}

func addDetail(out envelope.Details, name string, v any) envelope.Details {
	switch v := v.(type) {
	case string:
		if len(v) > detailBytesMax {
			return out
		}
	case json.Number:
		if len(v) > detailBytesMax {
			return out
		}
	case bool:
	default:
		return out
	}
	if out == nil {
		out = envelope.Details{}
	}
	out[name] = v
	return out
}
