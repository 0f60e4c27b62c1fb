package connector

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Defaults and bounds of contract §10 and §12.
const (
	TimeoutDefault        = 30 * time.Second
	ResultBytesDefault    = 256 << 10
	ResultBytesMax        = 8 << 20
	verifyAttemptsDefault = 5
	// A lookup's answer may hold more than the result: it is read up to this size, and the result is measured after.
	lookupBodyMax = ResultBytesMax + 1<<20
	// An envelope around a result.
	envelopeBytes = 64 << 10
)

// Compile makes a tool of its spec. kinds must hold the kind of the tool and, if it has one, of its lookup. Every error
// that the spec can be blamed for is a *SpecError with the place inside the tool's config; none holds a header's value.
func Compile(spec Spec, kinds ...Kind) (*Tool, error) {
	fillDefaults(&spec)
	if err := checkPolicy(&spec); err != nil {
		return nil, err
	}
	kind, transport, err := prepare(kinds, Preparation{
		Tool: spec.Name, Spec: spec.Kind, Effect: spec.Effect, HasOutput: spec.OutputSchema != nil,
	})
	if err != nil {
		return nil, err
	}
	if o, ok := transport.(Outliving); ok && o.Outlives() && spec.Effect == envelope.Write && spec.Verify != nil &&
		spec.Verify.HasWindow && spec.Verify.ConsistencyWindow < spec.Timeout {
		return nil, &SpecError{
			Path:    []any{"verify", "consistency_window"},
			Message: fmt.Sprintf("must be at least the timeout (%s): on this system a program that the tool has started may go on after the executor has died", spec.Timeout),
		}
	}
	c, err := newClassifier(&spec, kind)
	if err != nil {
		return nil, err
	}
	input, err := compileSchema("input_schema", spec.InputSchema)
	if err != nil {
		return nil, err
	}
	t := &Tool{
		Tool: policy(&spec, c, input, transport), Kind: kind,
		Caller:      &caller{transport: transport, classifier: c, timeout: spec.Timeout},
		Concurrency: spec.Concurrency, Rate: spec.Rate, ReadyWithin: readyWithin(transport),
		Listing: spec.Listing,
	}
	t.Listing.InputSchema, t.Listing.OutputSchema = spec.InputSchema, spec.OutputSchema
	if v := spec.Verify; v != nil {
		looker, err := newLooker(&spec, c, kinds)
		if err != nil {
			return nil, err
		}
		t.Looker, t.ReadyWithin = looker, max(t.ReadyWithin, readyWithin(looker.transport))
		t.Verify = &run.Verify{
			Window: v.ConsistencyWindow, HasWindow: v.HasWindow, MaxAttempts: v.MaxAttempts, Always: v.Always, Timeout: v.Timeout,
		}
	}
	return t, nil
}

func fillDefaults(s *Spec) {
	if s.Timeout == 0 {
		s.Timeout = TimeoutDefault
	}
	if s.MaxResultBytes == 0 {
		s.MaxResultBytes = ResultBytesDefault
	}
	if s.Verify != nil {
		v := *s.Verify // the caller's spec stays as it is
		if v.Timeout == 0 {
			v.Timeout = s.Timeout
		}
		if v.MaxAttempts == 0 {
			v.MaxAttempts = verifyAttemptsDefault
		}
		s.Verify = &v
	}
}

// checkPolicy checks what no kind and no expression is needed for.
func checkPolicy(s *Spec) error {
	fail := func(message string, path ...any) error { return &SpecError{Path: path, Message: message} }
	switch {
	case s.Effect != envelope.Read && s.Effect != envelope.Write:
		return fail("must be read or write", "effect")
	case s.Timeout < 0:
		return fail("must be positive", "timeout")
	case s.MaxResultBytes < 0 || s.MaxResultBytes > ResultBytesMax:
		return fail(fmt.Sprintf("must be between 1 and %d", ResultBytesMax), "max_result_bytes")
	case s.Response != "" && s.Response != "envelope":
		return fail(`must be "envelope" if present`, "response")
	case s.IdempotencyKey != "" && s.IdempotencyKey != "operation" && s.IdempotencyKey != "per_attempt":
		return fail("must be operation or per_attempt", "idempotency_key")
	case s.IdempotencyKey == "per_attempt" && (s.Verify == nil || !s.Verify.HasWindow):
		return fail("per_attempt needs verify with a consistency_window", "idempotency_key")
	case s.IdempotentFor < 0:
		return fail("must not be negative", "idempotent_for")
	case s.Concurrency < 0:
		return fail("must not be negative", "concurrency")
	case s.Rate != nil && s.Rate.PerSecond <= 0:
		return fail("must be positive", "rate", "per_second")
	}
	if v := s.Verify; v != nil {
		switch {
		case v.Committed == "":
			return fail("is required: it says when a lookup has found the operation", "verify", "committed")
		case v.Timeout < 0:
			return fail("must be positive", "verify", "timeout")
		case v.ConsistencyWindow < 0:
			return fail("must not be negative", "verify", "consistency_window")
		case v.MaxAttempts < 0:
			return fail("must be positive", "verify", "max_attempts")
		}
	}
	return nil
}

