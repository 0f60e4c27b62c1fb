package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentrun/executor/internal/pause"
)

// Tool is one tool of the fleet's config, and how its far side behaves.
type Tool struct {
	Name    string
	Write   bool
	Timeout time.Duration
	Slowest time.Duration // a request that commits late commits within this time of its arrival
	Window  time.Duration // consistency window; 0: there is no lookup
	Always  bool          // verify.always
	PerTry  bool          // idempotency_key: per_attempt
	Keyed   bool          // the far side honours the key, and the config says so
	Command bool          // a program, whose effects end with its call: see command.go
}

// The tools: the names say what is special about each. The window covers the latest commit, and the time until a lookup
// sees it, with room for a busy machine.
var tools = []Tool{
	{Name: "load", Timeout: 500 * time.Millisecond},
	{Name: "pay", Write: true, Timeout: 600 * time.Millisecond, Slowest: 400 * time.Millisecond, Window: 1200 * time.Millisecond},
	{Name: "ship", Write: true, Timeout: 2500 * time.Millisecond, Slowest: 1500 * time.Millisecond, Window: 2500 * time.Millisecond},
	{Name: "book", Write: true, Timeout: 600 * time.Millisecond, Slowest: 300 * time.Millisecond, Window: 1100 * time.Millisecond, Always: true},
	{Name: "note", Write: true, Timeout: 600 * time.Millisecond, Slowest: 300 * time.Millisecond, Window: 1100 * time.Millisecond, PerTry: true},
	{Name: "mail", Write: true, Timeout: 600 * time.Millisecond, Slowest: 300 * time.Millisecond},
	{Name: "sync", Write: true, Timeout: 600 * time.Millisecond, Slowest: 300 * time.Millisecond, Keyed: true},
	// Its window is shorter than it may take. It covers the pause of an executor, which nothing else ends.
	{Name: "work", Write: true, Timeout: 7 * time.Second, Slowest: 5 * time.Second, Window: 2600 * time.Millisecond, Command: true},
}

func toolNamed(name string) *Tool {
	for i := range tools {
		if tools[i].Name == name {
			return &tools[i]
		}
	}
	return nil
}

// Unseen is how long a committed row may be invisible to lookups.
const Unseen = 200 * time.Millisecond

// Request is one request for a tool as it arrived.
type Request struct {
	Tool, Ref, Key, Worker string
	Nth                    int // of its operation ref, from 1
	At                     time.Time
	Plan                   string
	Done                   time.Time // when it was answered or dropped; zero: not yet
	After                  bool      // its operation was committed when it arrived
}

// Row is one committed write in the ledger.
type Row struct {
	ID, Tool, Ref, Key, Worker string
	Nth                        int
	At                         time.Time
}

// Lookup is one question about an operation.
type Lookup struct {
	Tool, Ref, Answer string
	At                time.Time
}

// Provider is the far side of all tools. It is not idempotent, but for the tool that says so: each request that commits
// adds a row to the ledger. Safe for concurrent use.
type Provider struct {
	URL  string
	seed uint64
	http *http.Server

	mu       sync.Mutex
	requests map[string][]*Request // by operation ref
	rows     map[string][]Row
	lookups  map[string][]Lookup
	total    int
	asked    int
	script   func(*Request) string // wins over the seed if it is set and returns a plan; called with mu held
	arrived  func(Request)         // told of each request; may be nil
}

// NewProvider starts a provider whose behaviour follows from the seed.
func NewProvider(seed uint64) (*Provider, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("provider: %w", err)
	}
	p := &Provider{
		URL: "http://" + l.Addr().String(), seed: seed,
		requests: map[string][]*Request{}, rows: map[string][]Row{}, lookups: map[string][]Lookup{},
	}
	p.http = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = p.http.Serve(l) }()
	return p, nil
}

// Close ends the provider.
func (p *Provider) Close() { _ = p.http.Close() }

// chance is a number in [0, 1) that follows from the seed and these words.
func (p *Provider) chance(words ...string) float64 {
	h := fnv.New64a()
	fmt.Fprint(h, p.seed, words)
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return float64(x>>11) / (1 << 53)
}

