package terminal

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// Story prints a run from its beginning to now, so that somebody who is woken up by it can follow: what it is, its steps,
// what happened in order, what is known, and what may be done about its letter, which may be nil. width is as in Table.
func (p *Printer) Story(v *run.View, l *deadletter.Letter, now time.Time, width int) {
	p.title(v, l, now, width)
	p.steps(v, width)
	p.timeline(v, width)
	if l != nil {
		p.letter(l, now, width)
	}
}

func (p *Printer) title(v *run.View, l *deadletter.Letter, now time.Time, width int) {
	state := string(v.State)
	line := p.Paint(Bold, "run "+v.Tenant+"/"+v.RunID) + "  " + p.Paint(stateStyle(state), state)
	if v.ReasonCode != "" {
		line += "  " + Clean(v.ReasonCode)
	}
	p.Line("%s", line)
	facts := []string{}
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, name+" "+Clean(value))
		}
	}
	add("workflow", v.Workflow)
	add("owner", v.Owner)
	add("actor", v.Actor)
	add("episode", fmt.Sprint(v.Episode))
	if v.More {
		facts = append(facts, "open for more jobs")
	}
	p.wrap("  ", strings.Join(facts, ", "), width)
	if l != nil && l.Intent != "" {
		p.wrap("  ", "for: "+Clean(l.Intent), width)
	}
	p.wrap("  ", fmt.Sprintf("began %s, %s ago; last change %s ago; %s", v.CreatedAt.Time().Format("2006-01-02 15:04:05 UTC"),
		Age(now.Sub(v.CreatedAt.Time())), Age(now.Sub(v.UpdatedAt.Time())), spent(v)), width)
	p.lease(v, now, width)
}

// lease says who works on the run, and since when nothing was heard of it.
func (p *Printer) lease(v *run.View, now time.Time, width int) {
	l := v.Lease
	if l == nil {
		return
	}
	name := Clean(l.Worker)
	if name == "" {
		name = "holder " + Clean(l.Holder)
	}
	p.wrap("  ", fmt.Sprintf("%s works on it; last sign of life %s ago, %s of its lease of %s left", name, Age(now.Sub(l.SignAt.Time())),
		Age(time.Duration(l.Left*float64(time.Second))), Age(time.Duration(l.Seconds*float64(time.Second)))), width)
}

func spent(v *run.View) string {
	limit := "?"
	if v.Budget.MaxToolCalls != nil {
		limit = fmt.Sprint(*v.Budget.MaxToolCalls)
	}
	if v.Spent == nil {
		return "nothing spent"
	}
	return fmt.Sprintf("%d of %s tool calls", v.Spent.ToolCalls, limit)
}

func stateStyle(state string) Style {
	switch state {
	case run.StateUnknown, run.StateWaiting, run.StateCancelling:
		return Yellow
	}
	return outcomeStyle[envelope.Word(state)]
}

func (p *Printer) steps(v *run.View, width int) {
	if len(v.Steps) == 0 {
		return
	}
	p.Line("")
	rows := make([][]Cell, len(v.Steps))
	for i, s := range v.Steps {
		attempt, state := "", string(s.State)
		if s.Attempt > 0 {
			attempt = fmt.Sprintf("#%d", s.Attempt)
		} else if s.State == run.Ready {
			state = "not started"
		}
		next := ""
		if s.NotBefore != 0 {
			next = "not before " + s.NotBefore.Time().Format("15:04:05")
		}
		rows[i] = []Cell{{Text: s.Step}, {state, stateStyle(string(s.State))}, {Text: attempt}, {Text: string(s.Effect)}, {Text: s.Tool}, {Text: string(s.Code)}, {Text: commitWord(s.CommitState)}, {Text: next}}
	}
	p.Table([]Column{
		{"STEP", 8, 0}, {"STATE", 0, 0}, {"TRY", 0, 0}, {"EFFECT", 0, 4}, {"TOOL", 8, 3}, {"CODE", 8, 1}, {"DONE?", 0, 2}, {"NEXT", 8, 5},
	}, rows, width)
	for _, s := range v.Steps {
		if len(s.SafeDetails) > 0 {
			p.wrap("  ", s.Step+": "+details(s.SafeDetails), width)
		}
		if s.StoppedBy != "" {
			p.wrap("  ", s.Step+": does not start while "+s.StoppedBy+" is wrong", width)
		}
	}
}

// details are safe_details in one line.
func details(d envelope.Details) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(d)) {
		parts = append(parts, Clean(fmt.Sprintf("%s %v", name, d[name])))
	}
	return strings.Join(parts, ", ")
}

