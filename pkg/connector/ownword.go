package connector

import (
	"encoding/json"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

// ownWord takes a reply that is itself an envelope at its word (contract §10, response: envelope). ok is false if the
// body is no valid envelope: then the default table decides, which makes it RESULT_INVALID where that says success. An
// envelope of another operation, and one that says ok beside a status of failure, are RESULT_INVALID at once.
func (c *classifier) ownWord(resp *Response, s *scope) (reply envelope.Reply, ok bool) {
	e, valid := parseWord(s.body)
	if !valid || (e.code != "" && decidedByRuntime[e.code]) {
		return reply, false
	}
	if e.ref != s.ref {
		return c.fail(envelope.CodeResultInvalid), true
	}
	if e.ok {
		if _, success := c.byDefault(resp); !success && !acceptedStatus(c.kind, resp.Status) {
			return c.fail(envelope.CodeResultInvalid), true
		}
		return c.wordResult(e), true
	}
	switch e.commit {
	case envelope.Committed:
		if c.hasLookup {
			return envelope.Reply{OK: true, LookUp: true, EvidenceRef: e.evidence}, true
		}
		reply = c.wordResult(e)
		if !reply.OK && c.effect == envelope.Write {
			reply.Row = reply.Row.Escalated()
			reply.Row.CommitState = envelope.Committed
		}
		return reply, true
	case envelope.Unknown:
		if c.effect == envelope.Read {
			return c.fail(envelope.CodeResultInvalid), true
		}
	case envelope.NotCommitted:
		if e.code == envelope.CodeOutcomeUnknown || e.next == envelope.VerifyOperation {
			return c.fail(envelope.CodeResultInvalid), true // it contradicts itself
		}
	}
	reply = envelope.Reply{Row: e.row(c.effect)}
	if reply.Row.Directive == envelope.AfterDelay && !e.notBefore.IsZero() {
		reply.RetryAfter = until(e.notBefore, farNow(resp.Header, c.now())).Milliseconds()
	}
	return reply, true
}

// acceptedStatus: an envelope may come with 202, whose meaning it then settles.
func acceptedStatus(kind string, status int) bool {
	return kind == KindHTTP && status >= 200 && status < 300
}

func (c *classifier) wordResult(e word) envelope.Reply {
	b, ok := strictjson.AppendValue(nil, e.result)
	if !ok {
		return c.fail(envelope.CodeResultInvalid)
	}
	reply := c.result(e.result, b)
	if reply.OK {
		reply.EvidenceRef = e.evidence
	}
	return reply
}

// word is what is read of a tool's own envelope.
type word struct {
	ok        bool
	code      envelope.Code
	category  envelope.Category
	commit    envelope.CommitState
	directive envelope.Directive
	next      envelope.NextAction
	notBefore time.Time
	ref       string
	result    any
	evidence  string
}

// parseWord validates: ok and operation_ref always; commit_state committed on success; code, commit_state and
// next_action on failure. Fields that are not needed may be absent, but not wrong. Unknown fields are ignored.
func parseWord(body any) (e word, valid bool) {
	m, isObject := body.(map[string]any)
	if !isObject {
		return e, false
	}
	f := fields{m: m, ok: true}
	var isBool bool
	if e.ok, isBool = m["ok"].(bool); !isBool {
		return e, false
	}
	e.ref = f.text("operation_ref")
	e.commit = envelope.CommitState(f.text("commit_state"))
	e.code = envelope.Code(f.text("code"))
	e.category = envelope.Category(f.text("category"))
	e.next = envelope.NextAction(f.text("next_action"))
	e.result = m["result"]
	if v := f.object("verification"); v.m != nil {
		e.evidence = v.text("evidence_ref")
		f.ok = f.ok && v.ok && len(e.evidence) <= evidenceBytesMax
	}
	if r := f.object("retry"); r.m != nil {
		e.directive = envelope.Directive(r.text("directive"))
		if at := r.text("not_before"); at != "" {
			var err error
			e.notBefore, err = time.Parse(time.RFC3339Nano, at)
			r.ok = r.ok && err == nil
		}
		f.ok = f.ok && r.ok
	}
	if !f.ok || e.ref == "" || !validCommitState(e.commit) {
		return e, false
	}
	if e.ok {
		return e, e.commit == envelope.Committed
	}
	return e, envelope.ValidCode(e.code) && validNext(e.next) && (e.category == "" || validCategory(e.category)) && e.agrees()
}

// agrees reports whether directive and next action say the same, where both are there: an envelope that tells the caller to
// wait and the runtime not to has said neither.
func (e *word) agrees() bool {
	switch e.directive {
	case "":
		return true
	case envelope.AfterDelay:
		return e.next == envelope.WaitAndRetry
	case envelope.AfterInputFix:
		return e.next == envelope.CorrectInput
	case envelope.Never:
		return e.next != envelope.WaitAndRetry
	}
	return false
}

// fields reads members that may be absent but not of another type.
type fields struct {
	m  map[string]any
	ok bool
}

func (f *fields) text(name string) string {
	v, there := f.m[name]
	s, isText := v.(string)
	if there && v != nil && !isText {
		f.ok = false
	}
	return s
}

func (f *fields) object(name string) *fields {
	v, there := f.m[name]
	m, isObject := v.(map[string]any)
	if there && v != nil && !isObject {
		f.ok = false
	}
	return &fields{m: m, ok: true}
}

func validNext(n envelope.NextAction) bool {
	switch n {
	case envelope.CorrectInput, envelope.WaitAndRetry, envelope.VerifyOperation, envelope.RequestApproval, envelope.Escalate:
		return true
	}
	return false
}

// row is the failure's row: from the code, with what the envelope itself says about retry and next action. An own code
// without category gets the one that its next_action implies. An unknown write stays an unknown write whatever else is said.
func (e *word) row(effect envelope.Effect) envelope.Row {
	category := e.category
	if category == "" {
		category = map[envelope.NextAction]envelope.Category{
			envelope.CorrectInput: envelope.Validation, envelope.WaitAndRetry: envelope.Dependency,
			envelope.VerifyOperation: envelope.Dependency, envelope.RequestApproval: envelope.Authorization,
			envelope.Escalate: envelope.Conflict,
		}[e.next]
	}
	row := rowOf(e.code, category, e.commit, effect)
	if row.CommitState == envelope.Unknown {
		return row
	}
	row.NextAction = e.next
	row.Directive = e.directive
	if e.directive == "" {
		switch e.next {
		case envelope.CorrectInput:
			row.Directive = envelope.AfterInputFix
		case envelope.WaitAndRetry:
			row.Directive = envelope.AfterDelay
		default:
			row.Directive = envelope.Never
		}
	}
	switch {
	case row.Directive == envelope.AfterDelay:
		row.Outcome = envelope.Retryable
	case row.NextAction == envelope.RequestApproval:
		row.Outcome = envelope.NeedsHuman
	case row.Outcome == envelope.Retryable:
		row.Outcome = envelope.Fatal
	}
	return row
}

// fault is a Go tool's own account of its failure, read like a rule's row.
func (c *classifier) fault(f *Fault, r *Request) envelope.Reply {
	categorized := envelope.Known(f.Code) || validCategory(f.Category) || f.CommitState == envelope.Committed
	switch {
	case !envelope.ValidCode(f.Code), decidedByRuntime[f.Code], !categorized,
		f.CommitState != "" && !validCommitState(f.CommitState),
		f.Code == envelope.CodeOutcomeUnknown && (c.effect == envelope.Read || f.CommitState == envelope.NotCommitted):
		return c.fail(envelope.CodeInternalError)
	case f.CommitState == envelope.Committed:
		if c.hasLookup {
			return envelope.Reply{OK: true, LookUp: true}
		}
		return c.committed(&Response{Failure: Unreadable}, &scope{})
	}
	reply := envelope.Reply{Row: rowOf(f.Code, f.Category, f.CommitState, c.effect)}
	if reply.Row.Directive == envelope.AfterDelay {
		reply.RetryAfter = min(max(f.RetryAfter, 0), retryAfterMax).Milliseconds()
	}
	for name, v := range f.Details {
		if n, isInt := v.(int); isInt {
			b, _ := json.Marshal(n)
			v = json.Number(b)
		}
		reply.Details = addDetail(reply.Details, name, v)
	}
	return reply
}
