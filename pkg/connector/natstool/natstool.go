// Package natstool calls tools by request and reply on a NATS subject.
//
// The args are the message, in JSON; the reply's payload is the result, or an envelope where the tool says so. Headers of
// the request:
//
//	Agentrun-Operation-Ref  the operation, always
//	Idempotency-Key         the key of this dispatch, for writes and for lookups
//	traceparent             the trace context, where there is one
//
// A request goes out once. Core NATS keeps nothing: what the connection could not take is never sent, what it took and
// the network lost is gone. No responders means never sent. A service that answers with the error headers of the NATS
// micro protocol (Nats-Service-Error-Code) has failed, and whether it had done anything nobody knows: that protocol gives
// its codes no meaning. A rule over headers says more where the service defines it.
//
// A lost connection does not end a call: a reply that is published after the client is back arrives. What is lost in
// between ends with the call's timeout.
package natstool

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

// Names of the request's headers.
const (
	operationRefHeader   = "Agentrun-Operation-Ref"
	idempotencyKeyHeader = "Idempotency-Key"
	traceparentHeader    = "traceparent"
)

// What the server and the micro protocol say in headers.
const (
	statusHeader      = "Status"
	descriptionHeader = "Description"
	subjectHeader     = "Nats-Subject" // a server names the subject that nobody listened on
	noResponders      = "503"
	errorHeader       = "Nats-Service-Error"
	errorCodeHeader   = "Nats-Service-Error-Code"
)

// Conn is what the tools need of a connection. *nats.Conn is one; it must be made with nats.ReconnectBufSize(-1), or it
// keeps requests while it is away and sends them when nobody waits for them any more.
type Conn interface {
	NewInbox() string
	Subscribe(subject string, handle nats.MsgHandler) (*nats.Subscription, error)
	PublishMsg(m *nats.Msg) error
}

// Kind makes NATS tools. Until it has a connection, no request is sent: tools can be compiled and checked without a server.
type Kind struct {
	mu      sync.Mutex
	conn    Conn
	inbox   string // prefix of the reply subjects, with its dot; "" until the first request
	replies *nats.Subscription
	next    uint64
	waiting map[string]chan *nats.Msg // by reply subject
}

// New returns a kind without a connection.
func New() *Kind { return &Kind{waiting: make(map[string]chan *nats.Msg)} }

// Use gives the kind its connection, once, before the first call. The connection stays its owner's.
func (k *Kind) Use(conn Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conn = conn
}

// Close stops listening for replies. Calls that still wait end with their contexts.
func (k *Kind) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.replies != nil {
		// An error means that the connection is closed, and with it the subscription.
		_ = k.replies.Unsubscribe()
	}
	k.conn, k.replies, k.inbox = nil, nil, ""
}

// Name implements connector.Kind.
func (*Kind) Name() string { return connector.KindNATS }

// Prepare implements connector.Kind.
func (k *Kind) Prepare(p connector.Preparation) (connector.Transport, error) {
	subject := p.Spec.NATS.Subject
	switch {
	case subject == "":
		return nil, &connector.SpecError{Path: []any{"subject"}, Message: "is required: where the request goes"}
	case strings.ContainsAny(subject, "*> \t\r\n") || strings.Contains("."+subject+".", ".."):
		return nil, &connector.SpecError{Path: []any{"subject"}, Message: "must be one subject, without wildcards, spaces and empty parts"}
	}
	return &transport{kind: k, subject: subject}, nil
}

type transport struct {
	kind    *Kind
	subject string
}

// CheckArgs implements connector.Transport: any object is a request.
func (*transport) CheckArgs(map[string]any) (string, bool) { return "", true }