// kindName names the one kind that is set, "" if there is none or more than one.
func kindName(k KindSpec) string {
	name, n := KindGo, 0
	for kind, set := range map[string]bool{KindHTTP: k.HTTP != nil, KindNATS: k.NATS != nil, KindMCP: k.MCP != nil, KindCommand: k.Command != nil} {
		if set {
			name = kind
			n++
		}
	}
	if n > 1 {
		return ""
	}
	return name
}

// prepare finds the spec's kind among kinds and has it make a transport. A spec without any kind is a Go tool's.
func prepare(kinds []Kind, p Preparation) (string, Transport, error) {
	name := kindName(p.Spec)
	for _, k := range kinds {
		if name == "" || k.Name() != name {
			continue
		}
		t, err := k.Prepare(p)
		if err != nil {
			return "", nil, under(err, name)
		}
		return name, t, nil
	}
	if name == "" || name == KindGo {
		return "", nil, &SpecError{Message: "needs exactly one of http, nats, mcp and command"}
	}
	return "", nil, &SpecError{Path: []any{name}, Message: "this program has no tools of kind " + name}
}

// under puts a SpecError's path below more keys.
func under(err error, path ...any) error {
	if e, ok := err.(*SpecError); ok {
		at := *e
		at.Path = slices.Concat(path, e.Path)
		return &at
	}
	return err
}

// policy fills what the core asks about the tool.
func policy(s *Spec, c *classifier, input *jsonschema.Schema, transport Transport) run.Tool {
	allow := s.Allow
	return run.Tool{
		Name: s.Name, Effect: s.Effect, Owner: s.Owner, Timeout: s.Timeout, Retry: s.Retry,
		IdempotentFor: s.IdempotentFor, KeyPerAttempt: s.IdempotencyKey == "per_attempt",
		RequiresApproval: s.RequiresApproval, PoisonAfter: s.PoisonAfter, MaxResultBytes: s.MaxResultBytes,
		Allowed: func(tenant, actor string) bool {
			return allow == nil || (allowed(allow.Tenants, tenant) && allowed(allow.Actors, actor))
		},
		Fits: func(args *strictjson.Args) (string, bool) {
			v, ok := args.Values()
			if !ok {
				return "", false
			}
			if field, ok := firstMisfit(input, v); !ok {
				return field, false
			}
			return transport.CheckArgs(v)
		},
		CheckResult: func(result json.RawMessage) bool {
			v, err := decodeJSON(result)
			return err == nil && fits(c.output, v)
		},
	}
}

func allowed(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }

// decidedByRuntime are codes that only the runtime gives: a tool that claims one would be taken for the core's own word.
var decidedByRuntime = map[envelope.Code]bool{
	envelope.CodeJobInvalid: true, envelope.CodeUnknownTool: true, envelope.CodeReferenceUnresolved: true,
	envelope.CodeIdenticalRetry: true, envelope.CodeNotAuthorized: true, envelope.CodeMissingApproval: true,
	envelope.CodeStepConflict: true, envelope.CodeRunClosed: true, envelope.CodeVerifiedAbsent: true,
	envelope.CodeOperationPending: true,
	envelope.CodeOutcomeDisputed:  true, envelope.CodeVerificationUnavailable: true, envelope.CodeWorkerLost: true,
	envelope.CodePoisonJob: true, envelope.CodeAttemptsExhausted: true, envelope.CodeTurnsExhausted: true,
	envelope.CodeToolCallsExhausted: true, envelope.CodeTimeExhausted: true, envelope.CodeInputTokensExhausted: true,
	envelope.CodeOutputTokensExhausted: true, envelope.CodeCostExhausted: true, envelope.CodeCancelled: true,
}

