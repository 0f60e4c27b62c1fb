package mcptool_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/connector/connectortest"
	"github.com/agentrun/executor/pkg/envelope"
)

// refusal answers with a status and a body in which %s is the request's id.
func refusal(status int, kind, body string) func(http.ResponseWriter, message) {
	return func(w http.ResponseWriter, m message) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		id := string(m.ID)
		if id == "" {
			id = "null"
		}
		_, _ = io.WriteString(w, strings.ReplaceAll(body, "%s", id))
	}
}

func restarted(p *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session += "+"
}

// A server that was restarted knows none of the sessions of before. It refuses the call, in one of the ways that servers
// have, and has not looked at it: the call is not sent again by itself, the next one is another attempt, in another session.
func TestLostSession(t *testing.T) {
	t.Parallel()
	const (
		plain   = "text/plain"
		json    = "application/json"
		events  = "text/event-stream"
		nobodys = `{"jsonrpc":"2.0","error":{"code":%d,"message":"%s"},"id":null}`
		its     = `{"jsonrpc":"2.0","error":{"code":%d,"message":"%s"},"id":%%s}`
	)
	for name, refuse := range map[string]func(http.ResponseWriter, message){
		"404":                     refusal(404, plain, ""),
		"404, words":              refusal(404, plain, "session not found\n"),
		"404, error":              refusal(404, json, fmt.Sprintf(nobodys, -32001, "Session not found")),
		"404, page of a proxy":    refusal(404, "text/html", "<html>"),
		"400":                     refusal(400, plain, ""),
		"400, words":              refusal(400, plain, "Bad Request: No valid session ID provided"),
		"400, error":              refusal(400, json, fmt.Sprintf(nobodys, -32000, "Bad Request: No valid session ID provided")),
		"400, error with its id":  refusal(400, json, fmt.Sprintf(its, -32600, "Bad Request: Server not initialized")),
		"400, error in an event":  refusal(400, events, "event: message\ndata: "+fmt.Sprintf(nobodys, -32000, "Bad Request: Server not initialized")+"\n\n"),
		"400, error of its own":   refusal(400, json, `{"error":{"message":"Invalid session"}}`),
		"401, words":              refusal(401, plain, "Unauthorized: Session not found"),
		"503, error":              refusal(503, json, fmt.Sprintf(nobodys, -32000, "Session not found or expired")),
		"200, error":              refusal(200, json, fmt.Sprintf(its, -32001, "Session not found")),
		"200, error of the 32005": refusal(200, json, fmt.Sprintf(its, -32005, "Session not found or expired")),
		"200, error without id":   refusal(200, json, fmt.Sprintf(nobodys, -32002, "Server not initialized")),
		"200, error in an event":  refusal(200, events, "event: message\ndata: "+fmt.Sprintf(its, -32000, "Session not found")+"\n\n"),
		"200, invalid request":    refusal(200, json, fmt.Sprintf(nobodys, -32600, "Invalid Request")),
	} {
		for _, effect := range []envelope.Effect{envelope.Read, envelope.Write} {
			t.Run(fmt.Sprintf("%s, %s", name, effect), func(t *testing.T) {
				p := newPeer(t, func(p *peer) { p.refuse, p.session = refuse, "s" })
				p.Script(connectortest.Script{Do: connectortest.Answer, Body: "{}"})
				tool := compile(t, p, effect, nil)
				if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.OK {
					t.Fatalf("got %+v", got)
				}
				restarted(p)
				got := tool.Caller.Call(t.Context(), call(`{}`))
				if got.OK || got.NoReply || got.Row.Code != envelope.CodeUpstreamUnavailable || got.Row.CommitState != envelope.NotCommitted {
					t.Fatalf("got %+v", got)
				}
				if len(p.arrived) != 1 || p.count("tools/call") != 2 {
					t.Fatalf("%d calls arrived in %d requests", len(p.arrived), p.count("tools/call"))
				}
				if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.OK || p.count("initialize") != 2 || len(p.arrived) != 2 {
					t.Fatalf("%d sessions, %d calls arrived: %+v", p.count("initialize"), len(p.arrived), got)
				}
			})
		}
	}
}