// Payloads prints what the steps were asked and gave.
func (p *Printer) Payloads(steps []run.Payload, width int) {
	p.Line("")
	for _, s := range steps {
		p.Line("%s", p.Paint(Bold, s.Step))
		show := func(name string, v []byte) {
			if len(v) > 0 {
				p.wrap("  ", name+" "+Clean(string(v)), width)
			}
		}
		show("args", s.Args)
		show("result", s.Result)
		if s.ResultRef != nil {
			p.wrap("  ", fmt.Sprintf("result: %d bytes in object store %s as %s", s.ResultRef.Size, s.ResultRef.Bucket, s.ResultRef.Object), width)
		}
		if len(s.Omitted) > 0 {
			p.wrap("  ", "too large to show: "+strings.Join(s.Omitted, ", "), width)
		}
	}
}

// commitWord says in a word whether something was done.
func commitWord(c envelope.CommitState) string {
	switch c {
	case envelope.Committed:
		return "done"
	case envelope.NotCommitted:
		return "nothing"
	case envelope.Unknown:
		return "maybe"
	}
	return ""
}

// timeline prints the history line by line, with the time since the beginning.
func (p *Printer) timeline(v *run.View, width int) {
	if len(v.History) == 0 {
		return
	}
	history := append([]run.HistoryView(nil), v.History...)
	sort.SliceStable(history, func(i, k int) bool { return history[i].At < history[k].At })
	p.Line("")
	for i, e := range history {
		at := e.At.Time()
		clock := at.Format("15:04:05.000")
		if day := at.Format("2006-01-02"); i == 0 || day != history[i-1].At.Time().Format("2006-01-02") {
			p.Line("%s", p.Paint(Dim, day))
		}
		since := "+" + Age(e.At.Sub(v.CreatedAt))
		text, style := happened(&e)
		text += seen(&e)
		lead := fmt.Sprintf("  %s %s  ", clock, Pad(since, 8))
		lines := wrapped(Clean(text), width-len(lead))
		p.Line("%s%s", p.Paint(Dim, lead), p.Paint(style, lines[0]))
		for _, more := range lines[1:] {
			p.Line("%s%s", strings.Repeat(" ", len(lead)), p.Paint(style, more))
		}
	}
	if v.Outcome != "" {
		p.Line("%s", p.Paint(stateStyle(string(v.Outcome)), "  ended "+string(v.Outcome)))
	}
}

// seen says what an attempt looked like on its way.
func seen(e *run.HistoryView) string {
	var parts []string
	if e.HTTPStatus != 0 {
		parts = append(parts, fmt.Sprintf("HTTP %d", e.HTTPStatus))
	}
	if e.MCPCode != 0 {
		parts = append(parts, fmt.Sprintf("MCP %d", e.MCPCode))
	}
	const clock = "15:04:05.000"
	switch {
	case e.SentAt != 0 && e.AnsweredAt != 0:
		parts = append(parts, "sent "+e.SentAt.Time().Format(clock)+", answered after "+e.AnsweredAt.Sub(e.SentAt).Round(time.Millisecond).String())
	case e.SentAt != 0:
		parts = append(parts, "sent "+e.SentAt.Time().Format(clock)+", no answer")
	case e.Kind == engine.EventDispatch && e.Code == "" && e.CommitState == "":
		parts = append(parts, "no answer yet")
	case e.Kind == engine.EventDispatch && e.Code == envelope.CodeWorkerLost && e.StartedAt != 0:
		// The line's time is when that was established: who knew when it left is gone.
		parts = append(parts, "begun "+e.StartedAt.Time().Format(clock)+", no answer known")
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, "; ") + ")"
}

