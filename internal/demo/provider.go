// Package demo is the scripted billing provider of executor demo, its case, and what the demo shows. The provider speaks
// HTTP as a real one would, misbehaves on purpose, and writes down every call.
package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Call is one request that the provider saw.
type Call struct {
	At     time.Time
	Tool   string // get_invoice, apply_credit, lookup, draft_reply, or "" for a path nobody offers
	Method string
	Path   string
	Ref    string // Agentrun-Operation-Ref
	Key    string // Idempotency-Key
	Status int
	Said   string // what the answer meant, in a few words
}

// Credit is one entry of the ledger: money that was given.
type Credit struct {
	ID           string `json:"credit_id"`
	OperationRef string `json:"operation_ref"`
	InvoiceID    string `json:"invoice_id"`
	AmountMinor  int64  `json:"amount_minor"`
}

// Script says how often the provider misbehaves before it answers.
type Script struct {
	RateLimited int // get_invoice answers 429 with Retry-After: 1 this often
	DraftErrors int // draft_reply answers 500 this often
}

// Provider is the billing provider. Safe for concurrent use.
type Provider struct {
	mu      sync.Mutex
	script  Script
	calls   []Call
	ledger  []Credit
	byKey   map[string]entry
	server  *http.Server
	address string
	done    chan error
}

// entry is what the provider remembers under an idempotency key.
type entry struct {
	digest string
	credit Credit
}

// NewProvider begins with an empty ledger.
func NewProvider(s Script) *Provider {
	return &Provider{script: s, byKey: map[string]entry{}}
}

// Start listens on a free port of the loopback interface until Close.
func (p *Provider) Start() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("the demo's billing provider: %w", err)
	}
	p.address = l.Addr().String()
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 5 * time.Second}
	p.done = make(chan error, 1)
	go func() { p.done <- p.server.Serve(l) }()
	return nil
}

// URL is where the provider listens.
func (p *Provider) URL() string { return "http://" + p.address }

// Close ends the provider; calls in flight may finish until ctx is done.
func (p *Provider) Close(ctx context.Context) error {
	err := p.server.Shutdown(ctx)
	<-p.done
	if err != nil {
		return fmt.Errorf("closing the demo's billing provider: %w", err)
	}
	return nil
}

// Calls lists every request so far, in the order of arrival.
func (p *Provider) Calls() []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// Ledger lists every credit that was given, in order.
func (p *Provider) Ledger() []Credit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ledger)
}

// ServeHTTP answers one call and writes it down.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return // the caller went away in the middle of its request: nothing was asked
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := Call{
		At: time.Now(), Method: r.Method, Path: r.URL.RequestURI(),
		Ref: r.Header.Get("Agentrun-Operation-Ref"), Key: r.Header.Get("Idempotency-Key"),
	}
	status, said, answer := http.StatusNotFound, "no such path", any(problem("no_such_path"))
	switch {
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/invoices/"):
		c.Tool = "get_invoice"
		status, said, answer = p.invoice(w, strings.TrimPrefix(r.URL.Path, "/invoices/"))
	case r.Method == http.MethodPost && r.URL.Path == "/credits":
		c.Tool = "apply_credit"
		status, said, answer = p.credit(c.Key, c.Ref, body)
	case r.Method == http.MethodGet && r.URL.Path == "/credits":
		c.Tool = "lookup"
		status, said, answer = p.lookup(r.URL.Query().Get("operation_ref"))
	case r.Method == http.MethodPost && r.URL.Path == "/drafts":
		c.Tool = "draft_reply"
		status, said, answer = p.draft()
	}
	c.Status, c.Said = status, said
	p.calls = append(p.calls, c)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // a caller that went away learns nothing, and the call stands
}

func (p *Provider) invoice(w http.ResponseWriter, id string) (int, string, any) {
	if p.script.RateLimited > 0 {
		p.script.RateLimited--
		w.Header().Set("Retry-After", "1")
		return http.StatusTooManyRequests, "too many requests, come back in 1 s", problem("rate_limited")
	}
	return http.StatusOK, "here is the invoice", map[string]any{"id": id, "total_minor": 4200, "currency": "EUR"}
}

// credit gives money once per idempotency key. A key that is known gets its first answer again, and other parameters
// under it are refused: what real providers do.
func (p *Provider) credit(key, ref string, body []byte) (int, string, any) {
	if key == "" {
		return http.StatusBadRequest, "no idempotency key", problem("idempotency_key_missing")
	}
	var ask struct {
		InvoiceID   string `json:"invoice_id"`
		AmountMinor int64  `json:"amount_minor"`
	}
	if err := json.Unmarshal(body, &ask); err != nil || ask.InvoiceID == "" || ask.AmountMinor < 1 {
		return http.StatusUnprocessableEntity, "not a credit", problem("invalid_credit")
	}
	sum := sha256.Sum256(body)
	digest := hex.EncodeToString(sum[:])
	if known, ok := p.byKey[key]; ok {
		if known.digest != digest {
			return http.StatusConflict, "key known with another credit", problem("key_reused")
		}
		return http.StatusOK, "known key, no money moved", known.credit
	}
	c := Credit{ID: "cr_" + strconv.Itoa(len(p.ledger)+3), OperationRef: ref, InvoiceID: ask.InvoiceID, AmountMinor: ask.AmountMinor}
	p.ledger = append(p.ledger, c)
	p.byKey[key] = entry{digest: digest, credit: c}
	return http.StatusCreated, "credited " + money(c.AmountMinor), c
}

func (p *Provider) lookup(ref string) (int, string, any) {
	items := []Credit{}
	for _, c := range p.ledger {
		if c.OperationRef == ref {
			items = append(items, c)
		}
	}
	return http.StatusOK, fmt.Sprintf("%d credits of this operation", len(items)), map[string]any{"items": items}
}

func (p *Provider) draft() (int, string, any) {
	if p.script.DraftErrors > 0 {
		p.script.DraftErrors--
		return http.StatusInternalServerError, "fell over", problem("internal")
	}
	return http.StatusOK, "here is a draft", map[string]any{"draft_id": "dr_1", "text": "We have credited your invoice."}
}

func problem(kind string) map[string]any {
	return map[string]any{"error": map[string]any{"type": kind}}
}

// money shows an amount in minor units.
func money(minor int64) string { return fmt.Sprintf("%d.%02d EUR", minor/100, minor%100) }
