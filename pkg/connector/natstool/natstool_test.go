package natstool_test

import (
	"encoding/json"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/connectortest"
	"github.com/agentrun/executor/pkg/connector/natstool"
	"github.com/agentrun/executor/pkg/envelope"
)

const subject = "billing.credits"

// peer is a service on a NATS server of its own.
type peer struct {
	kind    *natstool.Kind
	server  *server.Server
	conn    *nats.Conn // the tools'
	service *nats.Conn
	arrived chan connectortest.Seen
	done    chan struct{}
	wg      sync.WaitGroup

	mu     sync.Mutex
	script connectortest.Script
	answer func(m *nats.Msg) // wins over script if set
}

func start(t testing.TB, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s
}

func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func newPeer(t testing.TB) *peer {
	t.Helper()
	s := start(t, -1)
	p := &peer{kind: natstool.New(), server: s, arrived: make(chan connectortest.Seen, 64), done: make(chan struct{})}
	p.conn, p.service = connect(t, s.ClientURL()), connect(t, s.ClientURL())
	p.kind.Use(p.conn)
	if _, err := p.service.Subscribe(subject, p.serve); err != nil {
		t.Fatal(err)
	}
	if err := p.service.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(p.done)
		p.kind.Close()
		p.wg.Wait()
		p.conn.Close()
		p.service.Close()
		p.server.Shutdown()
		p.server.WaitForShutdown()
	})
	return p
}

func (p *peer) serve(m *nats.Msg) {
	p.mu.Lock()
	script, answer := p.script, p.answer
	p.mu.Unlock()
	p.arrived <- connectortest.Seen{
		OperationRef: m.Header.Get("Agentrun-Operation-Ref"), IdempotencyKey: m.Header.Get("Idempotency-Key"), Args: string(m.Data),
	}
	if answer != nil {
		answer(m)
		return
	}
	reply := &nats.Msg{Data: []byte(script.Body), Header: nats.Header{}}
	switch script.Do {
	case connectortest.Hang:
		return
	case connectortest.Fail:
		reply.Header.Set("Nats-Service-Error", "it failed")
		reply.Header.Set("Nats-Service-Error-Code", "500")
	case connectortest.Twice:
		_ = m.RespondMsg(&nats.Msg{Data: reply.Data})
	}
	_ = m.RespondMsg(reply)
}

func (p *peer) Kind() connector.Kind { return p.kind }

func (*peer) Spec(envelope.Effect) connector.KindSpec {
	return connector.KindSpec{NATS: &connector.NATSSpec{Subject: subject}}
}

func (*peer) Unreachable(envelope.Effect) connector.KindSpec {
	return connector.KindSpec{NATS: &connector.NATSSpec{Subject: "nobody.listens"}}
}

// Can: a message arrives whole or not at all, and whether a connection was lost the far side of a server cannot tell;
// TestLostConnection does that.
func (*peer) Can(d connectortest.Do) bool { return d != connectortest.Break && d != connectortest.Lose }

func (p *peer) Script(s connectortest.Script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = s
}

func (p *peer) answerWith(f func(*nats.Msg)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = f
}

func (p *peer) Arrived() <-chan connectortest.Seen { return p.arrived }

func TestConformance(t *testing.T) {
	connectortest.Run(t, func(t *testing.T) connectortest.Peer { return newPeer(t) })
}

