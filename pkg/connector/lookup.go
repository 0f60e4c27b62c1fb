package connector

import (
	"context"
	"encoding/json"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

// looker is the Looker of every configured tool. Its kind may be another than the tool's.
type looker struct {
	kind         string
	transport    Transport
	timeout      time.Duration
	committed    *expr
	notCommitted *expr  // nil: this lookup can only find
	disputed     *expr  // nil: this lookup cannot tell a dispute
	pending      *expr  // nil: this lookup knows no operation that is under way
	failed       []rule // the first that matches says how the operation ended
	classifier   classifier
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
		classifier: classifier{kind: kind, effect: envelope.Read, now: time.Now},
	}
	for _, e := range []struct {
		key, source string
		condition   bool
		into        **expr
	}{
		{"committed", v.Committed, true, &l.committed},
		{"not_committed", v.NotCommitted, true, &l.notCommitted},
		{"disputed", v.Disputed, true, &l.disputed},
		{"pending", v.Pending, true, &l.pending},
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
	for i, r := range v.Failed {
		compiled, err := compileFailed(r, kind)
		if err != nil {
			return nil, under(err, "verify", "failed", i)
		}
		l.failed = append(l.failed, compiled)
	}
	return l, nil
}

// compileFailed compiles a line of verify.failed: how an operation reads that the far side has ended for good.
func compileFailed(r Rule, kind string) (rule, error) {
	if r.CommitState != "" || r.RetryAfter != "" {
		return rule{}, &SpecError{Message: "has only when, code and category: nothing was done, and nothing is tried again"}
	}
	r.CommitState = envelope.NotCommitted
	out, err := compileRule(r, kind, envelope.Write)
	if out.row.Outcome == envelope.Retryable {
		out.row = out.row.NeverRetried()
	}
	return out, err
}

// Lookup implements Looker. The rule for a dispute comes first; of the others exactly one must match a complete response. A
// response that none of them decides, and that says when to come again or that it was asked too often, is Later, and so is one to
// credentials that are being renewed; any other is Undecided, whatever its status. It never panics.
func (l *looker) Lookup(ctx context.Context, call *Call) (found envelope.Lookup) {
	undecided := envelope.Lookup{Answer: envelope.Undecided}
	defer func() {
		if recover() != nil {
			found = undecided
		}
	}()
	args, ok := call.values()
	if !ok {
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
	if resp.Fault != nil || (resp.Failure != Answered && resp.Failure != TooLarge && resp.Failure != Undecoded) || l.kind == KindMCP && resp.Status != 0 {
		return l.undecided(&resp, r)
	}
	s := l.classifier.scope(&resp, r)
	if l.disputed != nil && l.disputed.matches(s) {
		return envelope.Lookup{Answer: envelope.Disputed}
	}
	var answers []envelope.Lookup
	if l.committed.matches(s) {
		answers = append(answers, l.found(&resp, s))
	}
	if l.notCommitted != nil && l.notCommitted.matches(s) {
		answers = append(answers, envelope.Lookup{Answer: envelope.Absent})
	}
	if l.pending != nil && l.pending.matches(s) {
		d, _ := told(resp.Header, l.classifier.now())
		answers = append(answers, envelope.Lookup{Answer: envelope.Pending, RetryAfter: d.Milliseconds()})
	}
	for i := range l.failed {
		if l.failed[i].when.matches(s) {
			answers = append(answers, envelope.Lookup{Answer: envelope.Failed, Row: l.failed[i].row})
			break
		}
	}
	if len(answers) != 1 {
		return l.undecided(&resp, r)
	}
	return answers[0]
}

// undecided is the end of a lookup whose answer no rule decides, or that got none: one that was told to come again has only
// to wait.
func (l *looker) undecided(resp *Response, r *Request) envelope.Lookup {
	c, out := &l.classifier, envelope.Lookup{Answer: envelope.Undecided}
	var reply envelope.Reply
	wait, said := told(resp.Header, c.now())
	switch {
	case resp.Fault != nil:
		reply = c.fault(resp.Fault, r)
		wait = time.Duration(reply.RetryAfter) * time.Millisecond
		said = wait > 0
	case resp.Failure == NotSent || resp.Failure == NoReply || resp.Failure == Cancelled:
		return out
	case resp.Status != 0:
		reply, _ = c.byStatus(resp)
		if resp.Renewal != nil {
			wait, said = max(wait, resp.Renewal.After), true
		}
	case resp.IsError && said:
		reply = c.fail(envelope.CodeUpstreamUnavailable)
	}
	if reply.Row.Directive != envelope.AfterDelay || !said && reply.Row.Code != envelope.CodeUpstreamRateLimited {
		return out
	}
	return envelope.Lookup{Answer: envelope.Later, Row: reply.Row, RetryAfter: wait.Milliseconds()}
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
	b, ok := strictjson.AppendValue(nil, v)
	return v, b, ok
}
