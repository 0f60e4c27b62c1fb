package observe

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Readiness answers /readyz from named conditions and warnings. A process is ready when no condition stands; a warning is
// shown and keeps it ready. Conditions come in two ways: they are set and cleared by whoever learns of them (starting,
// draining), or they are asked for at each request (connected?). Where many may meet the same trouble at once, as runs do,
// the condition stands while any of them has it. Safe for concurrent use.
type Readiness struct {
	mu       sync.Mutex
	reasons  map[string]string
	shared   map[string]map[string]string // name, who, reason
	warnings map[string]string
	checks   map[string]func() string
}

// NewReadiness begins with the condition "starting", which Started clears.
func NewReadiness() *Readiness {
	return &Readiness{
		reasons:  map[string]string{"starting": "the process is starting"},
		warnings: map[string]string{}, shared: map[string]map[string]string{},
		checks: map[string]func() string{},
	}
}

// Started says that the start is over.
func (r *Readiness) Started() { r.Clear("starting") }

// Draining says that the process takes no more work. Nothing clears it.
func (r *Readiness) Draining() { r.Block("draining", "the process is draining and takes no more work") }

// Block makes the process unready under this name, with one line that says why. The reason is shown to whoever asks, so
// it holds no text from upstream.
func (r *Readiness) Block(name, reason string) { r.put(r.reasons, name, reason) }

// Clear ends the condition of this name.
func (r *Readiness) Clear(name string) { r.put(r.reasons, name, "") }

// BlockFor makes the process unready under this name for as long as who, one of many, does not clear it for itself.
func (r *Readiness) BlockFor(name, who, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shared[name] == nil {
		r.shared[name] = map[string]string{}
	}
	r.shared[name][who] = oneLine(reason)
}

// ClearFor ends the condition of this name for who; it stands while anybody else has it.
func (r *Readiness) ClearFor(name, who string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.shared[name], who)
	if len(r.shared[name]) == 0 {
		delete(r.shared, name)
	}
}

// Warn shows a line in /readyz that does not make the process unready; an empty text takes it back.
func (r *Readiness) Warn(name, text string) { r.put(r.warnings, name, text) }

// Check adds a condition that is asked for at each request: it answers "" when all is well, else the reason. It must
// return at once and be safe for concurrent use.
func (r *Readiness) Check(name string, ask func() string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks[name] = ask
}

func (r *Readiness) put(m map[string]string, name, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text == "" {
		delete(m, name)
		return
	}
	m[name] = oneLine(text)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Status lists what keeps the process from being ready and what it warns of, each as "name: text", sorted by name.
func (r *Readiness) Status() (reasons, warnings []string) {
	r.mu.Lock()
	checks := make(map[string]func() string, len(r.checks))
	for name, ask := range r.checks {
		checks[name] = ask
	}
	for name, text := range r.reasons {
		reasons = append(reasons, name+": "+text)
	}
	for name, by := range r.shared {
		line := name + ": " + by[slices.Min(slices.Collect(maps.Keys(by)))]
		if len(by) > 1 {
			line += fmt.Sprintf(" (and %d more)", len(by)-1)
		}
		reasons = append(reasons, line)
	}
	for name, text := range r.warnings {
		warnings = append(warnings, name+": "+text)
	}
	r.mu.Unlock()
	// The checks run outside the lock: one of them may well set a condition.
	for name, ask := range checks {
		if text := ask(); text != "" {
			reasons = append(reasons, name+": "+oneLine(text))
		}
	}
	slices.Sort(reasons)
	slices.Sort(warnings)
	return reasons, warnings
}

// ServeHTTP answers 200 "ready" or 503 "not ready", then one line per reason and warning.
func (r *Readiness) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	reasons, warnings := r.Status()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	word := "ready"
	if len(reasons) > 0 {
		word = "not ready"
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, word)
	for _, line := range reasons {
		fmt.Fprintln(w, line)
	}
	for _, line := range warnings {
		fmt.Fprintln(w, "warning: "+line)
	}
}