func compile(t testing.TB, k *natstool.Kind, effect envelope.Effect, edit func(*connector.Spec)) *connector.Tool {
	t.Helper()
	spec := connector.Spec{
		Name: "credit", Effect: effect, Timeout: 20 * time.Second,
		Kind: connector.KindSpec{NATS: &connector.NATSSpec{Subject: subject}},
	}
	if edit != nil {
		edit(&spec)
	}
	tool, err := connector.Compile(spec, k)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func call(args string) *connector.Call {
	return &connector.Call{
		OperationRef: "acme/r/s", IdempotencyKey: "acme/r/s.p2", Args: json.RawMessage(args),
		Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

func TestRequest(t *testing.T) {
	p := newPeer(t)
	seen := make(chan *nats.Msg, 1)
	p.answerWith(func(m *nats.Msg) {
		seen <- m
		_ = m.Respond([]byte(`{"id":1}`))
	})
	verified := func(s *connector.Spec) {
		s.Verify = &connector.VerifySpec{Kind: s.Kind, Committed: "body.id == 1"}
	}
	for _, c := range []struct {
		name string
		do   func() bool
		keys int
		args string
	}{
		{"read", func() bool { return compile(t, p.kind, envelope.Read, nil).Caller.Call(t.Context(), call("")).OK }, 0, "{}"},
		{"write", func() bool {
			return compile(t, p.kind, envelope.Write, nil).Caller.Call(t.Context(), call(`{"n":1.10}`)).OK
		}, 1, `{"n":1.10}`},
		{"lookup", func() bool {
			got := compile(t, p.kind, envelope.Write, verified).Looker.Lookup(t.Context(), call(`{}`))
			return got.Answer == envelope.Found
		}, 1, `{}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.do() {
				t.Fatal("it failed")
			}
			m := <-seen
			if string(m.Data) != c.args || m.Header.Get("Agentrun-Operation-Ref") != "acme/r/s" || m.Header.Get("traceparent") == "" {
				t.Errorf("got %s %v", m.Data, m.Header)
			}
			if len(m.Header["Idempotency-Key"]) != c.keys || (c.keys > 0 && m.Header.Get("Idempotency-Key") != "acme/r/s.p2") {
				t.Errorf("keys %v", m.Header["Idempotency-Key"])
			}
		})
	}
}

func TestWithoutConnection(t *testing.T) {
	kind := natstool.New()
	tool := compile(t, kind, envelope.Write, nil)
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.NotSent {
		t.Errorf("before there is a connection: %+v", got)
	}
	s := start(t, -1)
	nc := connect(t, s.ClientURL())
	kind.Use(nc)
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.NotSent {
		t.Errorf("nobody listens: %+v", got)
	}
	gone := nc.StatusChanged(nats.RECONNECTING)
	s.Shutdown()
	s.WaitForShutdown()
	<-gone
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.NotSent {
		t.Errorf("the server is away: %+v", got)
	}
	nc.Close()
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.NotSent {
		t.Errorf("the connection is closed: %+v", got)
	}
	kind.Close()
	if got := tool.Caller.Call(t.Context(), call(`{}`)); !got.NotSent {
		t.Errorf("the kind is closed: %+v", got)
	}
}

// A service's own status is no word of the server's: with it, the message did arrive.
func TestOwnStatusIsNotNoResponders(t *testing.T) {
	for name, header := range map[string]nats.Header{
		"status":           {"Status": {"503"}},
		"and a text":       {"Status": {"503"}, "Description": {"Service Unavailable"}},
		"and more headers": {"Status": {"503"}, "Nats-Subject": {subject}, "Retry-After": {"3"}},
		"twice":            {"Status": {"503", "503"}, "Nats-Subject": {subject}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t)
			p.answerWith(func(m *nats.Msg) { _ = m.RespondMsg(&nats.Msg{Header: header}) })
			if got := compile(t, p.kind, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`)); got.NotSent {
				t.Errorf("taken for never sent: %+v", got)
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	p := newPeer(t)
	p.answerWith(func(m *nats.Msg) {
		_ = m.RespondMsg(&nats.Msg{Header: nats.Header{
			"Nats-Service-Error": {"rate limited"}, "Nats-Service-Error-Code": {"429"}, "Retry-After": {"7"},
			"X-Part": {"a"}, "x-part": {"b"},
		}})
	})
	tool := compile(t, p.kind, envelope.Write, func(s *connector.Spec) {
		s.Errors = []connector.Rule{{
			When: "headers['nats-service-error-code'] == '429' && headers['x-part'] in ['a, b', 'b, a']",
			Code: envelope.CodeUpstreamRateLimited,
		}}
	})
	got := tool.Caller.Call(t.Context(), call(`{}`))
	if got.Row.Code != envelope.CodeUpstreamRateLimited || got.RetryAfter != 7000 {
		t.Errorf("got %+v", got)
	}
	for effect, want := range map[envelope.Effect]envelope.Code{
		envelope.Read: envelope.CodeUpstreamError, envelope.Write: envelope.CodeOutcomeUnknown,
	} {
		if got := compile(t, p.kind, effect, nil).Caller.Call(t.Context(), call(`{}`)); got.OK || got.Row.Code != want {
			t.Errorf("%s without a rule: %+v", effect, got)
		}
	}
}

func TestEnvelopeReply(t *testing.T) {
	p := newPeer(t)
	p.answerWith(func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"ok":false,"code":"VERSION_CONFLICT","commit_state":"not_committed","next_action":"escalate","operation_ref":"` +
			m.Header.Get("Agentrun-Operation-Ref") + `"}`))
	})
	tool := compile(t, p.kind, envelope.Write, func(s *connector.Spec) { s.Response = "envelope" })
	if got := tool.Caller.Call(t.Context(), call(`{}`)); got.Row.Code != envelope.CodeVersionConflict {
		t.Errorf("got %+v", got)
	}
}

func TestLargeRequestIsNotSent(t *testing.T) {
	p := newPeer(t)
	args := `{"a":"` + strings.Repeat("x", 1<<20) + `"}`
	if got := compile(t, p.kind, envelope.Write, nil).Caller.Call(t.Context(), call(args)); !got.NotSent {
		t.Errorf("got %+v", got)
	}
}

// The server goes away while the service works and comes back: a reply after that arrives, and the request is not sent
// again.
func TestReplyAfterReconnect(t *testing.T) {
	p := newPeer(t)
	asked := make(chan *nats.Msg, 2)
	p.answerWith(func(m *nats.Msg) { asked <- m })
	done := make(chan envelope.Reply, 1)
	tool := compile(t, p.kind, envelope.Write, nil)
	go func() { done <- tool.Caller.Call(t.Context(), call(`{}`)) }()
	m := <-asked
	p.restart(t)
	if err := p.service.Publish(m.Reply, []byte(`{"id":"late"}`)); err != nil {
		t.Fatal(err)
	}
	if got := <-done; !got.OK || string(got.Result) != `{"id":"late"}` {
		t.Fatalf("got %+v", got)
	}
	if len(asked) != 0 || len(p.arrived) != 1 {
		t.Fatalf("the request arrived %d times", len(p.arrived))
	}
}

// restart stops the server and starts it again at its port; it returns when both connections listen again.
func (p *peer) restart(t *testing.T) {
	t.Helper()
	back := []chan nats.Status{p.conn.StatusChanged(nats.CONNECTED), p.service.StatusChanged(nats.CONNECTED)}
	port := p.server.Addr().(*net.TCPAddr).Port
	p.server.Shutdown()
	p.server.WaitForShutdown()
	p.server = start(t, port)
	for i, nc := range []*nats.Conn{p.conn, p.service} {
		<-back[i]
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLostConnection(t *testing.T) {
	for effect, want := range map[envelope.Effect]envelope.Code{
		envelope.Read: envelope.CodeUpstreamTimeout, envelope.Write: envelope.CodeOutcomeUnknown,
	} {
		t.Run(string(effect), func(t *testing.T) {
			p := newPeer(t)
			p.answerWith(func(*nats.Msg) { p.server.Shutdown() })
			tool := compile(t, p.kind, effect, func(s *connector.Spec) { s.Timeout = 200 * time.Millisecond })
			got := tool.Caller.Call(t.Context(), call(`{}`))
			if got.Row.Code != want || !got.NoReply || got.NotSent || len(p.arrived) != 1 {
				t.Errorf("got %+v, arrived %d times", got, len(p.arrived))
			}
		})
	}
}

func TestManyAtOnce(t *testing.T) {
	p := newPeer(t)
	p.answerWith(func(m *nats.Msg) { <-p.arrived; _ = m.Respond(m.Data) })
	tool := compile(t, p.kind, envelope.Read, nil)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			args, _ := json.Marshal(map[string]int{"n": i})
			if got := tool.Caller.Call(t.Context(), call(string(args))); string(got.Result) != string(args) {
				t.Errorf("%s was answered with %s", args, got.Result)
			}
		})
	}
	wg.Wait()
}

func TestPrepare(t *testing.T) {
	for _, bad := range []string{"", "a.*", "a.>", "a b", ".a", "a.", "a..b"} {
		_, err := connector.Compile(connector.Spec{
			Name: "x", Effect: envelope.Read, Kind: connector.KindSpec{NATS: &connector.NATSSpec{Subject: bad}},
		}, natstool.New())
		if err == nil || !strings.HasPrefix(err.Error(), "[nats subject]") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