// happened is one line of the history as a sentence.
func happened(e *run.HistoryView) (string, Style) {
	step := e.Step
	if e.Attempt > 0 {
		step += fmt.Sprintf(" #%d", e.Attempt)
	}
	by := ""
	if e.By != "" {
		by = " by " + e.By
	}
	why := ""
	if e.Reason != "" {
		why = ": " + e.Reason
	}
	switch e.Kind {
	case engine.EventAccepted:
		return "a job was accepted", Plain
	case engine.EventDispatch:
		return dispatched(e, step, by)
	case engine.EventVerify:
		return lookedUp(e, step, by)
	case engine.EventLost:
		return step + ": its worker was lost", Yellow
	case engine.EventReport:
		return step + ": reported" + by + " as " + commitWord(e.CommitState) + why, Cyan
	case engine.EventClaim:
		return "the dead letter was claimed" + by, Cyan
	case engine.EventAssign:
		return "the dead letter was handed to " + e.Owner + by + why, Cyan
	case engine.EventCancel, engine.EventReplay, engine.EventResolve, engine.EventApprove, engine.EventDiscard:
		text := map[string]string{
			engine.EventCancel: "cancelled", engine.EventReplay: "replayed", engine.EventResolve: "resolved", engine.EventApprove: "approved", engine.EventDiscard: "discarded",
		}[e.Kind]
		if e.Step != "" {
			text = e.Step + " " + text
		}
		if e.CommitState != "" {
			text += " as " + commitWord(e.CommitState)
		}
		return text + by + why, Cyan
	}
	return strings.TrimSpace(strings.Join([]string{step, strings.ReplaceAll(e.Kind, "_", " "), string(e.Code), strings.TrimPrefix(by+why, " ")}, " ")), Plain
}

// lookedUp is a lookup as a sentence. One that had to wait stands for all that were told the same.
func lookedUp(e *run.HistoryView, step, by string) (string, Style) {
	text := step + " was looked up" + by + ": "
	switch {
	case e.CommitState == envelope.Committed:
		return text + "it is there", Green
	case e.CommitState == envelope.NotCommitted && e.Code == envelope.CodeVerifiedAbsent:
		return text + "it is not there", Yellow
	case e.CommitState == envelope.NotCommitted:
		return text + "it was given up, " + string(e.Code) + ", nothing happened", Yellow
	case e.Code == envelope.CodeVerificationUnavailable || e.Code == envelope.CodeOutcomeDisputed:
		return text + "no answer that decides " + string(e.Code), Yellow
	}
	if e.Code == envelope.CodeOperationPending {
		text += "it is under way"
	} else {
		text += "to be asked again later, " + string(e.Code)
	}
	if e.SentAt > e.StartedAt && e.StartedAt != 0 {
		text += ", since " + e.StartedAt.Time().Format("15:04:05")
	}
	return text, Yellow
}

func dispatched(e *run.HistoryView, step, by string) (string, Style) {
	switch {
	case e.Code == "" && e.CommitState == "":
		return step + " was sent" + by, Plain
	case e.Code == "" || e.CommitState == envelope.Committed:
		return step + " was sent" + by + ": done", Green
	case e.CommitState == envelope.Unknown:
		return step + " was sent" + by + ": " + string(e.Code) + ", it may have happened", Yellow
	}
	return step + " was sent" + by + ": " + string(e.Code) + ", nothing happened", Yellow
}

// letter prints what a person needs to decide.
func (p *Printer) letter(l *deadletter.Letter, now time.Time, width int) {
	p.Line("")
	p.Line("%s  open for %s, owner %s", p.Paint(Bold, "dead letter "+l.ID), Age(now.Sub(l.CreatedAt.Time())), Clean(l.Owner))
	for _, o := range l.Open {
		p.wrap("  ", fmt.Sprintf("%s: %s; %s", o.Step, o.ReasonCode, doubt(o.CommitState)), width)
		p.wrap("    ", "operation ref "+o.OperationRef, width)
		if o.ArgsDigest != "" {
			p.wrap("    ", "args "+string(o.Args)+" digest "+o.ArgsDigest, width)
		}
	}
	if len(l.SafeDetails) > 0 {
		p.wrap("  ", "details: "+details(l.SafeDetails), width)
	}
	for _, e := range l.CompletedEffects {
		p.wrap("  ", strings.TrimSpace("done: "+e.Step+" "+Clean(e.EvidenceRef)), width)
	}
	for _, e := range l.Evidence {
		p.wrap("  ", strings.TrimSpace(fmt.Sprintf("learned since: %s is %s, by %s %s", e.Step, commitWord(e.CommitState), Clean(e.By), Clean(e.EvidenceRef))), width)
	}
	if len(l.RemainingSteps) > 0 {
		p.wrap("  ", "not started: "+strings.Join(l.RemainingSteps, " "), width)
	}
	if len(l.Request) > 0 {
		p.wrap("  ", "request: "+Clean(string(l.Request)), width)
	}
	if l.Replays > 0 {
		p.wrap("  ", fmt.Sprintf("replayed %s, at most %d", Count(l.Replays, "time", "times"), deadletter.MaxReplays), width)
	}
	if l.Claim != nil && l.Claim.Until.Time().After(now) {
		p.wrap("  ", "claimed by "+Clean(l.Claim.By)+" for "+Age(l.Claim.Until.Time().Sub(now)), width)
	}
	p.Line("")
	for _, a := range l.AllowedActions {
		p.Line("  %s", command(a, l))
	}
}

