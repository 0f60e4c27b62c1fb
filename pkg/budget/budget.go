// Package budget holds a run's limits and what it has spent, and says which limit stops it. It is pure arithmetic.
package budget

import (
	"fmt"
	"math"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

// MaxNumber is the largest number a job may carry: below 2^53, so that every JSON reader keeps it exactly.
const MaxNumber = 1<<53 - 1

// maxElapsedMillis is a hundred years: a longer time limit means the same and would not fit a time.Duration.
const maxElapsedMillis = 100 * 365 * 24 * 3600 * 1000

// Limits are the seven limits of a run. Zero is a limit of zero, except in a job or in an addition, where a limit that is
// not named takes the config's default (see Fill).
type Limits struct {
	MaxTurns                   int64 `json:"max_turns"`
	MaxToolCalls               int64 `json:"max_tool_calls"`
	MaxAttemptsPerStep         int64 `json:"max_attempts_per_step"`
	MaxElapsedMillis           int64 `json:"max_elapsed_ms"`
	MaxInputTokens             int64 `json:"max_input_tokens"`
	MaxOutputTokens            int64 `json:"max_output_tokens"`
	MaxEstimatedCostMinorUnits int64 `json:"max_estimated_cost_minor_units"`
}

// Request is the budget of a job or the add_budget of a replay: a nil field is not named.
type Request struct {
	MaxTurns                   *int64   `json:"max_turns,omitempty"`
	MaxToolCalls               *int64   `json:"max_tool_calls,omitempty"`
	MaxAttemptsPerStep         *int64   `json:"max_attempts_per_step,omitempty"`
	MaxElapsedSeconds          *float64 `json:"max_elapsed_seconds,omitempty"`
	MaxInputTokens             *int64   `json:"max_input_tokens,omitempty"`
	MaxOutputTokens            *int64   `json:"max_output_tokens,omitempty"`
	MaxEstimatedCostMinorUnits *int64   `json:"max_estimated_cost_minor_units,omitempty"`
}

// Usage is what the caller's model spent since its last job; a nil field is not named.
type Usage struct {
	Turns                   *int64 `json:"turns,omitempty"`
	InputTokens             *int64 `json:"input_tokens,omitempty"`
	OutputTokens            *int64 `json:"output_tokens,omitempty"`
	EstimatedCostMinorUnits *int64 `json:"estimated_cost_minor_units,omitempty"`
}

// Spent is what a run has used up.
type Spent struct {
	Turns                   int64 `json:"turns,omitempty"`
	ToolCalls               int64 `json:"tool_calls,omitempty"`
	InputTokens             int64 `json:"input_tokens,omitempty"`
	OutputTokens            int64 `json:"output_tokens,omitempty"`
	EstimatedCostMinorUnits int64 `json:"estimated_cost_minor_units,omitempty"`
}

// Elapsed is the time limit of an episode.
func (l Limits) Elapsed() time.Duration { return time.Duration(l.MaxElapsedMillis) * time.Millisecond }

type limit struct {
	name string
	of   func(*Limits) *int64
	req  func(*Request) *int64
}

var limits = []limit{
	{"max_turns", func(l *Limits) *int64 { return &l.MaxTurns }, func(r *Request) *int64 { return r.MaxTurns }},
	{"max_tool_calls", func(l *Limits) *int64 { return &l.MaxToolCalls }, func(r *Request) *int64 { return r.MaxToolCalls }},
	{"max_attempts_per_step", func(l *Limits) *int64 { return &l.MaxAttemptsPerStep }, func(r *Request) *int64 { return r.MaxAttemptsPerStep }},
	{"max_elapsed_seconds", func(l *Limits) *int64 { return &l.MaxElapsedMillis }, func(r *Request) *int64 {
		if r.MaxElapsedSeconds == nil {
			return nil
		}
		ms := int64(min(math.Ceil(*r.MaxElapsedSeconds*1000), maxElapsedMillis))
		return &ms
	}},
	{"max_input_tokens", func(l *Limits) *int64 { return &l.MaxInputTokens }, func(r *Request) *int64 { return r.MaxInputTokens }},
	{"max_output_tokens", func(l *Limits) *int64 { return &l.MaxOutputTokens }, func(r *Request) *int64 { return r.MaxOutputTokens }},
	{"max_estimated_cost_minor_units", func(l *Limits) *int64 { return &l.MaxEstimatedCostMinorUnits }, func(r *Request) *int64 { return r.MaxEstimatedCostMinorUnits }},
}

// Validate refuses numbers that are negative or not below 2^53, naming the field.
func (r *Request) Validate() error {
	if r == nil {
		return nil
	}
	if e := r.MaxElapsedSeconds; e != nil && (*e != math.Trunc(*e) || *e < 0 || *e > MaxNumber) {
		return fmt.Errorf("budget/max_elapsed_seconds must be a whole number between 0 and 2^53-1")
	}
	for _, f := range limits {
		if v := f.req(r); v != nil && (*v < 0 || *v > MaxNumber) {
			return fmt.Errorf("budget/%s must be a whole number between 0 and 2^53-1", f.name)
		}
	}
	return nil
}

// Validate refuses numbers that are negative or not below 2^53, naming the field.
func (u *Usage) Validate() error {
	if u == nil {
		return nil
	}
	for _, f := range []struct {
		name string
		v    *int64
	}{{"turns", u.Turns}, {"input_tokens", u.InputTokens}, {"output_tokens", u.OutputTokens}, {"estimated_cost_minor_units", u.EstimatedCostMinorUnits}} {
		if f.v != nil && (*f.v < 0 || *f.v > MaxNumber) {
			return fmt.Errorf("usage/%s must be a whole number between 0 and 2^53-1", f.name)
		}
	}
	return nil
}

// Fill takes the limits that the job names and the config's default for the others.
func Fill(r *Request, defaults Limits) Limits {
	out := defaults
	if r != nil {
		for _, f := range limits {
			if v := f.req(r); v != nil {
				*f.of(&out) = *v
			}
		}
	}
	return out
}

// Ceiling is the config's max_budget: a nil field is no ceiling.
type Ceiling = Request

// Exceeds names the first limit that lies above the ceiling, or "".
func Exceeds(l Limits, c *Ceiling) string {
	if c == nil {
		return ""
	}
	for _, f := range limits {
		if top := f.req(c); top != nil && *f.of(&l) > *top {
			return f.name
		}
	}
	return ""
}

// Add raises the limits by what a replay adds, saturating at MaxNumber.
func Add(l Limits, r *Request) Limits {
	if r == nil {
		return l
	}
	for _, f := range limits {
		if v := f.req(r); v != nil {
			p := f.of(&l)
			*p = min(*p+*v, MaxNumber)
		}
	}
	return l
}

// Charge adds what a job reports. turns is the number of turns when the job names none.
func (s *Spent) Charge(u *Usage, turns int64) {
	add := func(p *int64, v *int64, d int64) {
		if v != nil {
			d = *v
		}
		*p = min(*p+d, MaxNumber)
	}
	if u == nil {
		u = &Usage{}
	}
	add(&s.Turns, u.Turns, turns)
	add(&s.InputTokens, u.InputTokens, 0)
	add(&s.OutputTokens, u.OutputTokens, 0)
	add(&s.EstimatedCostMinorUnits, u.EstimatedCostMinorUnits, 0)
}

// Over names the code of the first reported budget that is above its limit, or "". At the limit is still allowed.
func Over(s Spent, l Limits) envelope.Code {
	switch {
	case s.Turns > l.MaxTurns:
		return envelope.CodeTurnsExhausted
	case s.InputTokens > l.MaxInputTokens:
		return envelope.CodeInputTokensExhausted
	case s.OutputTokens > l.MaxOutputTokens:
		return envelope.CodeOutputTokensExhausted
	case s.EstimatedCostMinorUnits > l.MaxEstimatedCostMinorUnits:
		return envelope.CodeCostExhausted
	}
	return ""
}

// ReserveCall takes one tool call, or reports that none is left and changes nothing.
func (s *Spent) ReserveCall(l Limits) bool {
	if s.ToolCalls >= l.MaxToolCalls {
		return false
	}
	s.ToolCalls++
	return true
}

// ReleaseCall gives a reserved call back that provably was never dispatched.
func (s *Spent) ReleaseCall() {
	if s.ToolCalls > 0 {
		s.ToolCalls--
	}
}

// Outcome is the spent of an outcome.
func (s Spent) Outcome(elapsed time.Duration) *envelope.Spent {
	return &envelope.Spent{
		Turns: s.Turns, ToolCalls: s.ToolCalls, InputTokens: s.InputTokens, OutputTokens: s.OutputTokens,
		EstimatedCostMinorUnits: s.EstimatedCostMinorUnits, ElapsedSeconds: float64(elapsed.Milliseconds()) / 1000,
	}
}
