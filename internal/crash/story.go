package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/pkg/run"
)

// story is everything that is known of one run, by time: requests, lookups, ledger, outcomes, history and the faults that
// fell into it.
func (j *judge) story(id run.ID) string {
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	say := func(at time.Time, format string, args ...any) {
		lines = append(lines, line{at, fmt.Sprintf(format, args...)})
	}
	prefix := id.String() + "/"
	for _, ref := range j.provider.Operations() {
		if !strings.HasPrefix(ref, prefix) {
			continue
		}
		requests, rows, lookups := j.provider.Of(ref)
		for _, q := range requests {
			say(q.At, "request   %s #%d of %s by %s: %s, key %s", q.Ref, q.Nth, q.Tool, q.Worker, q.Plan, q.Key)
			if !q.Done.IsZero() {
				say(q.Done, "answered  %s #%d", q.Ref, q.Nth)
			}
		}
		for _, r := range rows {
			say(r.At, "COMMITTED %s by %s", r.ID, r.Worker)
		}
		for _, l := range lookups {
			say(l.At, "lookup    %s: %s", l.Ref, l.Answer)
		}
	}
	steps, ends := j.results.Of(id)
	for _, o := range append(steps, ends...) {
		code := ""
		if o.Envelope != nil && !o.Envelope.OK {
			code = string(o.Envelope.Code)
		}
		say(o.Stored, "outcome   %s n=%d %s %s %s", o.Scope, o.N, o.Step, o.Outcome, code)
	}
	if r := j.state.Records[id]; r != nil {
		for _, e := range r.History {
			at := e.At
			say(at.Time(), "history   %s %s by %s attempt %d %s %s dispatch %s (from %s)", e.Kind, e.Step, e.By, e.Attempt, e.Code, e.CommitState, e.Dispatch, e.Started.Time().Format("05.000"))
		}
	}
	if len(lines) > 0 {
		slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
		for _, f := range j.faults.Between(lines[0].at.Add(-time.Second), lines[len(lines)-1].at.Add(time.Second)) {
			say(f.At, "FAULT     %s %s %s", f.Kind, f.Process, f.Detail)
			if !f.Until.IsZero() {
				say(f.Until, "fault     %s %s is over", f.Kind, f.Process)
			}
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "  %s %s\n", l.at.UTC().Format("15:04:05.000"), l.text)
	}
	if r := j.state.Records[id]; r != nil {
		if data, err := r.Encode(); err == nil {
			fmt.Fprintf(&b, "  record: %s\n", data)
		}
	}
	return b.String()
}
