package connector

import (
	"context"
	"encoding/json"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentrun/executor/pkg/envelope"
)

// looker is the Looker of every configured tool. Its kind may be another than the tool's.
type looker struct {
	kind         string
	transport    Transport
	timeout      time.Duration
	committed    *expr
	notCommitted *expr // nil: this lookup can only find
	disputed     *expr // nil: this lookup cannot tell a dispute
	resultOf     *expr // nil: the whole body
	evidence     *expr
	output       *jsonschema.Schema
	resultMax    int
}

func newLooker(s *Spec, c *classifier, kinds []Kind) (*looker, error) {
	v := s.Verify
	kind, transport, err := prepare(kinds, Preparation{Tool: s.Name, Spec: v.Kind, Effect: envelope.Read, Lookup: true})
	if err != nil {
		return nil, under(err, "verify")
	}
	l := &looker{
		kind: kind, transport: transport, timeout: v.Timeout, output: c.output, resultMax: s.MaxResultBytes,
	}
	for _, e := range []struct {
		key, source string
		condition   bool
		into        **expr
	}{
		{"committed", v.Committed, true, &l.committed},
		{"not_committed", v.NotCommitted, true, &l.notCommitted},
		{"disputed", v.Disputed, true, &l.disputed},
		{"result", v.Result, false, &l.resultOf},
		{"evidence_ref", v.EvidenceRef, false, &l.evidence},
	} {
		if e.source == "" {
			continue
		}
		if *e.into, err = compileExpr(kind, e.source, e.condition, "verify", e.key); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Lookup implements Looker. It is Undecided unless exactly one of the two rules matches a complete response, or the rule
// for a dispute; a status
// that is no success decides nothing by itself. It never panics.
func (l *looker) Lookup(ctx context.Context, call *Call) (found envelope.Lookup) {
	undecided := envelope.Lookup{Answer: envelope.Undecided}
	defer func() {
		if recover() != nil {
			found = undecided
		}
	}()
	args, err := decodeArgs(call.Args)
	if err != nil {
		return undecided
	}
	if _, ok := l.transport.CheckArgs(args); !ok {
		return undecided
	}
	if !ready(ctx, l.transport) {
		return undecided
	}
	ctx, cancel := within(ctx, l.timeout)
	defer cancel()
	r := &Request{Call: call, ArgValues: args, Effect: envelope.Read, Lookup: true, BodyMax: lookupBodyMax}
	resp := l.transport.RoundTrip(ctx, r)
	defer func() { found.Seen.HTTPStatus, found.Seen.MCPCode = resp.Status, resp.MCPCode }()
	// A body that was too long, or cannot be decoded, leaves rules that do not need it; one that broke off proves nothing.
	if resp.Fault != nil || (resp.Failure != Answered && resp.Failure != TooLarge && resp.Failure != Undecoded) {
		return undecided
	}
	c := classifier{kind: l.kind}
	s := c.scope(&resp, r)
	committed := l.committed.matches(s)
	absent := l.notCommitted != nil && l.notCommitted.matches(s)
	switch {
	case l.disputed != nil && l.disputed.matches(s):
		return envelope.Lookup{Answer: envelope.Disputed}
	case committed == absent:
		return undecided
	case absent:
		return envelope.Lookup{Answer: envelope.Absent}
	}
	return l.found(&resp, s)
}

func (l *looker) found(resp *Response, s *scope) envelope.Lookup {
	out := envelope.Lookup{Answer: envelope.Found, EvidenceRef: evidence(l.evidence, s)}
	v, b, ok := l.result(resp, s)
	switch {
	case resp.Failure == TooLarge || len(b) > l.resultMax:
		out.Invalid = envelope.CodeResultTooLarge
	case !ok || !fits(l.output, v):
		out.Invalid = envelope.CodeResultInvalid
	default:
		out.Result = b
	}
	return out
}

func (l *looker) result(resp *Response, s *scope) (any, json.RawMessage, bool) {
	if l.resultOf == nil {
		return s.body, raw(resp.Body, s.body), s.bodyKnown
	}
	v, ok := l.resultOf.value(s)
	if !ok {
		return nil, nil, false
	}
	b, ok := AppendJSON(nil, v)
	return v, b, ok
}
