package envelope

import "github.com/agentrun/executor/internal/strictjson"

// Append writes the outcome as encoding/json does, without the escaping for HTML: it is written for every step.
func (out *Outcome) Append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Text("schema", out.Schema)
	o.Text("id", out.ID)
	o.Int("n", int64(out.N))
	o.Text("scope", string(out.Scope))
	o.Bool("terminal", out.Terminal)
	o.Text("tenant", out.Tenant)
	o.Text("run_id", out.RunID)
	o.TextIf("workflow", out.Workflow)
	o.TextIf("owner", out.Owner)
	o.TextIf("actor", out.Actor)
	o.TextIf("step", out.Step)
	o.TextIf("tool", out.Tool)
	o.TextIf("operation_ref", out.OperationRef)
	o.Text("outcome", string(out.Outcome))
	o.TextIf("reason_code", out.ReasonCode)
	o.TextIf("failed_step", out.FailedStep)
	if out.Attempt != nil {
		o.Int("attempt", int64(*out.Attempt))
	}
	if out.RetryAfterSeconds != nil {
		o.Float("retry_after_seconds", *out.RetryAfterSeconds)
	}
	o.TimeIf("not_before", int64(out.NotBefore))
	o.TextIf("commit_state", string(out.CommitState))
	o.TextIf("next_action", string(out.NextAction))
	if len(out.CompletedEffects) == 0 {
		o.Any("completed_effects", out.CompletedEffects)
	} else {
		o.Value("completed_effects", func(buf []byte) ([]byte, error) {
			return strictjson.AppendList(buf, len(out.CompletedEffects), func(buf []byte, i int) ([]byte, error) {
				return out.CompletedEffects[i].append(buf)
			})
		})
	}
	o.Texts("remaining_steps", out.RemainingSteps)
	if out.Spent != nil {
		o.Value("spent", out.Spent.append)
	}
	o.TextIf("customer_message", out.CustomerMessage)
	o.TextIf("operator_detail", out.OperatorDetail)
	if out.Envelope != nil {
		o.Value("envelope", out.Envelope.append)
	}
	o.Time("at", int64(out.At))
	return o.End()
}

func (e *CompletedEffect) append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Text("step", e.Step)
	o.Text("tool", e.Tool)
	o.Text("operation_ref", e.OperationRef)
	o.Time("committed_at", int64(e.CommittedAt))
	o.TextIf("evidence_ref", e.EvidenceRef)
	return o.End()
}

func (s *Spent) append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Int("turns", s.Turns)
	o.Int("tool_calls", s.ToolCalls)
	o.Int("input_tokens", s.InputTokens)
	o.Int("output_tokens", s.OutputTokens)
	o.Int("estimated_cost_minor_units", s.EstimatedCostMinorUnits)
	o.Float("elapsed_seconds", s.ElapsedSeconds)
	return o.End()
}

func (e *Envelope) append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Bool("ok", e.OK)
	o.TextIf("code", string(e.Code))
	o.TextIf("category", string(e.Category))
	o.Text("commit_state", string(e.CommitState))
	if r := e.Retry; r != nil {
		o.Value("retry", func(buf []byte) ([]byte, error) {
			o := strictjson.NewObject(buf)
			o.Text("directive", string(r.Directive))
			o.Int("max_attempts_remaining", int64(r.MaxAttemptsRemaining))
			o.TimeIf("not_before", int64(r.NotBefore))
			return o.End()
		})
	}
	o.TextIf("next_action", string(e.NextAction))
	o.TextIf("operation_ref", e.OperationRef)
	o.RawIf("result", e.Result)
	o.BoolIf("result_omitted", e.ResultOmitted)
	if e.ResultRef != nil {
		o.Any("result_ref", e.ResultRef)
	}
	if v := e.Verification; v != nil {
		o.Value("verification", func(buf []byte) ([]byte, error) {
			o := strictjson.NewObject(buf)
			o.Time("checked_at", int64(v.CheckedAt))
			o.TextIf("evidence_ref", v.EvidenceRef)
			return o.End()
		})
	}
	if len(e.SafeDetails) > 0 {
		o.Any("safe_details", e.SafeDetails)
	}
	o.TextIf("agent_message", e.AgentMessage)
	o.TextIf("user_message", e.UserMessage)
	return o.End()
}

// Append writes the row as Outcome.Append does.
func (r *Row) Append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Text("code", string(r.Code))
	o.Text("category", string(r.Category))
	o.Text("reason_code", r.ReasonCode)
	o.Text("commit_state", string(r.CommitState))
	o.Text("directive", string(r.Directive))
	o.Text("next_action", string(r.NextAction))
	o.Text("outcome", string(r.Outcome))
	return o.End()
}
