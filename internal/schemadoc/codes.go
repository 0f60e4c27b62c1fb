package schemadoc

import (
	"bytes"
	"fmt"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
)

const codesHead = `# Codes

Printed from the table in pkg/envelope by ` + "`go run ./internal/schemadoc/gen`" + `; do not edit it here.

Every failure that a caller, an operator or a dashboard can see has one of these codes or one of a tool's own. The
` + "`reason_code`" + ` is what alerts, dashboards and tests go by. Where a write behaves otherwise than a read once it was
dispatched, both are given. *Alert* is what the end of one run for this reason raises by itself; five ends of a tenant's
runs for one fatal reason within five minutes are paged as well.

`

const codesFoot = `
A tool's config may add codes of its own, ` + "`[A-Z][A-Z0-9_]{2,63}`" + `; their reason_code is the code in lower case, and
what a rule leaves out follows from its category:

| category | directive | next_action | outcome |
| --- | --- | --- | --- |
`

const messagesHead = `
## Messages

Fixed sentences: nothing from upstream is ever part of one.

`

// codes prints docs/codes.md.
func codes() []byte {
	var b bytes.Buffer
	b.WriteString(codesHead)
	b.WriteString("| code | category | reason_code | commit_state | directive | next_action | outcome | alert |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range envelope.Codes() {
		w := envelope.RowFor(r.Code, envelope.Write)
		commit := both(string(r.CommitState), string(w.CommitState))
		if r.Code == envelope.CodePoisonJob {
			commit = both(string(r.CommitState), "as last established")
		}
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s | %s | %s | %s | %s |\n", r.Code, r.Category, r.ReasonCode, commit,
			both(string(r.Directive), string(w.Directive)), both(string(r.NextAction), string(w.NextAction)),
			both(string(r.Outcome), string(w.Outcome)), alert(r))
	}
	b.WriteString(codesFoot)
	for _, c := range []envelope.Category{envelope.Validation, envelope.Authorization, envelope.Conflict, envelope.Dependency, envelope.Internal} {
		r := envelope.Custom("A_TOOLS_OWN", c, envelope.NotCommitted, envelope.Read)
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c, r.Directive, r.NextAction, r.Outcome)
	}
	r := envelope.Custom("A_TOOLS_OWN", envelope.Conflict, envelope.Unknown, envelope.Write)
	fmt.Fprintf(&b, "| any, with `commit_state: unknown` on a write | %s | %s | %s |\n", r.Directive, r.NextAction, r.Outcome)
	b.WriteString(messagesHead)
	b.WriteString("| code | to the agent | to the end user | to the operator |\n| --- | --- | --- | --- |\n")
	for _, r := range envelope.Codes() {
		agent, user, operator := r.Messages()
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Code, agent, user, operator)
	}
	return b.Bytes()
}

func both(read, write string) string {
	if read == write {
		return read
	}
	return "read: " + read + "; write: " + write
}

// alert is the severity of a code that ends a run. A retry and a lookup end nothing.
func alert(r envelope.Row) string {
	if s := engine.SeverityOf(r.ReasonCode); s != deadletter.None && r.Outcome.Terminal() {
		return string(s)
	}
	return ""
}