func doubt(c envelope.CommitState) string {
	switch c {
	case envelope.Unknown:
		return "nobody knows whether it happened"
	case envelope.Committed:
		return "it happened, its result was refused"
	}
	return "nothing happened"
}

// command is what to type for an action.
func command(a deadletter.Action, l *deadletter.Letter) string {
	line := fmt.Sprintf("reconciler deadletters %s %s/%s --letter %s", a, l.Tenant, l.RunID, l.ID)
	if a == deadletter.Resolve {
		line += " --commit-state committed|not_committed"
	}
	if key, n, ok := l.Addition(); ok && a == deadletter.Replay {
		line += fmt.Sprintf(` --add-budget '{"%s":%d}'`, key, n)
	}
	if a == deadletter.Replay && l.Code != "" && envelope.RowFor(l.Code, envelope.Write).Directive == envelope.AfterInputFix {
		line += " --args '{…}'" // the same again would end the same
	}
	if (a == deadletter.Resolve || a == deadletter.Approve) && len(l.Open) > 1 {
		line += " --step STEP"
	}
	return line + ` --reason "…"`
}

// wrap prints text in lines of at most width characters, each after indent.
func (p *Printer) wrap(indent, text string, width int) {
	for _, line := range wrapped(text, width-len(indent)) {
		p.Line("%s%s", indent, line)
	}
}

// wrapped breaks text at spaces into lines of at most width characters; a width below 20 breaks nothing.
func wrapped(text string, width int) []string {
	if width < 20 || len([]rune(text)) <= width {
		return []string{text}
	}
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		for len([]rune(word)) > width {
			if line != "" {
				lines, line = append(lines, line), ""
			}
			lines = append(lines, string([]rune(word)[:width]))
			word = string([]rune(word)[width:])
		}
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// Letters prints a page of letters as a table.
func (p *Printer) Letters(list []deadletter.Summary, now time.Time, width int) {
	rows := make([][]Cell, len(list))
	for i := range list {
		l := &list[i]
		claim := ""
		if l.Claim != nil && l.Claim.Until.Time().After(now) {
			claim = l.Claim.By + " " + Age(l.Claim.Until.Time().Sub(now))
		}
		actions := make([]string, len(l.AllowedActions))
		for k, a := range l.AllowedActions {
			actions[k] = string(a)
		}
		done := Cell{commitWord(l.CommitState), Plain}
		if l.CommitState == envelope.Unknown {
			done.Style = Yellow
		}
		rows[i] = []Cell{
			{Text: Age(now.Sub(l.CreatedAt.Time()))},
			{Text: l.Tenant + "/" + l.RunID, Style: Bold},
			{Text: l.Owner},
			{l.ReasonCode, outcomeStyle[l.Outcome]},
			{Text: l.Step},
			{Text: l.Tool},
			done,
			{Text: claim},
			{Text: strings.Join(actions, ",")},
		}
	}
	p.Table([]Column{
		{"AGE", 0, 0}, {"RUN", 26, 0}, {"OWNER", 12, 3}, {"REASON", 24, 1}, {"STEP", 12, 4}, {"TOOL", 12, 7}, {"DONE?", 0, 2}, {"CLAIMED", 8, 5}, {"ACTIONS", 10, 6},
	}, rows, width)
}

// Runs prints a page of runs as a table.
func (p *Printer) Runs(list []run.View, now time.Time, width int) {
	rows := make([][]Cell, len(list))
	for i := range list {
		v := &list[i]
		done := 0
		for _, s := range v.Steps {
			if s.State == run.OK {
				done++
			}
		}
		rows[i] = []Cell{
			{Text: Age(now.Sub(v.UpdatedAt.Time()))},
			{Text: v.Tenant + "/" + v.RunID, Style: Bold},
			{v.State, stateStyle(v.State)},
			{Text: v.ReasonCode},
			{Text: fmt.Sprintf("%d/%d", done, len(v.Steps))},
			{Text: fmt.Sprint(v.Episode)},
			{Text: v.Workflow},
			{Text: v.Owner},
		}
	}
	p.Table([]Column{
		{"CHANGED", 0, 0}, {"RUN", 26, 0}, {"STATE", 0, 0}, {"REASON", 24, 1}, {"STEPS", 0, 2}, {"EPISODE", 0, 5}, {"WORKFLOW", 8, 3}, {"OWNER", 8, 4},
	}, rows, width)
}
