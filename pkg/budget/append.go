package budget

import "github.com/agentrun/executor/internal/strictjson"

// Append writes the limits as encoding/json does.
func (l *Limits) Append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.Int("max_turns", l.MaxTurns)
	o.Int("max_tool_calls", l.MaxToolCalls)
	o.Int("max_attempts_per_step", l.MaxAttemptsPerStep)
	o.Int("max_elapsed_ms", l.MaxElapsedMillis)
	o.Int("max_input_tokens", l.MaxInputTokens)
	o.Int("max_output_tokens", l.MaxOutputTokens)
	o.Int("max_estimated_cost_minor_units", l.MaxEstimatedCostMinorUnits)
	return o.End()
}

// Append writes what is spent as encoding/json does.
func (s *Spent) Append(buf []byte) ([]byte, error) {
	o := strictjson.NewObject(buf)
	o.IntIf("turns", s.Turns)
	o.IntIf("tool_calls", s.ToolCalls)
	o.IntIf("input_tokens", s.InputTokens)
	o.IntIf("output_tokens", s.OutputTokens)
	o.IntIf("estimated_cost_minor_units", s.EstimatedCostMinorUnits)
	return o.End()
}