// reservedDetails are the runtime's own keys of safe_details; field may be set by the config (contract §4).
var reservedDetails = []string{"verification_tool", "last_code", "run_outcome", "token_error"}

func newClassifier(s *Spec, kind string) (*classifier, error) {
	c := &classifier{
		kind: kind, effect: s.Effect, envelope: s.Response == "envelope", hasLookup: s.Verify != nil,
		resultMax: s.MaxResultBytes, now: time.Now,
	}
	var err error
	if c.output, err = compileSchema("output_schema", s.OutputSchema); err != nil {
		return nil, err
	}
	if c.errors, err = compileSchema("error_schema", s.ErrorSchema); err != nil {
		return nil, err
	}
	if s.EvidenceRef != "" {
		if c.evidence, err = compileExpr(kind, s.EvidenceRef, false, "evidence_ref"); err != nil {
			return nil, err
		}
	}
	for i, r := range s.Errors {
		compiled, err := compileRule(r, kind, s.Effect)
		if err != nil {
			return nil, under(err, "errors", i)
		}
		c.rules = append(c.rules, compiled)
	}
	for _, name := range slices.Sorted(maps.Keys(s.SafeDetails)) {
		if slices.Contains(reservedDetails, name) {
			return nil, &SpecError{Path: []any{"safe_details", name}, Message: "is the runtime's own key"}
		}
		e, err := compileExpr(kind, s.SafeDetails[name], false, "safe_details", name)
		if err != nil {
			return nil, err
		}
		c.details = append(c.details, detail{name, e})
	}
	return c, nil
}

func compileRule(r Rule, kind string, effect envelope.Effect) (rule, error) {
	fail := func(key, message string) (rule, error) {
		return rule{}, &SpecError{Path: []any{key}, Message: message}
	}
	known := envelope.Known(r.Code)
	switch {
	case !envelope.ValidCode(r.Code):
		return fail("code", "must be 3 to 64 capital letters, digits and underscores")
	case decidedByRuntime[r.Code]:
		return fail("code", "is given by the runtime only")
	case r.Category != "" && !validCategory(r.Category):
		return fail("category", "must be validation, authorization, conflict, dependency or internal")
	case r.CommitState != "" && !validCommitState(r.CommitState):
		return fail("commit_state", "must be not_committed, committed or unknown")
	case !known && r.Category == "" && r.CommitState != envelope.Committed:
		return fail("category", "is required for a code of your own: it says what follows")
	case r.Code == envelope.CodeOutcomeUnknown && (effect == envelope.Read || r.CommitState == envelope.NotCommitted):
		return fail("code", "OUTCOME_UNKNOWN is for writes that may have happened")
	}
	when, err := compileExpr(kind, r.When, true, "when")
	if err != nil {
		return rule{}, err
	}
	out := rule{when: when, committed: r.CommitState == envelope.Committed}
	if !out.committed {
		out.row = rowOf(r.Code, r.Category, r.CommitState, effect)
	}
	if r.RetryAfter == "" {
		return out, nil
	}
	if out.row.Directive != envelope.AfterDelay {
		return fail("retry_after", "is for what is tried again: a code of category dependency, not_committed")
	}
	out.retryAfter, err = compileWait(kind, r.RetryAfter, "retry_after")
	return out, err
}

// rowOf is the row of a code from outside. A write that is said to be unknown is unknown whatever the category: contract
// §6 has OUTCOME_UNKNOWN's behaviour come before what follows from a category.
func rowOf(code envelope.Code, category envelope.Category, commit envelope.CommitState, effect envelope.Effect) envelope.Row {
	row := envelope.Custom(code, category, commit, effect)
	if commit == envelope.Unknown && effect == envelope.Write {
		unknown := envelope.RowFor(envelope.CodeOutcomeUnknown, effect)
		row.CommitState, row.Directive = unknown.CommitState, unknown.Directive
		row.NextAction, row.Outcome = unknown.NextAction, unknown.Outcome
	}
	return row
}

func validCategory(c envelope.Category) bool {
	switch c {
	case envelope.Validation, envelope.Authorization, envelope.Conflict, envelope.Dependency, envelope.Internal:
		return true
	}
	return false
}

func validCommitState(s envelope.CommitState) bool {
	return s == envelope.NotCommitted || s == envelope.Committed || s == envelope.Unknown
}
