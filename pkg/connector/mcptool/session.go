package mcptool

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentrun/executor/pkg/connector"
)

const (
	// listTimeout bounds the reading of a server's tools beside the calls.
	listTimeout = time.Minute
	// pingPatience is how long a server that let a call run out of time has to answer a ping.
	pingPatience = 5 * time.Second
	// offerAge is how old the list of a server's tools may be before it is read again, beside the calls.
	offerAge = time.Minute
)

const (
	methodCall        = "tools/call"
	methodList        = "tools/list"
	methodInitialized = "notifications/initialized"
)

var errClosed = errors.New("closed")

// server is one of mcp_servers, with the session that is used for calls.
type server struct {
	name     string
	spec     connector.MCPServerSpec
	files    [sha256.Size]byte    // digest of what its TLS files hold
	fault    *connector.SpecError // what is wrong with them
	client   *client              // nil for stdio
	desk     *desk
	patience patience
	listens  bool // to the standard error of a server of ours

	mu         sync.Mutex
	closed     bool
	old        bool   // it does not know server/discover
	found      string // what came of asking it
	strays     int    // lines that were no JSON-RPC
	live       *session
	connecting *connecting
	sessions   map[*session]bool // those that have not ended
}

// connecting is an attempt to make a session, shared by everyone who waits for one.
type connecting struct {
	done    chan struct{}
	session *session
	err     error
	cancel  context.CancelFunc
}

// session is one session with a server.
type session struct {
	*mcp.ClientSession
	server   *server
	wire     *wire
	ended    chan struct{} // closed when the connection is
	finished chan struct{} // closed when nothing of the session is left

	mu      sync.Mutex
	users   int // calls in flight
	retired bool
	offers  map[string]*Offer // nil if the server does not say
	read    time.Time         // when offers was read
	reading bool
}

func (k *Kind) newServer(name string, spec connector.MCPServerSpec) *server {
	s := &server{name: name, spec: spec, desk: k.desk, patience: k.patience, listens: k.listens, sessions: make(map[*session]bool)}
	if spec.URL == "" {
		return s
	}
	var files connector.TLSSpec
	if spec.TLS != nil {
		files = *spec.TLS
	}
	secure, sum, err := files.Read()
	if err != nil {
		s.closed = true
		_ = errors.As(err, &s.fault)
		secure = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	s.files, s.client = sum, newClient(spec, secure)
	return s
}

// acquire returns the live session, or a new one. Release it.
func (s *server) acquire(ctx context.Context) (*session, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	if live := s.live; live != nil && live.use() {
		s.mu.Unlock()
		return live, nil
	}
	c := s.connecting
	if c == nil {
		c = &connecting{done: make(chan struct{})}
		// The attempt is everyone's, so it does not end with the call that began it.
		connectCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.patience.whole())
		c.cancel = cancel
		s.connecting = c
		go s.connect(withDispatch(connectCtx, nil), c)
	}
	s.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.err != nil {
		return nil, c.err
	}
	if !c.session.use() {
		return nil, errClosed // it has ended already
	}
	return c.session, nil
}

func (s *server) connect(ctx context.Context, c *connecting) {
	defer c.cancel()
	session, err := s.begin(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	c.session, c.err = session, err
	s.connecting = nil
	if err == nil {
		s.live = session
		s.sessions[session] = true
		if s.closed {
			session.retire()
		}
	}
	close(c.done)
}

// use counts a call in; false if the session takes no more.
func (s *session) use() bool {
	select {
	case <-s.ended:
		return false
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.retired {
		return false
	}
	s.users++
	return true
}

func (s *session) release() {
	s.mu.Lock()
	s.users--
	last := s.retired && s.users == 0
	s.mu.Unlock()
	if last {
		s.end()
	}
}

// retire takes no more calls, and ends the session when those in flight are done.
func (s *session) retire() {
	s.mu.Lock()
	last := !s.retired && s.users == 0
	s.retired = true
	s.mu.Unlock()
	if last {
		s.end()
	}
}

// end closes the connection, without waiting for anything.
func (s *session) end() {
	go func() {
		closed := make(chan struct{})
		go func() {
			_ = s.Close()
			close(closed)
		}()
		patience := time.NewTimer(2 * exitPatience)
		defer patience.Stop()
		select {
		case <-closed:
		case <-patience.C:
		}
		s.wire.sever()
		_ = s.wire.Close()
		close(s.finished)
		s.server.mu.Lock()
		delete(s.server.sessions, s)
		s.server.mu.Unlock()
	}()
}

// suspect asks a server that let a call run out of time whether it is still there. If it is not, and nobody else waits for
// it, the session ends, and a server of ours with it.
func (s *session) suspect() {
	ctx, cancel := context.WithTimeout(context.Background(), pingPatience)
	defer cancel()
	if s.Ping(ctx, nil) == nil {
		return
	}
	s.mu.Lock()
	idle := s.users == 0
	s.mu.Unlock()
	if idle {
		s.retire()
	}
}

// close ends every session and everything that was started. Calls in flight end without a reply.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	c := s.connecting
	s.mu.Unlock()
	if c != nil {
		c.cancel()
		<-c.done
	}
	s.mu.Lock()
	sessions := slices.Collect(maps.Keys(s.sessions))
	s.mu.Unlock()
	for _, session := range sessions {
		session.wire.sever()
		session.retire()
	}
	for _, session := range sessions {
		<-session.finished
	}
	if s.client != nil {
		s.client.pool.CloseIdle()
	}
}

// leave takes no more calls, and ends each session when those in flight are done.
func (s *server) leave() {
	s.mu.Lock()
	s.closed = true
	if s.connecting != nil {
		s.connecting.cancel()
	}
	sessions := slices.Collect(maps.Keys(s.sessions))
	s.mu.Unlock()
	for _, session := range sessions {
		session.retire()
	}
}
