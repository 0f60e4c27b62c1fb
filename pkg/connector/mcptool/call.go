package mcptool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentrun/executor/internal/child"
	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/internal/token"
	"github.com/agentrun/executor/pkg/envelope"
)

// Names in _meta.
const (
	operationRefMeta   = "agentrun/operation_ref"
	idempotencyKeyMeta = "agentrun/idempotency_key"
	traceparentMeta    = "traceparent"
)

// CodeNotReadOnly ends a call of a tool that the config calls a read and its server does not. A read is repeated at will,
// so it is not sent at all.
const CodeNotReadOnly envelope.Code = "MCP_TOOL_NOT_READ_ONLY"

// tool is one tool of a server, as the config names it.
type tool struct {
	server    *server
	name      string
	effect    envelope.Effect
	hasOutput bool // the config has a schema of its own for the result
}

// Outlives implements connector.Outliving.
func (t *tool) Outlives() bool { return len(t.server.spec.Command) > 0 && !child.Contained }

// Ready implements connector.Readied: a call needs a session.
func (t *tool) Ready(ctx context.Context) bool {
	s, err := t.server.acquire(ctx)
	if err != nil {
		return token.Missing(err) // the call says so itself
	}
	s.release()
	return true
}

// ReadyWithin implements connector.Readied.
func (t *tool) ReadyWithin() time.Duration { return t.server.patience.whole() }

// CheckArgs implements connector.Transport: any object is arguments.
func (*tool) CheckArgs(map[string]any) (string, bool) { return "", true }

// RoundTrip implements connector.Transport. A server that has died, or a session that has ended, is often only found out by
// writing to it: if nothing could be written, the call goes to its successor.
func (t *tool) RoundTrip(ctx context.Context, r *connector.Request) connector.Response {
	out, dead := t.once(ctx, r)
	if dead {
		out, _ = t.once(ctx, r)
	}
	return out
}

// once sends at most one request. dead: nothing has left, because the session had ended.
func (t *tool) once(ctx context.Context, r *connector.Request) (out connector.Response, dead bool) {
	s, err := t.server.acquire(ctx)
	if err != nil {
		return token.Response(err), false
	}
	defer s.release()
	offer := s.offer(t.name)
	if offer != nil && t.effect == envelope.Read && offer.Changes() {
		return connector.Response{Fault: &connector.Fault{
			Code: CodeNotReadOnly, Category: envelope.Conflict, CommitState: envelope.NotCommitted,
		}}, false
	}
	d := newDispatch(methodCall, r.BodyMax, func() bool { return ctx.Err() == nil && r.Leave() })
	// An answered call is not cancelled, neither here nor by its caller: the SDK, which may not have seen the answer yet, would
	// tell the server so.
	callCtx, cancel := context.WithCancel(withDispatch(context.WithoutCancel(ctx), d))
	var over atomic.Bool // the session had ended
	go func() {
		defer cancel()
		// The SDK's result is not looked at: the wire has the real one.
		_, err := s.CallTool(callCtx, t.params(r))
		if errors.Is(err, mcp.ErrConnectionClosed) {
			over.Store(true)
			s.retire()
		}
		d.fail(connector.NoReply)
	}()
	select {
	case <-d.end:
	case <-s.wire.gone:
		over.Store(true)
		cancel()
		d.fail(connector.NoReply)
	case <-ctx.Done():
		cancel()
		d.fail(silence(ctx))
		if d.hasLeft() && !errors.Is(ctx.Err(), context.Canceled) {
			go s.suspect()
		}
	}
	gone, of := s.lost(ctx, d)
	if gone {
		s.retire()
	}
	out = t.response(d, r, offer)
	if c := t.server.client; c != nil && (out.Status != 0 || out.Failure == connector.Answered) {
		out.Renewal = c.credentials.Answered(r, out.Status, d.token)
	}
	switch of {
	case unprocessed:
		out = connector.Response{
			Status: out.Status, Header: out.Header, MCPCode: out.MCPCode,
			Fault: &connector.Fault{Code: envelope.CodeUpstreamUnavailable, CommitState: envelope.NotCommitted},
		}
	case unknown:
		out = connector.Response{Status: out.Status, Header: out.Header, MCPCode: out.MCPCode, Failure: connector.NoReply}
	}
	if out.Failure == connector.NotSent && (t.server.client == nil || over.Load()) && !d.wasRefused() && ctx.Err() == nil {
		// A pipe that takes nothing is a server that is gone, and a session may end between two calls.
		s.retire()
		return out, true
	}
	return out, false
}