// ServeHTTP answers /call/TOOL and /lookup/TOOL.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the caller went away in the middle of its request: nothing was asked
	}
	kind, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	tool := toolNamed(name)
	switch {
	case tool != nil && kind == "call":
		p.call(w, r, tool)
	case tool != nil && kind == "lookup":
		p.lookup(w, r, tool)
	case tool != nil && kind == "begin":
		p.begin(w, r, tool)
	case tool != nil && kind == "commit":
		p.late(w, r, tool)
	default:
		http.NotFound(w, r)
	}
}

// plans of writes and reads with their weights. commit: done before the answer; late: done after a while, whether or not
// the caller is still there; none: nothing is done.
var (
	writePlans = []plan{
		{"commit,answer", 46},
		{"commit,slow", 10},
		{"late,answer", 8},
		{"commit,drop", 9},
		{"none,drop", 5},
		{"late,drop", 4},
		{"commit,hang", 2},
		{"none,hang", 2},
		{"none,503", 5},
		{"commit,500", 2},
		{"none,500", 2},
		{"none,429", 2},
		{"none,409", 1},
		{"none,400", 1},
		{"commit,cut", 1},
	}
	// Of a command: leave ends it at once, with what it has put into the background.
	commandPlans = []plan{{"late,answer", 60}, {"late,leave", 10}, {"commit,answer", 15}, {"commit,fail", 5}, {"none,fail", 10}}
	readPlans    = []plan{{"read,answer", 70}, {"read,slow", 12}, {"none,drop", 6}, {"none,503", 6}, {"none,hang", 2}, {"none,429", 4}}
)

type plan struct {
	name   string
	weight int
}

func (p *Provider) plan(q *Request, tool *Tool) string {
	if p.script != nil {
		if s := p.script(q); s != "" {
			return s
		}
	}
	plans := readPlans
	switch {
	case tool.Command && q.Nth > 4:
		return "commit,answer"
	case tool.Command:
		plans = commandPlans
	case tool.Write:
		plans = writePlans
	}
	if q.Nth > 4 {
		return plans[0].name // whatever happens, an operation comes to its end
	}
	sum := 0
	for _, x := range plans {
		sum += x.weight
	}
	at := int(p.chance("plan", q.Ref, strconv.Itoa(q.Nth)) * float64(sum))
	for _, x := range plans {
		if at -= x.weight; at < 0 {
			return x.name
		}
	}
	return plans[0].name
}

func (p *Provider) call(w http.ResponseWriter, r *http.Request, tool *Tool) {
	q := &Request{
		Tool: tool.Name, Ref: r.Header.Get("Agentrun-Operation-Ref"), Key: r.Header.Get("Idempotency-Key"), Worker: r.Header.Get("X-Worker"), At: time.Now(),
	}
	if q.Ref == "" {
		q.Ref = r.URL.Query().Get("ref")
	}
	p.note(q, tool)
	did, how, _ := strings.Cut(q.Plan, ",")
	wait := time.Duration(p.chance("wait", q.Ref, strconv.Itoa(q.Nth)) * float64(tool.Slowest))
	id := "read-" + q.Ref
	switch did {
	case "commit":
		id = p.commit(q, tool)
	case "late":
		if how == "drop" {
			time.AfterFunc(wait, func() { p.commit(q, tool) })
		} else {
			time.Sleep(wait)
			id = p.commit(q, tool)
		}
	}
	p.answer(w, r, q, how, id, wait)
	p.mu.Lock()
	q.Done = time.Now()
	p.mu.Unlock()
}

// note takes a request in, and says what becomes of it.
func (p *Provider) note(q *Request, tool *Tool) {
	p.mu.Lock()
	p.requests[q.Ref] = append(p.requests[q.Ref], q)
	q.Nth, q.After = len(p.requests[q.Ref]), len(p.rows[q.Ref]) > 0
	p.total++
	q.Plan = p.plan(q, tool)
	p.mu.Unlock()
	if p.arrived != nil {
		p.arrived(*q)
	}
}

