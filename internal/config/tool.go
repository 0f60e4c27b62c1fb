package config

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

const durationMost = 24 * time.Hour

func index(i int) string { return fmt.Sprintf("[%d]", i) }

func (d *decoder) tools(root *object, f *File) []connector.Spec {
	var out []connector.Spec
	for _, p := range root.entries("tools", "tool names to tools") {
		if !toolName.MatchString(p.key) {
			d.failAt(p.place, "tools: %s is no name for a tool: use letters, digits, _ . / and -, at most 128, the first a letter or digit", quote(p.key))
			continue
		}
		if s := d.tool(p, f); s != nil {
			out = append(out, *s)
		}
	}
	slices.SortFunc(out, func(a, b connector.Spec) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (d *decoder) tool(p *pair, f *File) *connector.Spec {
	path := "tools." + p.key
	o := d.object(p, path, "effect", "owner", "http", "nats", "mcp", "command", "timeout", "input_schema", "output_schema",
		"error_schema", "evidence_ref", "errors", "safe_details", "response", "verify", "idempotency_key", "idempotent_for",
		"retry", "allow", "requires_approval", "concurrency", "rate", "max_result_bytes", "poison_after")
	if o == nil {
		return nil
	}
	o.require("effect", "read or write")
	s := &connector.Spec{Name: p.key}
	s.Effect = envelope.Effect(o.choice("effect", "", "read", "write"))
	s.Owner = o.identifier("owner")
	s.Kind = d.kind(o, f, s.Effect != envelope.Write)
	s.Timeout = o.duration("timeout", defaultTimeout, time.Millisecond, durationMost)
	s.InputSchema, s.OutputSchema, s.ErrorSchema = o.schema("input_schema"), o.schema("output_schema"), o.schema("error_schema")
	s.EvidenceRef = o.text("evidence_ref", "")
	s.Errors = d.rules(o, "errors", s.Effect, "commit_state", "retry_after")
	s.SafeDetails = o.textMap("safe_details", "names to CEL expressions", d.safeDetail)
	s.Response = o.choice("response", "", "envelope")
	s.Verify = d.verify(o, f, s)
	s.IdempotencyKey = o.choice("idempotency_key", "operation", "operation", "per_attempt")
	s.IdempotentFor = o.duration("idempotent_for", 0, 0, 90*24*time.Hour)
	s.Retry = d.retry(o, f.Defaults.Retry)
	s.Allow = d.allow(o)
	s.RequiresApproval = o.boolean("requires_approval", false)
	s.Concurrency = int(o.whole("concurrency", 0, 1, math.MaxInt32))
	s.Rate = d.rate(o)
	s.MaxResultBytes = int(o.whole("max_result_bytes", defaultMaxResultBytes, 1, maxResultBytesMax))
	s.PoisonAfter = int(o.whole("poison_after", int64(f.Defaults.PoisonAfter), 1, 1000))
	d.combinations(o, s)
	d.args(o, s)
	return s
}

// combinations refuses what cannot work together (contract §1, §10).
func (d *decoder) combinations(o *object, s *connector.Spec) {
	read, verify := s.Effect == envelope.Read, o.n.pair("verify")
	if read && verify != nil {
		d.failAt(verify.place, "%s is a read, which is never looked up: set effect: write if it changes something, else remove verify", o.path)
	}
	if p := o.n.pair("idempotent_for"); p != nil && s.IdempotentFor > 0 {
		switch {
		case read:
			d.failAt(p.place, "%s is a read, which is simply repeated: set effect: write if it changes something, else remove idempotent_for", o.path)
		case s.IdempotencyKey == "per_attempt":
			d.failAt(p.place, "%s: idempotent_for sends the same key again and idempotency_key: per_attempt never does: keep one", o.path)
		case s.Verify != nil:
			d.warn(p.place, "%s: idempotent_for is for tools without lookup: with verify an unknown write is looked up", o.path)
		}
	}
	if p := o.n.pair("idempotency_key"); p != nil && s.IdempotencyKey == "per_attempt" {
		switch {
		case verify == nil:
			d.failAt(p.place, "%s: idempotency_key: per_attempt needs verify with a consistency_window, so that a new key only follows a proof of absence", o.path)
		case s.Verify != nil && !s.Verify.HasWindow:
			d.failAt(p.place, "%s: idempotency_key: per_attempt needs verify.consistency_window, so that a new key only follows a proof of absence", o.path)
		}
	}
	if h := s.Kind.HTTP; h != nil && s.Effect == envelope.Write && (h.Method == "GET" || h.Method == "HEAD") {
		d.warn(o.n.pair("http").place, "%s is a write by %s: proxies and caches may repeat or answer it", o.path, h.Method)
	}
}

func (d *decoder) verify(tool *object, f *File, s *connector.Spec) *connector.VerifySpec {
	p := tool.get("verify")
	if p == nil {
		return nil
	}
	o := d.object(p, tool.sub("verify"), "http", "nats", "mcp", "command", "committed", "not_committed", "disputed", "pending", "failed", "result",
		"evidence_ref", "consistency_window", "timeout", "max_attempts", "always")
	if o == nil {
		return nil
	}
	o.require("committed", "a CEL expression that is true when the lookup proves the write done")
	v := &connector.VerifySpec{
		Kind:      d.kind(o, f, true),
		Committed: o.text("committed", ""), NotCommitted: o.text("not_committed", ""), Disputed: o.text("disputed", ""),
		Pending: o.text("pending", ""), Failed: d.rules(o, "failed", envelope.Write),
		Result: o.text("result", ""), EvidenceRef: o.text("evidence_ref", ""),
		// The key's presence is what counts: 0s says that the lookup sees every write at once.
		HasWindow: o.get("consistency_window") != nil, ConsistencyWindow: o.duration("consistency_window", 0, 0, 30*24*time.Hour),
		Timeout:     o.duration("timeout", s.Timeout, time.Millisecond, durationMost),
		MaxAttempts: int(o.whole("max_attempts", defaultVerifyAttempts, 1, 1000)),
		Always:      o.boolean("always", false),
	}
	if v.HasWindow && !o.has("not_committed") {
		d.warn(o.n.pair("consistency_window").place, "%s.consistency_window has no effect without not_committed: nothing can prove absence", o.path)
	}
	if h := v.Kind.HTTP; h != nil && !namesOperation(h, v.Committed, v.NotCommitted, v.Result) {
		d.warn(p.place, "%s uses neither {operation_ref} nor {idempotency_key}: it may find another operation than the one that is looked up", o.path)
	}
	return v
}

// namesOperation reports whether a lookup over http depends on the operation.
func namesOperation(h *connector.HTTPSpec, expressions ...string) bool {
	names, _ := placeholders(h)
	return names["operation_ref"] || names["idempotency_key"] || slices.ContainsFunc(expressions, func(s string) bool {
		return strings.Contains(s, "operation_ref") || strings.Contains(s, "idempotency_key")
	})
}

// rules reads a list of conditions with the code that each stands for. more are the keys that a rule may have beside these.
func (d *decoder) rules(of *object, key string, effect envelope.Effect, more ...string) []connector.Rule {
	p := of.get(key)
	if p == nil {
		return nil
	}
	path, keys := of.sub(key), append([]string{"when", "code", "category"}, more...)
	if p.value.kind != sequenceNode {
		d.fail(p.value, "%s must be a list of rules {%s}, not %s", path, strings.Join(keys, ", "), p.value.describe())
		return nil
	}
	var out []connector.Rule
	for i, n := range p.value.items {
		o := d.object(&pair{place: n.place, value: n}, path+index(i), keys...)
		if o == nil {
			continue
		}
		o.require("when", "a CEL expression")
		o.require("code", "one of the contract's codes or your own")
		r := connector.Rule{
			When: o.text("when", ""), Code: envelope.Code(o.text("code", "")),
			Category:    envelope.Category(o.choice("category", "", "validation", "authorization", "conflict", "dependency", "internal")),
			CommitState: envelope.CommitState(o.choice("commit_state", "", "not_committed", "committed", "unknown")),
			RetryAfter:  o.text("retry_after", ""),
		}
		d.checkRule(o, r, effect)
		out = append(out, r)
	}
	return out
}

func (d *decoder) checkRule(o *object, r connector.Rule, effect envelope.Effect) {
	if p := o.n.pair("code"); p != nil && r.Code != "" {
		switch {
		case !envelope.ValidCode(r.Code):
			d.fail(p.value, "%s.code must be capitals, digits and _, 3 to 64 of them, the first a capital, not %s", o.path, quote(p.value.text))
		case !envelope.Known(r.Code) && r.Category == "" && r.CommitState != envelope.Committed && !o.has("category"):
			d.failAt(o.at, "%s needs category: %s is a code of your own, and the category says what follows from it", o.path, r.Code)
		case envelope.Known(r.Code) && r.Category != "" && r.Category != envelope.RowFor(r.Code, effect).Category:
			d.fail(o.n.pair("category").value, "%s.category: the category of %s is %s: remove category or use a code of your own",
				o.path, r.Code, envelope.RowFor(r.Code, effect).Category)
		}
	}
	if r.CommitState == envelope.Unknown && effect == envelope.Read {
		d.fail(o.n.pair("commit_state").value, "%s.commit_state: a read cannot be unknown, it is simply repeated: use not_committed", o.path)
	}
}

var (
	detailName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
	ownDetails = []string{"verification_tool", "last_code", "run_outcome", "token_error"}
)

func (d *decoder) safeDetail(p *pair, path, _ string) {
	switch {
	case !detailName.MatchString(p.key):
		d.failAt(p.place, "%s: the name must be letters, digits and _, at most 64, the first no digit", path)
	case slices.Contains(ownDetails, p.key):
		d.failAt(p.place, "%s is set by the runtime: use another name", path)
	}
}

func (d *decoder) allow(tool *object) *connector.Allow {
	p := tool.get("allow")
	if p == nil {
		return nil
	}
	o := d.object(p, tool.sub("allow"), "tenants", "actors")
	if o == nil {
		return nil
	}
	if !o.has("tenants") && !o.has("actors") {
		d.failAt(p.place, "%s names nobody: give tenants or actors, or remove allow to let everyone use the tool", o.path)
	}
	return &connector.Allow{
		Tenants: o.texts("tenants", func(n *node, path, s string) {
			if !identifier.MatchString(s) {
				d.fail(n, "%s must be an identifier (%s), not %s", path, identifierRule, quote(n.text))
			}
		}),
		Actors: o.texts("actors", func(n *node, path, s string) {
			if s == "" || !isLabel(s) {
				d.fail(n, "%s must be 1 to 256 bytes without control characters", path)
			}
			if strings.Contains(n.text, "*") {
				d.warn(n.place, "%s is compared as it is written: * is no wildcard", path)
			}
		}),
	}
}

func (d *decoder) rate(tool *object) *connector.Rate {
	p := tool.get("rate")
	if p == nil {
		return nil
	}
	o := d.object(p, tool.sub("rate"), "per_second", "burst", "scope")
	if o == nil {
		return nil
	}
	o.require("per_second", "how many calls a second, for example 20 or 0.5")
	r := &connector.Rate{PerSecond: o.number("per_second", 1, 0.001, 1e6), Scope: o.choice("scope", "executor", "executor", "fleet")}
	r.Burst = int(o.whole("burst", int64(math.Ceil(r.PerSecond)), 1, 1_000_000))
	return r
}

// schema reads a JSON Schema: any mapping, or true or false.
func (o *object) schema(key string) any {
	p := o.get(key)
	if p == nil {
		return nil
	}
	if n := p.value; n.kind != mappingNode && (n.kind != scalarNode || n.resolve() != boolScalar) {
		o.d.fail(n, "%s must be a JSON Schema (a mapping), not %s", o.sub(key), n.describe())
		return nil
	}
	return o.d.any(p.value, o.sub(key))
}

// any reads a value of any shape as encoding/json with UseNumber would.
func (d *decoder) any(n *node, path string) any {
	switch {
	case n.broken:
		return nil
	case n.kind == mappingNode:
		out := make(map[string]any, len(n.pairs))
		for i := range n.pairs {
			out[n.pairs[i].key] = d.any(n.pairs[i].value, path+"."+printable(n.pairs[i].key))
		}
		return out
	case n.kind == sequenceNode:
		out := make([]any, len(n.items))
		for i, item := range n.items {
			out[i] = d.any(item, path+index(i))
		}
		return out
	}
	switch n.resolve() {
	case nullScalar:
		return nil
	case boolScalar:
		return n.isTrue()
	case numberScalar:
		return jsonNumber(n.text)
	case noNumberScalar:
		d.fail(n, "%s: %s is not the same number everywhere: write it in plain decimal digits, or in quotes if it is text", path, quote(n.text))
		return nil
	}
	s, _ := d.expand(n, path)
	return s
}
