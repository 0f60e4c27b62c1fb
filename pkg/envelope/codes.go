package envelope

import (
	"regexp"
	"strings"
)

// Row says how a failure behaves: one row of the table of codes, settled for the tool's effect.
type Row struct {
	Code        Code        `json:"code"`
	Category    Category    `json:"category"`
	ReasonCode  string      `json:"reason_code"`
	CommitState CommitState `json:"commit_state"`
	Directive   Directive   `json:"directive"`
	NextAction  NextAction  `json:"next_action"`
	Outcome     Word        `json:"outcome"`
}

var byCode = func() map[Code]*entry {
	m := make(map[Code]*entry, len(table))
	for i := range table {
		m[table[i].Code] = &table[i]
	}
	return m
}()

// Codes lists the table's rows in the contract's order.
func Codes() []Row {
	rows := make([]Row, len(table))
	for i := range table {
		rows[i] = table[i].Row
	}
	return rows
}

// Known reports whether the code is the contract's own.
func Known(c Code) bool { return byCode[c] != nil }

// RowFor returns the row of one of the contract's codes as it reads for a tool of this effect after a dispatch. It
// panics on a code that is not in the table: codes from outside go through Custom.
func RowFor(c Code, effect Effect) Row {
	e := byCode[c]
	if e == nil {
		panic("envelope: no such code: " + string(c))
	}
	row := e.Row
	if effect == Write {
		switch c {
		case CodeResultInvalid, CodeResultTooLarge, CodeWorkerLost, CodeInternalError:
			row.CommitState, row.Directive, row.NextAction, row.Outcome = Unknown, Never, VerifyOperation, UnknownNow
		}
	}
	return row
}

// CodePattern is the regular expression of a code, the contract's own and a config's.
const CodePattern = `^[A-Z][A-Z0-9_]{2,63}$`

var customCode = regexp.MustCompile(CodePattern)

// ValidCode reports whether a config may use the code.
func ValidCode(c Code) bool { return customCode.MatchString(string(c)) }

// Custom builds the row of a config's rule or of a reply in envelope form: the code's own row where the contract has one,
// else what follows from the category (contract §6). Fields that are "" are filled in; commit Committed is the caller's
// business (it is a success). An unknown commit state on a write reads as OUTCOME_UNKNOWN does.
func Custom(c Code, category Category, commit CommitState, effect Effect) Row {
	var row Row
	if Known(c) {
		row = RowFor(c, effect)
		if commit == NotCommitted && row.CommitState == Unknown {
			// The rule says that nothing was done: the row as it reads for a read.
			row = RowFor(c, Read)
			row.CommitState = NotCommitted
		}
	} else {
		row = Row{Code: c, Category: category, ReasonCode: strings.ToLower(string(c)), CommitState: NotCommitted}
		switch category {
		case Validation:
			row.Directive, row.NextAction, row.Outcome = AfterInputFix, CorrectInput, Fatal
		case Authorization, Conflict:
			row.Directive, row.NextAction, row.Outcome = Never, Escalate, Fatal
		case Internal:
			row.Directive, row.NextAction, row.Outcome = Never, Escalate, NeedsHuman
		default:
			row.Category = Dependency
			row.Directive, row.NextAction, row.Outcome = AfterDelay, WaitAndRetry, Retryable
		}
	}
	if commit == Unknown && effect == Write && row.Outcome != NeedsHuman {
		row.CommitState, row.Directive, row.NextAction, row.Outcome = Unknown, Never, VerifyOperation, UnknownNow
	}
	return row
}

// Escalated is the row when no further attempt may follow although the code alone would allow one: directive never, next
// action escalate, for a person.
func (r Row) Escalated() Row {
	r.Directive, r.NextAction, r.Outcome = Never, Escalate, NeedsHuman
	return r
}

// NeverRetried is "retry never" of contract §6: directive never, next action escalate, fatal.
func (r Row) NeverRetried() Row {
	r.Directive, r.NextAction, r.Outcome = Never, Escalate, Fatal
	return r
}

// Messages returns the fixed sentences of a row: for the agent, for the end user, for the operator. They never hold text
// from upstream.
func (r Row) Messages() (agent, user, operator string) {
	if e := byCode[r.Code]; e != nil {
		return e.agent, e.user, e.operator
	}
	base := map[Category]Code{
		Validation: CodeUpstreamRejectedInput, Authorization: CodeUpstreamDenied, Conflict: CodeStateConflict,
		Dependency: CodeUpstreamError, Internal: CodeInternalError,
	}[r.Category]
	if r.CommitState == Unknown {
		base = CodeOutcomeUnknown
	}
	if e := byCode[base]; e != nil {
		return e.agent, e.user, e.operator
	}
	e := byCode[CodeInternalError]
	return e.agent, e.user, e.operator
}