// What a server says in a session that it knows is its answer, whatever the words: a tool may have sessions of its own.
func TestErrorsThatAreNoLostSession(t *testing.T) {
	t.Parallel()
	const its = `{"jsonrpc":"2.0","error":{"code":%d,"message":"%s"},"id":%%s}`
	for _, c := range []struct {
		name        string
		answer      func(http.ResponseWriter, message)
		read, write envelope.Code
	}{
		{"a tool's own session", refusal(200, "application/json", fmt.Sprintf(its, -32000, "Session not found")), envelope.CodeUpstreamError, envelope.CodeOutcomeUnknown},
		{"a failure in words", refusal(503, "text/plain", "Session not found"), envelope.CodeUpstreamUnavailable, envelope.CodeOutcomeUnknown},
		{"an error of the server's", refusal(200, "application/json", fmt.Sprintf(its, -32000, "no money")), envelope.CodeUpstreamError, envelope.CodeOutcomeUnknown},
		{"an internal error", refusal(200, "application/json", fmt.Sprintf(its, -32603, "database session not found")), envelope.CodeUpstreamError, envelope.CodeOutcomeUnknown},
		{"a request that is refused", refusal(400, "text/plain", "no such invoice"), envelope.CodeUpstreamRejectedInput, envelope.CodeUpstreamRejectedInput},
		{"an invalid request", refusal(200, "application/json", fmt.Sprintf(its, -32600, "no such invoice")), envelope.CodeUpstreamRejectedInput, envelope.CodeUpstreamRejectedInput},
		{"another request's answer", func(w http.ResponseWriter, _ message) {
			write(w, `{"jsonrpc":"2.0","id":7777777,"result":{"content":[]}}`)
		}, envelope.CodeUpstreamTimeout, envelope.CodeOutcomeUnknown},
		{"another request's error", func(w http.ResponseWriter, _ message) {
			write(w, `{"jsonrpc":"2.0","id":7777777,"error":{"code":-32600,"message":"Session not found"}}`)
		}, envelope.CodeUpstreamTimeout, envelope.CodeOutcomeUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPeer(t, func(p *peer) { p.refuse, p.session = refusal(404, "text/plain", ""), "s" })
			p.handleWith(func(w http.ResponseWriter, m message) bool { c.answer(w, m); return true })
			for effect, want := range map[envelope.Effect]envelope.Code{envelope.Read: c.read, envelope.Write: c.write} {
				if got := compile(t, p, effect, nil).Caller.Call(t.Context(), call(`{}`)); got.OK || got.Row.Code != want {
					t.Errorf("%s: %+v", effect, got)
				}
			}
			p.handleWith(nil)
			if got := compile(t, p, envelope.Read, nil).Caller.Call(t.Context(), call(`{}`)); !got.OK || p.count("initialize") != 1 {
				t.Errorf("%d sessions: %+v", p.count("initialize"), got)
			}
		})
	}
}

// An answer that speaks of a lost session while the session lives says nothing of the call: the server, or who stands before
// it, may have carried it out. It is not sent again, a read excepted.
func TestSessionThatIsSaidToBeLostAndLives(t *testing.T) {
	t.Parallel()
	const nobodys = `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}`
	for name, answer := range map[string]func(http.ResponseWriter, message){
		"404":        refusal(404, "text/plain", ""),
		"404, words": refusal(404, "text/plain", "session not found\n"),
		"404, error": refusal(404, "application/json", nobodys),
		"400, words": refusal(400, "text/plain", "Bad Request: No valid session ID provided"),
		"400, error": refusal(400, "application/json", nobodys),
		"401, words": refusal(401, "text/plain", "Unauthorized: Session not found"),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, func(p *peer) { p.refuse, p.session = refusal(404, "text/plain", ""), "s" })
			p.handleWith(func(w http.ResponseWriter, m message) bool { answer(w, m); return true })
			got := compile(t, p, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`))
			if got.OK || got.Row.Code != envelope.CodeOutcomeUnknown || got.Row.CommitState != envelope.Unknown || got.Seen.HTTPStatus == 0 {
				t.Errorf("a write: %+v", got)
			}
			got = compile(t, p, envelope.Read, nil).Caller.Call(t.Context(), call(`{}`))
			if got.OK || got.Row.Code != envelope.CodeUpstreamTimeout || got.Row.Outcome != envelope.Retryable {
				t.Errorf("a read: %+v", got)
			}
			if p.count("tools/call") != 2 || p.count("ping") != 2 {
				t.Errorf("%d calls, %d pings", p.count("tools/call"), p.count("ping"))
			}
			p.handleWith(nil)
			if got := compile(t, p, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`)); !got.OK || p.count("initialize") != 1 {
				t.Errorf("%d sessions: %+v", p.count("initialize"), got)
			}
		})
	}
}

// A gateway whose server has died answers everything with the same error: the call may have been what it died of. It is
// not said to be undone, and the next call finds another session.
func TestSessionThatDiedOfTheCall(t *testing.T) {
	t.Parallel()
	const closed = `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Connection closed"},"id":%s}`
	p := newPeer(t, func(p *peer) { p.refuse, p.session = refusal(200, "application/json", closed), "s" })
	p.handleWith(func(w http.ResponseWriter, m message) bool {
		restarted(p)
		refusal(200, "application/json", closed)(w, m)
		return true
	})
	tool := compile(t, p, envelope.Write, nil)
	if got := tool.Caller.Call(t.Context(), call(`{}`)); got.OK || got.Row.Code != envelope.CodeOutcomeUnknown || got.Row.CommitState != envelope.Unknown {
		t.Fatalf("got %+v", got)
	}
	p.handleWith(nil)
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.OK || p.count("initialize") != 2 {
		t.Fatalf("%d sessions: %+v", p.count("initialize"), got)
	}
}

// A server that has no sessions cannot have lost one.
func TestRefusalWithoutSession(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	p.handleWith(func(w http.ResponseWriter, _ message) bool {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "Session not found")
		return true
	})
	got := compile(t, p, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`))
	if got.Row.Code != envelope.CodeResourceNotFound || p.count("ping") != 0 {
		t.Fatalf("%d pings: %+v", p.count("ping"), got)
	}
}
