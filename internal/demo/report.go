package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/terminal"
	"github.com/agentrun/executor/pkg/envelope"
)

// Verdict is what the provider's own books say about the case.
type Verdict struct {
	Sent     int   // requests to give the credit that reached the provider
	Credits  int   // entries of its ledger
	Minor    int64 // money given, in minor units
	Problems []string
}

// Judge compares the provider's books with the end of the run. The demo holds only if there are no problems: the credit
// was sent once, is in the ledger once, for the right operation, and the run says the same.
func Judge(p *Provider, end *envelope.Outcome) Verdict {
	var v Verdict
	for _, c := range p.Calls() {
		if c.Tool == "apply_credit" {
			v.Sent++
		}
	}
	ref := Tenant + "/" + Run + "/apply_credit"
	for _, c := range p.Ledger() {
		v.Credits++
		v.Minor += c.AmountMinor
		if c.OperationRef != ref || c.InvoiceID != "inv_7" || c.AmountMinor != 500 {
			v.Problems = append(v.Problems, fmt.Sprintf("the ledger has a credit that nobody asked for: %+v", c))
		}
	}
	if v.Sent != 1 {
		v.Problems = append(v.Problems, fmt.Sprintf("the credit was sent %d times, wanted 1", v.Sent))
	}
	if v.Credits != 1 {
		v.Problems = append(v.Problems, fmt.Sprintf("the ledger has %d credits, wanted 1", v.Credits))
	}
	switch {
	case end == nil:
		v.Problems = append(v.Problems, "the run did not end")
	case end.Outcome != envelope.OK:
		v.Problems = append(v.Problems, fmt.Sprintf("the run ended %s (%s), wanted ok", end.Outcome, end.ReasonCode))
	case len(end.CompletedEffects) != 1 || end.CompletedEffects[0].OperationRef != ref:
		v.Problems = append(v.Problems, fmt.Sprintf("the run lists the effects %+v, wanted the credit alone", end.CompletedEffects))
	case v.Credits == 1 && end.CompletedEffects[0].EvidenceRef != p.Ledger()[0].ID:
		v.Problems = append(v.Problems, fmt.Sprintf("the run's proof is %q, the ledger says %q", end.CompletedEffects[0].EvidenceRef, p.Ledger()[0].ID))
	}
	return v
}

// Show prints every call that the provider saw, and the verdict.
func Show(out *terminal.Printer, p *Provider, v Verdict) {
	out.Line("")
	out.Line("%s", out.Paint(terminal.Bold, "What the billing provider saw"))
	for _, c := range p.Calls() {
		style := terminal.Green
		if c.Status >= 400 {
			style = terminal.Yellow
		}
		key := ""
		if c.Key != "" {
			key = "key " + c.Key
		}
		line := fmt.Sprintf("%s  %s  %s  %s  %s",
			out.Paint(terminal.Dim, c.At.UTC().Format("15:04:05.000")),
			terminal.Pad(terminal.Clean(c.Method+" "+clip(c.Path, 34)), 39),
			out.Paint(style, fmt.Sprint(c.Status)),
			terminal.Pad(c.Said, 36),
			out.Paint(terminal.Dim, terminal.Clean(key)))
		out.Line("%s", strings.TrimRight(line, " "))
	}
	out.Line("")
	out.Line("%s", out.Paint(terminal.Bold, "Where the money went"))
	for _, c := range p.Ledger() {
		out.Line("  %s  %s to invoice %s for %s", terminal.Clean(c.ID), money(c.AmountMinor), terminal.Clean(c.InvoiceID), terminal.Clean(c.OperationRef))
	}
	if len(v.Problems) == 0 {
		out.Line("%s", out.Paint(terminal.Green, fmt.Sprintf("  The credit was sent once and given once: %s in all.", money(v.Minor))))
		return
	}
	for _, problem := range v.Problems {
		out.Line("%s", out.Paint(terminal.Red, "  "+terminal.Clean(problem)))
	}
}

// Intro says what is about to be seen.
func Intro(out *terminal.Printer, elapsed time.Duration) {
	out.Line("%s", out.Paint(terminal.Bold, "A billing case in three steps: load the invoice, apply a credit of 5.00 EUR, draft the reply."))
	out.Line("The provider refuses the first two lookups (429, Retry-After: 1) and falls over on the first draft (500).")
	out.Line("%s", out.Paint(terminal.Dim, fmt.Sprintf("NATS, executor, reconciler and provider run in this process (ready in %s).", elapsed.Round(time.Millisecond))))
	out.Line("")
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most-1] + "…"
}
