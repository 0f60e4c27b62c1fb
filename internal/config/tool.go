package config

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

const durationMost = 24 * time.Hour

func (d *decoder) tools(root *object, f *File) []connector.Spec {
	var out []connector.Spec
	for _, p := range root.entries("tools") {
		if o := d.object(p, "tools."+printable(p.key)); o != nil {
			out = append(out, *d.tool(o, p.key, f))
		}
	}
	slices.SortFunc(out, func(a, b connector.Spec) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (d *decoder) tool(o *object, name string, f *File) *connector.Spec {
	s := &connector.Spec{Name: name}
	s.Effect = envelope.Effect(o.text("effect", ""))
	s.Owner = o.text("owner", "")
	s.Listing = d.listing(o)
	s.Kind = d.kind(o, f, s.Effect != envelope.Write)
	s.Timeout = o.duration("timeout", defaultTimeout, time.Millisecond, durationMost)
	s.InputSchema, s.OutputSchema, s.ErrorSchema = o.any("input_schema"), o.any("output_schema"), o.any("error_schema")
	s.EvidenceRef = o.text("evidence_ref", "")
	s.Errors = d.rules(o, "errors", s.Effect)
	s.SafeDetails = o.textMap("safe_details", d.safeDetail)
	s.Response = o.text("response", "")
	s.Verify = d.verify(o, f, s)
	s.IdempotencyKey = o.text("idempotency_key", "operation")
	s.IdempotentFor = o.duration("idempotent_for", 0, 0, 90*24*time.Hour)
	s.Retry = d.retry(o, f.Defaults.Retry)
	s.Allow = d.allow(o.object("allow"))
	s.RequiresApproval = o.boolean("requires_approval")
	s.Concurrency = int(o.whole("concurrency", 0))
	if r := o.object("rate"); r != nil {
		s.Rate = &connector.Rate{PerSecond: r.number("per_second", 1), Scope: r.text("scope", "executor")}
		s.Rate.Burst = int(r.whole("burst", int64(math.Ceil(s.Rate.PerSecond))))
	}
	s.MaxResultBytes = int(o.whole("max_result_bytes", defaultMaxResultBytes))
	s.PoisonAfter = int(o.whole("poison_after", int64(f.Defaults.PoisonAfter)))
	d.combinations(o, s)
	d.args(o, s)
	return s
}

const descriptionMax = 8 << 10

// listing reads what is shown of the tool to those who choose among tools.
func (d *decoder) listing(o *object) connector.Listing {
	l := connector.Listing{Title: o.label("title"), Description: o.text("description", "")}
	if len(l.Description) > descriptionMax {
		d.fail(o.n.pair("description").value, "%s must be at most 8 KiB", o.sub("description"))
	}
	if a := o.object("annotations"); a != nil {
		l.Destructive, l.Idempotent, l.OpenWorld = a.said("destructive"), a.said("idempotent"), a.said("open_world")
	}
	joins := o.said("join")
	l.Alone = joins != nil && !*joins
	return l
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
	o := tool.object("verify")
	if o == nil {
		return nil
	}
	v := &connector.VerifySpec{
		Kind:      d.kind(o, f, true),
		Committed: o.text("committed", ""), NotCommitted: o.text("not_committed", ""), Disputed: o.text("disputed", ""),
		Pending: o.text("pending", ""), Failed: d.rules(o, "failed", envelope.Write),
		Result: o.text("result", ""), EvidenceRef: o.text("evidence_ref", ""),
		// The key's presence is what counts: 0s says that the lookup sees every write at once.
		HasWindow: o.get("consistency_window") != nil, ConsistencyWindow: o.duration("consistency_window", 0, 0, 30*24*time.Hour),
		Timeout:     o.duration("timeout", s.Timeout, time.Millisecond, durationMost),
		MaxAttempts: int(o.whole("max_attempts", defaultVerifyAttempts)),
		Always:      o.boolean("always"),
	}
	if v.HasWindow && !o.has("not_committed") {
		d.warn(o.n.pair("consistency_window").place, "%s.consistency_window has no effect without not_committed: nothing can prove absence", o.path)
	}
	if h := v.Kind.HTTP; h != nil && !namesOperation(h, v.Committed, v.NotCommitted, v.Result) {
		d.warn(o.at, "%s uses neither {operation_ref} nor {idempotency_key}: it may find another operation than the one that is looked up", o.path)
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

// rules reads a list of conditions with the code that each stands for.
func (d *decoder) rules(of *object, key string, effect envelope.Effect) (out []connector.Rule) {
	for i, n := range of.items(key) {
		o := d.object(&pair{place: n.place, value: n}, of.sub(key)+index(i))
		if o == nil {
			continue
		}
		r := connector.Rule{
			When: o.text("when", ""), Code: envelope.Code(o.text("code", "")), Category: envelope.Category(o.text("category", "")),
			CommitState: envelope.CommitState(o.text("commit_state", "")), RetryAfter: o.text("retry_after", ""),
		}
		d.checkRule(o, r, effect)
		out = append(out, r)
	}
	return out
}

func (d *decoder) checkRule(o *object, r connector.Rule, effect envelope.Effect) {
	switch {
	case r.Code == "":
	case !envelope.Known(r.Code) && r.CommitState != envelope.Committed && !o.has("category"):
		d.failAt(o.at, "%s needs category: %s is a code of your own, and the category says what follows from it", o.path, r.Code)
	case envelope.Known(r.Code) && r.Category != "" && r.Category != envelope.RowFor(r.Code, effect).Category:
		d.fail(o.n.pair("category").value, "%s.category: the category of %s is %s: remove category or use a code of your own",
			o.path, r.Code, envelope.RowFor(r.Code, effect).Category)
	}
	if r.CommitState == envelope.Unknown && effect == envelope.Read {
		d.fail(o.n.pair("commit_state").value, "%s.commit_state: a read cannot be unknown, it is simply repeated: use not_committed", o.path)
	}
}

// ownDetails are those that the runtime sets.
var ownDetails = []string{"verification_tool", "last_code", "run_outcome", "token_error"}

func (d *decoder) safeDetail(p *pair, path string) {
	if slices.Contains(ownDetails, p.key) {
		d.failAt(p.place, "%s is set by the runtime: use another name", path)
	}
}

func (d *decoder) allow(o *object) *connector.Allow {
	if o == nil {
		return nil
	}
	if !o.has("tenants") && !o.has("actors") {
		d.failAt(o.at, "%s names nobody: give tenants or actors, or remove allow to let everyone use the tool", o.path)
	}
	return &connector.Allow{Tenants: o.texts("tenants", nil), Actors: o.texts("actors", func(n *node, path, s string) {
		if s == "" || !isLabel(s) {
			d.fail(n, "%s must be 1 to 256 bytes without control characters", path)
		}
		if strings.Contains(n.text, "*") {
			d.warn(n.place, "%s is compared as it is written: * is no wildcard", path)
		}
	})}
}
