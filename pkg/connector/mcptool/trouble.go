package mcptool

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/agentrun/executor/internal/child"
	"github.com/agentrun/executor/pkg/connector/internal/token"
)

// Trouble is why a server cannot be used.
type Trouble struct {
	Cause string // a clause in our words: nothing of it is the server's text
	// Stderr are the last lines that a server of ours has written to its standard error, as it wrote them: only of a kind
	// that listens there, and only for a person's own terminal.
	Stderr []string

	unheld error // there was no access token to ask it with
}

// Unwrap gives why there was no access token, if that is the cause.
func (t *Trouble) Unwrap() error { return t.unheld }

func (t *Trouble) Error() string { return t.Cause }

// attempt is a try to make a session.
type attempt struct {
	server    *server
	transport *transport
	met       *encounter
	err       error
	tooLate   bool // its time was over
}

// process is the server of ours that was started for it, nil if none was.
func (t *attempt) process() *process {
	w := t.transport.connected()
	if w == nil {
		return nil
	}
	p, _ := w.Connection.(*process)
	return p
}

// unreached: another try would meet the same, whatever it asks first.
func (t *attempt) unreached() bool {
	if t.transport.serial {
		return t.process() == nil
	}
	return t.met.err() != nil && t.met.status() == 0
}

// refused: the server has said no, in one way or the other.
func (t *attempt) refused() bool {
	w := t.transport.connected()
	return t.err != nil && (w != nil && w.refusal.Load() != 0 || t.met.status() >= http.StatusBadRequest)
}

// wait gives a server of ours that has closed its output the time to end, so that its end can be named.
func (t *attempt) wait() {
	p := t.process()
	if p == nil || t.tooLate || t.refused() {
		return
	}
	patience := time.NewTimer(exitPatience)
	defer patience.Stop()
	select {
	case <-p.child.Exited():
		p.ownEnd.Store(true)
	case <-patience.C:
	}
}

// ending says how a server that gave no answer ended, or that nothing is known of it.
func (t *attempt) ending() string {
	if p := t.process(); p != nil && p.ownEnd.Load() {
		return fmt.Sprintf("the end of the program, with exit code %d", p.child.Code())
	}
	return noAnswer
}

// trouble is the reason why there is no session; nil if there is one.
func (t *attempt) trouble() error {
	if t.err == nil {
		return nil
	}
	if token.Missing(t.err) {
		return &Trouble{Cause: "there is no access token for it", unheld: t.err}
	}
	out := &Trouble{Cause: t.cause()}
	if p := t.process(); p != nil {
		out.Stderr = p.lastWords()
	}
	return out
}

func (t *attempt) cause() string {
	if w := t.transport.connected(); w != nil && w.refusal.Load() != 0 {
		return fmt.Sprintf("it refuses initialize with JSON-RPC error %d", w.refusal.Load())
	}
	if !t.transport.serial {
		return t.met.cause(t.tooLate)
	}
	p := t.process()
	switch {
	case p == nil:
		return startCause(t.server.spec.Command[0], t.err)
	case p.ownEnd.Load():
		return fmt.Sprintf("its program ended with exit code %d before it answered initialize", p.child.Code())
	case p.strays.Load() > 0 && !p.spoke.Load():
		return fmt.Sprintf("it does not speak MCP: on its standard output there were %d lines, and none is JSON-RPC", p.strays.Load())
	case t.tooLate:
		return "it does not answer initialize in time"
	}
	return "it ended the connection before it answered initialize"
}

// startCause says why a program cannot be started; its name is the config's.
func startCause(name string, err error) string {
	var cause *child.NotStarted
	switch {
	case !errors.As(err, &cause):
		return "its program cannot be started"
	case cause.Key == "argv" && errors.Is(err, fs.ErrNotExist):
		return "there is no program " + name
	case cause.Key == "argv" && errors.Is(err, fs.ErrPermission):
		return name + " may not be executed"
	case cause.Key == "argv":
		return cause.Err.Error()
	}
	return cause.Error()
}

// listTrouble is why the list of its tools is not there.
func (s *session) listTrouble(err error) *Trouble {
	out := &Trouble{Cause: "its connection is lost before the list of its tools is there"}
	if known, ok := errors.AsType[*Trouble](err); ok {
		out.Cause = known.Cause
	}
	if p, ok := s.wire.Connection.(*process); ok {
		out.Stderr = p.lastWords()
	}
	return out
}

// encounter is what a try over HTTP has met on the way.
type encounter struct {
	mu     sync.Mutex
	failed error // of the last request
	code   int   // of the last response
	media  string
}

type encounterKey struct{}

// meet notes how a request of a session's start ended.
func meet(ctx context.Context, resp *http.Response, err error) {
	e, _ := ctx.Value(encounterKey{}).(*encounter)
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed = err; err == nil {
		e.code, e.media = resp.StatusCode, mediaType(resp)
	}
}

func (e *encounter) err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failed
}

func (e *encounter) status() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.code
}

func (e *encounter) cause(tooLate bool) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.failed != nil && !tooLate:
		return unreachedCause(e.failed)
	case tooLate:
		return "it does not answer initialize in time"
	case e.code == http.StatusOK && e.media != "application/json" && e.media != "text/event-stream":
		return "it answers, and not as an MCP server does: its answer is neither JSON nor an event stream"
	case e.code == http.StatusOK || e.code == 0:
		return "it answers, and not as an MCP server does"
	}
	return fmt.Sprintf("it answers with status %d %s", e.code, http.StatusText(e.code))
}

// unreachedCause says why a request got no response.
func unreachedCause(err error) string {
	var unknown *net.DNSError
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection is refused: nobody listens there"
	case errors.As(err, &unknown):
		return "its host has no address"
	case isCertificate(err):
		return "its TLS certificate is not accepted"
	case errors.As(err, new(tls.RecordHeaderError)):
		return "it does not speak TLS"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "it cannot be reached in time"
	}
	return "the connection is lost before an answer"
}

func isCertificate(err error) bool {
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(x509.UnknownAuthorityError)) ||
		errors.As(err, new(x509.HostnameError)) || errors.As(err, new(x509.CertificateInvalidError))
}