func (t *tool) params(r *connector.Request) *mcp.CallToolParams {
	args := json.RawMessage(r.Args)
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	meta := mcp.Meta{operationRefMeta: r.OperationRef, idempotencyKeyMeta: r.IdempotencyKey}
	if r.Traceparent != "" {
		meta[traceparentMeta] = r.Traceparent
	}
	return &mcp.CallToolParams{Meta: meta, Name: t.name, Arguments: args}
}

// response reads a settled dispatch.
func (t *tool) response(d *dispatch, r *connector.Request, offer *Offer) (out connector.Response) {
	switch {
	case d.unheld != nil:
		return token.Response(d.unheld)
	case d.status != 0:
		out = connector.Response{Status: d.status, Header: d.header}
		if d.fault != nil {
			out.MCPCode = int(d.fault.Code)
		}
		return out
	case d.fault != nil:
		out = t.protocolError(d.fault, r.BodyMax)
		out.MCPCode = int(d.fault.Code)
		return out
	case d.failure != connector.Answered:
		return connector.Response{Failure: d.failure}
	}
	out, ok := result(d.result, r.BodyMax)
	if ok && out.Failure == connector.Answered && !out.IsError && !t.hasOutput && offer != nil && !fits(offer.output, out.Body) {
		return connector.Response{Fault: &connector.Fault{Code: envelope.CodeResultInvalid}}
	}
	return out
}

// fits reports whether a body fits the server's own schema. What cannot be read is left to the classification.
func fits(s *jsonschema.Schema, body []byte) bool {
	if s == nil || strictjson.CheckJSON(body, strictjson.Bounds{}) != nil {
		return s == nil || json.Valid(body)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	return err != nil || s.Validate(v) == nil
}

// result reads the result of tools/call: structured content, else the text. ok is false for one that is no complete
// result.
func result(raw json.RawMessage, limit int) (out connector.Response, ok bool) {
	unreadable := connector.Response{Failure: connector.Unreadable}
	if strictjson.CheckJSON(raw, strictjson.Bounds{}) != nil {
		return unreadable, false
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil || members == nil {
		return unreadable, false
	}
	if e, there := members["isError"]; there && json.Unmarshal(e, &out.IsError) != nil {
		return unreadable, false
	}
	out.Body = members["structuredContent"]
	if len(out.Body) == 0 || string(out.Body) == "null" {
		text, readable := textOf(members["content"])
		if !readable {
			return unreadable, false
		}
		out.Body = text
	}
	if more := members["inputRequests"]; string(members["resultType"]) == `"input_required"` || (len(more) > 0 && string(more) != "null") {
		// The server wants to be asked again with more input. Nobody asks again here.
		out.IsError = true
	}
	if len(out.Body) > limit {
		out.Failure, out.Body = connector.TooLarge, nil
	}
	return out, !out.IsError
}

// textOf joins the text blocks of a result, line by line; there may be none.
func textOf(content json.RawMessage) ([]byte, bool) {
	if len(content) == 0 || string(content) == "null" {
		return nil, true
	}
	var blocks []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(content, &blocks) != nil {
		return nil, false
	}
	var texts []string
	for _, b := range blocks {
		if b.Type == "text" {
			texts = append(texts, b.Text)
		}
	}
	return []byte(strings.Join(texts, "\n")), true
}

// protocolError is an answer that is an error of JSON-RPC. The codes of the specification for requests that were not
// understood prove that nothing was done; any other says no more than isError does, with the error as the body.
func (t *tool) protocolError(e *jsonrpc.Error, limit int) connector.Response {
	switch e.Code {
	case jsonrpc.CodeParseError, jsonrpc.CodeInvalidRequest, jsonrpc.CodeMethodNotFound, jsonrpc.CodeInvalidParams:
		return connector.Response{Fault: &connector.Fault{Code: envelope.CodeUpstreamRejectedInput}}
	}
	body, err := json.Marshal(e)
	if err != nil {
		return connector.Response{IsError: true, Failure: connector.Unreadable}
	}
	if len(body) > limit {
		return connector.Response{IsError: true, Failure: connector.TooLarge}
	}
	return connector.Response{IsError: true, Body: body}
}