func (p *Provider) answer(w http.ResponseWriter, r *http.Request, q *Request, how, id string, wait time.Duration) {
	switch how {
	case "answer":
		p.reply(w, 200, map[string]any{"id": id})
	case "slow":
		if !pause.For(r.Context(), wait) {
			return
		}
		p.reply(w, 200, map[string]any{"id": id})
	case "hang":
		<-r.Context().Done()
	case "drop", "cut":
		drop(w, how == "cut", p.chance("reset", q.Ref, strconv.Itoa(q.Nth)) < 0.5)
	case "429":
		w.Header().Set("Retry-After", "1")
		p.reply(w, 429, map[string]any{"error": "busy"})
	default:
		code, _ := strconv.Atoi(how)
		p.reply(w, code, map[string]any{"error": "failed"})
	}
}

func (p *Provider) reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// drop closes the connection where an answer would have been: in the middle of one if cut, with a reset if reset.
func drop(w http.ResponseWriter, cut, reset bool) {
	conn, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer conn.Close()
	if cut {
		_, _ = buf.WriteString("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 400\r\n\r\n{\"id\":")
		_ = buf.Flush()
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
}

// commit adds a row, unless the far side honours the key and knows it. A machine too busy to commit within what the
// window promises does not commit at all: the promise is the provider's to keep.
func (p *Provider) commit(q *Request, tool *Tool) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if tool.Window > 0 && !tool.Command && now.Sub(q.At) > tool.Window-2*Unseen {
		q.Plan += ",too late"
		return "none"
	}
	if tool.Keyed {
		for _, row := range p.rows[q.Ref] {
			if row.Key == q.Key {
				return row.ID
			}
		}
	}
	row := Row{ID: fmt.Sprintf("%s#%d", q.Ref, len(p.rows[q.Ref])+1), Tool: q.Tool, Ref: q.Ref, Key: q.Key, Worker: q.Worker, Nth: q.Nth, At: now}
	p.rows[q.Ref] = append(p.rows[q.Ref], row)
	return row.ID
}

// lookup says what the ledger has of an operation: under its ref, or under a key for the tool that has one per attempt.
func (p *Provider) lookup(w http.ResponseWriter, r *http.Request, tool *Tool) {
	ref, key := r.URL.Query().Get("ref"), r.URL.Query().Get("key")
	p.mu.Lock()
	p.asked++
	nth := strconv.Itoa(len(p.lookups[ref]))
	unseen := time.Duration(p.chance("unseen", ref) * float64(Unseen))
	var items []map[string]any
	for _, row := range p.rows[ref] {
		if time.Since(row.At) >= unseen && (!tool.PerTry || row.Key == key) {
			items = append(items, map[string]any{"id": row.ID})
		}
	}
	answer := fmt.Sprintf("%d rows", len(items))
	dice := p.chance("lookup", ref, nth)
	fails, busy := dice < 0.1, dice >= 0.1 && dice < 0.2
	switch {
	case fails:
		answer = "failed"
	case busy:
		answer = "asked to come again"
	}
	p.lookups[ref] = append(p.lookups[ref], Lookup{Tool: tool.Name, Ref: ref, Answer: answer, At: time.Now()})
	p.mu.Unlock()
	switch {
	case fails && p.chance("lookup-how", ref, nth) < 0.5:
		drop(w, false, true)
	case fails:
		p.reply(w, 500, map[string]any{"error": "failed"})
	case busy:
		w.Header().Set("Retry-After", "1")
		p.reply(w, http.StatusTooManyRequests, map[string]any{"error": "busy"})
	default:
		p.reply(w, 200, map[string]any{"items": append([]map[string]any{}, items...)})
	}
}

// Counts are how many requests and lookups there were.
func (p *Provider) Counts() (requests, lookups int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total, p.asked
}

// InFlight are the requests of a worker that have no answer yet.
func (p *Provider) InFlight(worker string) (out []Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range p.requests {
		for _, q := range list {
			if q.Worker == worker && q.Done.IsZero() {
				out = append(out, *q)
			}
		}
	}
	return out
}

// Of is everything about one operation.
func (p *Provider) Of(ref string) (requests []Request, rows []Row, lookups []Lookup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.requests[ref] {
		requests = append(requests, *q)
	}
	return requests, append(rows, p.rows[ref]...), append(lookups, p.lookups[ref]...)
}

// Operations are the refs of everything that was ever asked.
func (p *Provider) Operations() (refs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ref := range p.requests {
		refs = append(refs, ref)
	}
	return refs
}
