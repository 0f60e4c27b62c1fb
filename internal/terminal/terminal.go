// Package terminal prints for people: one aligned line per outcome, with colour where the output is a terminal that wants
// it. It decides nothing about runs.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-isatty"

	"github.com/agentrun/executor/pkg/envelope"
)

// Printer writes lines to one output. Safe for concurrent use.
type Printer struct {
	mu     sync.Mutex
	w      io.Writer
	tty    bool
	colour bool
	status bool // a status line stands on the terminal
}

// Is reports whether w is a terminal.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// New prints to w. Colour is used on a terminal unless NO_COLOR is set to anything or TERM is dumb.
func New(w io.Writer, getenv func(string) string) *Printer {
	return newPrinter(w, Is(w), getenv)
}

// Piped prints to w as if a program read it, whatever w is.
func Piped(w io.Writer) *Printer {
	return newPrinter(w, false, func(string) string { return "" })
}

func newPrinter(w io.Writer, tty bool, getenv func(string) string) *Printer {
	return &Printer{w: w, tty: tty, colour: tty && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"}
}

// Terminal reports whether the output is one.
func (p *Printer) Terminal() bool { return p.tty }

// Style is how a piece of text is shown where there is colour.
type Style string

// The styles in use.
const (
	Plain  Style = ""
	Bold   Style = "1"
	Dim    Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
	Cyan   Style = "36"
)

// Paint returns the text in this style, or unchanged where there is no colour.
func (p *Printer) Paint(s Style, text string) string {
	if !p.colour || s == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// Line prints one line. Control characters in it are the caller's business; see Clean.
func (p *Printer) Line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintf(p.w, format+"\n", args...)
}

// Status shows a line that the next one replaces, on a terminal only: what is being waited for.
func (p *Printer) Status(text string) {
	if !p.tty {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	if text != "" {
		fmt.Fprint(p.w, p.Paint(Dim, text))
		p.status = true
	}
}

func (p *Printer) clear() {
	if p.status {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.status = false
	}
}

// Clean removes what could move the cursor or colour the text: ids are harmless, but what comes from a peer is checked.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError || unicode.Is(unicode.Bidi_Control, r) {
			return '?'
		}
		return r
	}, s)
}

// Pad fills text with spaces on the right up to width; longer text is left as it is.
func Pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

var outcomeStyle = map[envelope.Word]Style{
	envelope.OK: Green, envelope.Retryable: Yellow, envelope.UnknownNow: Yellow,
	envelope.NeedsHuman: Red, envelope.Fatal: Red, envelope.Cancelled: Cyan,
}

// Outcome prints an outcome as one line: when, which step or the run, what it came to, which attempt, why, and what
// happens next.
func (p *Printer) Outcome(o *envelope.Outcome) {
	name, style := o.Step, Plain
	if o.Scope == envelope.RunScope {
		name, style = "run "+o.RunID, Bold
	} else if name == "" {
		name = "(job)"
	}
	attempt := ""
	if o.Attempt != nil && *o.Attempt > 0 {
		attempt = "#" + strconv.Itoa(*o.Attempt)
	}
	line := fmt.Sprintf("%s  %s  %s  %s  %s",
		p.Paint(Dim, o.At.Time().Format("15:04:05.000")),
		p.Paint(style, Pad(Clean(name), 16)),
		p.Paint(outcomeStyle[o.Outcome], Pad(Clean(string(o.Outcome)), 11)),
		p.Paint(Dim, Pad(attempt, 3)),
		Clean(because(o)))
	p.Line("%s", strings.TrimRight(line, " "))
}

// because is the rest of an outcome's line.
func because(o *envelope.Outcome) string {
	var parts []string
	if o.ReasonCode != "" {
		parts = append(parts, o.ReasonCode)
	}
	switch o.Outcome {
	case envelope.Retryable:
		if wait := o.NotBefore.Sub(o.At); wait > 0 {
			parts = append(parts, "next attempt in "+wait.Round(10*time.Millisecond).String())
		} else {
			parts = append(parts, "next attempt now")
		}
	case envelope.OK:
		if ref := evidence(o); ref != "" {
			parts = append(parts, "proven by "+ref)
		}
	default:
		if o.Scope == envelope.RunScope && o.FailedStep != "" {
			parts = append(parts, "at "+o.FailedStep)
		}
		if o.NextAction != "" {
			parts = append(parts, "next: "+string(o.NextAction))
		}
	}
	if o.Scope == envelope.RunScope {
		for _, e := range o.CompletedEffects {
			parts = append(parts, strings.TrimSpace("done: "+e.Step+" "+e.EvidenceRef))
		}
		if len(o.RemainingSteps) > 0 {
			parts = append(parts, "not started: "+strings.Join(o.RemainingSteps, " "))
		}
	}
	return strings.Join(parts, ", ")
}

func evidence(o *envelope.Outcome) string {
	if o.Envelope == nil || o.Envelope.Verification == nil {
		return ""
	}
	return o.Envelope.Verification.EvidenceRef
}

// IsInput reports whether r is a terminal that a person types into.
func IsInput(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// Count is a number with what it counts: "1 line", "2 lines".
func Count[N int | int64 | uint64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