// RoundTrip implements connector.Transport.
func (t *transport) RoundTrip(ctx context.Context, r *connector.Request) connector.Response {
	notSent := connector.Response{Failure: connector.NotSent}
	conn, inbox, reply := t.kind.expect()
	if conn == nil {
		return notSent
	}
	defer t.kind.forget(inbox)
	m := t.request(r, inbox)
	if ctx.Err() != nil || !r.Leave() {
		return notSent
	}
	// The request leaves here and nowhere else.
	if err := conn.PublishMsg(m); err != nil {
		if untouched(err) {
			return notSent
		}
		return connector.Response{Failure: connector.NoReply}
	}
	select {
	case m := <-reply:
		return response(m, r.BodyMax)
	case <-ctx.Done():
	}
	select {
	case m := <-reply:
		return response(m, r.BodyMax)
	default:
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return connector.Response{Failure: connector.Cancelled}
	}
	return connector.Response{Failure: connector.NoReply}
}

func (t *transport) request(r *connector.Request, inbox string) *nats.Msg {
	m := &nats.Msg{Subject: t.subject, Reply: inbox, Data: r.Args, Header: nats.Header{operationRefHeader: {r.OperationRef}}}
	if len(m.Data) == 0 {
		m.Data = []byte("{}")
	}
	if r.Effect == envelope.Write || r.Lookup {
		m.Header[idempotencyKeyHeader] = []string{r.IdempotencyKey}
	}
	if r.Traceparent != "" {
		m.Header[traceparentHeader] = []string{r.Traceparent}
	}
	return m
}

// untouched reports whether nothing of a message was written: every error that the client gives before it hands over the
// bytes. Any other comes from the socket.
func untouched(err error) bool {
	for _, e := range []error{
		nats.ErrConnectionClosed, nats.ErrConnectionDraining, nats.ErrReconnectBufExceeded, nats.ErrMaxPayload,
		nats.ErrBadSubject, nats.ErrHeadersNotSupported, nats.ErrInvalidConnection, nats.ErrBadHeaderMsg,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func response(m *nats.Msg, limit int) connector.Response {
	if refusedByServer(m) {
		return connector.Response{Failure: connector.NotSent}
	}
	out := connector.Response{Header: make(map[string][]string, len(m.Header))}
	for name, values := range m.Header {
		lower := strings.ToLower(name)
		out.Header[lower] = append(out.Header[lower], values...)
	}
	_, failed := out.Header[strings.ToLower(errorHeader)]
	_, coded := out.Header[strings.ToLower(errorCodeHeader)]
	out.IsError = failed || coded
	if len(m.Data) > limit {
		out.Failure = connector.TooLarge
		return out
	}
	out.Body = m.Data
	return out
}

// refusedByServer reports whether the server says that nobody listens. A service may answer an empty message with a
// header Status of its own: only the server's word, which names the subject and nothing else, proves that nothing was done.
func refusedByServer(m *nats.Msg) bool {
	if len(m.Data) > 0 || len(m.Header[statusHeader]) != 1 || m.Header[statusHeader][0] != noResponders {
		return false
	}
	for name := range m.Header {
		if name != statusHeader && name != descriptionHeader && name != subjectHeader {
			return false
		}
	}
	return len(m.Header[subjectHeader]) == 1
}

// expect returns the connection and a reply subject of its own, on which one reply will be taken. The connection is nil if
// there is none, or none that can be listened on.
func (k *Kind) expect() (conn Conn, inbox string, reply chan *nats.Msg) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == nil {
		return nil, "", nil
	}
	if k.replies == nil {
		k.inbox = k.conn.NewInbox() + "."
		replies, err := k.conn.Subscribe(k.inbox+"*", k.replied)
		if err != nil {
			return nil, "", nil
		}
		k.replies = replies
	}
	k.next++
	inbox = k.inbox + strconv.FormatUint(k.next, 36)
	reply = make(chan *nats.Msg, 1)
	k.waiting[inbox] = reply
	return k.conn, inbox, reply
}

func (k *Kind) forget(inbox string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.waiting, inbox)
}

// replied hands the first reply to the call that waits for it; what nobody waits for is dropped.
func (k *Kind) replied(m *nats.Msg) {
	k.mu.Lock()
	defer k.mu.Unlock()
	reply, ok := k.waiting[m.Subject]
	if !ok {
		return
	}
	delete(k.waiting, m.Subject)
	reply <- m // has room: it is sent once
}
