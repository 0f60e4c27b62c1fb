package fieldcases

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// change wakes everyone who waits for a change of something.
type change struct {
	mu sync.Mutex
	ch chan struct{}
}

func newChange() *change { return &change{ch: make(chan struct{})} }

func (s *change) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}

func (s *change) raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}

// call is one request for a tool as it arrived.
type call struct {
	Tool, Ref, Key, Worker string
	Nth                    int // of its operation, from 1
	At                     time.Time
	Body                   string
}

// row is one committed write in the provider's ledger.
type row struct {
	ID  string `json:"id"`
	Ref string `json:"ref"`
	Key string `json:"key"`
}

// plan is what the provider does with a request.
type plan struct {
	Status      int           // 0: 200
	Body        string        // empty: the row, or an id
	Commit      bool          // the write is done when it arrives
	CommitAfter time.Duration // the write is done this long after its arrival, whether or not the caller is still there
	Delay       time.Duration // before the answer; a caller that leaves ends the wait
	Drop        bool          // the connection is closed without an answer
	Hang        bool          // no answer until the caller leaves
	RetryAfter  string
}

func done() plan                { return plan{Commit: true} }
func refuse(status int) plan    { return plan{Status: status, Body: `{"error":"no"}`} }
func nothing() plan             { return plan{} }
func slow(d time.Duration) plan { return plan{Commit: true, Delay: d} }

// provider is the far side of every tool. It is not idempotent: each request that commits adds a row. Safe for concurrent
// use.
type provider struct {
	URL     string
	changed *change

	mu      sync.Mutex
	calls   []call
	nth     map[string]int
	rows    map[string][]row
	lookups []call
	plan    func(c call) plan             // nil: everything works
	looked  func(ref string, n int) *plan // nil, or nil plan: the ledger answers; n counts the lookups of the operation
	asked   map[string]int
}

func startProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{changed: newChange(), nth: map[string]int{}, rows: map[string][]row{}, asked: map[string]int{}}
	server := httptest.NewServer(p)
	p.URL = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return p
}

// script sets what the provider does; writes commit only where the plan says so.
func (p *provider) script(f func(c call) plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = f
}

// scriptLookups sets what lookups are told.
func (p *provider) scriptLookups(f func(ref string, n int) *plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looked = f
}

// ServeHTTP answers /call/TOOL and /lookup/TOOL?ref=.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller went away in the middle of its request: nothing was asked
	}
	kind, tool, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	c := call{
		Tool: tool, Ref: r.URL.Query().Get("ref"), Key: r.Header.Get("Idempotency-Key"), Worker: r.Header.Get("X-Worker"),
		At: time.Now(), Body: string(body),
	}
	if kind == "lookup" {
		p.lookup(w, r, c)
		return
	}
	p.mu.Lock()
	p.nth[c.Ref]++
	c.Nth = p.nth[c.Ref]
	p.calls = append(p.calls, c)
	script := p.plan
	p.mu.Unlock()
	do := plan{Commit: true}
	if script != nil {
		do = script(c)
	}
	id := fmt.Sprintf("%s#%d", c.Ref, c.Nth)
	if r.Method == http.MethodPost && do.Commit {
		p.commit(id, c)
	}
	if r.Method == http.MethodPost && do.CommitAfter > 0 {
		time.AfterFunc(do.CommitAfter, func() { p.commit(id, c) })
	}
	p.changed.raise()
	answer(w, r, do, fmt.Sprintf(`{"id":%q}`, id))
}

func (p *provider) commit(id string, c call) {
	p.mu.Lock()
	p.rows[c.Ref] = append(p.rows[c.Ref], row{ID: id, Ref: c.Ref, Key: c.Key})
	p.mu.Unlock()
	p.changed.raise()
}

func (p *provider) lookup(w http.ResponseWriter, r *http.Request, c call) {
	p.mu.Lock()
	p.asked[c.Ref]++
	c.Nth = p.asked[c.Ref]
	p.lookups = append(p.lookups, c)
	script := p.looked
	rows := p.rows[c.Ref]
	if rows == nil {
		rows = []row{}
	}
	found, err := json.Marshal(map[string]any{"items": rows})
	p.mu.Unlock()
	p.changed.raise()
	if err != nil {
		http.Error(w, "no ledger", http.StatusInternalServerError)
		return
	}
	do := &plan{}
	if script != nil {
		if told := script(c.Ref, c.Nth); told != nil {
			do = told
		}
	}
	answer(w, r, *do, string(found))
}

func answer(w http.ResponseWriter, r *http.Request, do plan, body string) {
	if do.Hang {
		<-r.Context().Done()
		return
	}
	if do.Delay > 0 {
		timer := time.NewTimer(do.Delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
	if do.Drop {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = conn.Close()
		}
		return
	}
	if do.Body != "" {
		body = do.Body
	}
	w.Header().Set("Content-Type", "application/json")
	if do.RetryAfter != "" {
		w.Header().Set("Retry-After", do.RetryAfter)
	}
	w.WriteHeader(max(do.Status, http.StatusOK))
	_, _ = io.WriteString(w, body) // a caller that went away learns nothing, and the call stands
}

// callsOf are the requests of one operation, or of all for "".
func (p *provider) callsOf(ref string) []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []call
	for _, c := range p.calls {
		if ref == "" || c.Ref == ref {
			out = append(out, c)
		}
	}
	return out
}

func (p *provider) rowsOf(ref string) []row {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]row(nil), p.rows[ref]...)
}

func (p *provider) lookupsOf(ref string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, l := range p.lookups {
		if ref == "" || l.Ref == ref {
			n++
		}
	}
	return n
}

// twice lists the operations that have more than one row.
func (p *provider) twice() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for ref, rows := range p.rows {
		if len(rows) > 1 {
			out = append(out, ref)
		}
	}
	return out
}

// lookupAt is when the n-th lookup of all arrived, from 0.
func (p *provider) lookupAt(n int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lookups[n].At
}
