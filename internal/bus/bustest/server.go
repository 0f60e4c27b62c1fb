// Package bustest runs real NATS servers inside a test: one, or three with replicated streams.
package bustest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"
)

// startLimit bounds every wait for a server.
const startLimit = time.Minute

// Option changes a server.
type Option func(*server.Options)

// SyncAlways makes the server write through to the disk before it acknowledges.
func SyncAlways() Option { return func(o *server.Options) { o.SyncAlways = true } }

// MaxPayload sets the limit for one message, in bytes.
func MaxPayload(n int32) Option { return func(o *server.Options) { o.MaxPayload = n } }

// MaxStore sets how many bytes all streams may take on disk together.
func MaxStore(n int64) Option { return func(o *server.Options) { o.JetStreamMaxStore = n } }

// Server is one server with a store of its own, which can be stopped and started again at the same address.
type Server struct {
	URL string

	tb      testing.TB
	options server.Options
	mu      sync.Mutex
	running *server.Server
	conns   []*nats.Conn // of Conn
}

// Start runs a server with JetStream on 127.0.0.1 until the test ends.
func Start(tb testing.TB, options ...Option) *Server {
	tb.Helper()
	o := server.Options{
		ServerName: "bustest", Host: "127.0.0.1", Port: Port(tb), JetStream: true, StoreDir: tb.TempDir(),
		NoSigs: true, NoLog: true,
	}
	for _, option := range options {
		option(&o)
	}
	s := &Server{tb: tb, options: o, URL: fmt.Sprintf("nats://127.0.0.1:%d", o.Port)}
	s.StartAgain()
	tb.Cleanup(s.Stop)
	return s
}

// StartAgain starts the server on its old store, at its old address, and returns when the connections of Conn are with it: what
// is published on one that has not seen the end of the old server yet is lost.
func (s *Server) StartAgain() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return
	}
	o := s.options // the server changes what it is given
	running, err := server.NewServer(&o)
	if err != nil {
		s.tb.Fatalf("nats server: %v", err)
	}
	running.Start()
	if !running.ReadyForConnections(startLimit) {
		s.tb.Fatalf("nats server not ready after %s", startLimit)
	}
	s.running = running
	for _, nc := range s.conns {
		Eventually(s.tb, "connected again", func() bool { return nc.IsClosed() || nc.ConnectedServerId() == running.ID() })
	}
}

// Change changes what a stopped server will be when it is started again.
func (s *Server) Change(options ...Option) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, option := range options {
		option(&s.options)
	}
}

// Stop shuts the server down and keeps its store.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return
	}
	s.running.Shutdown()
	s.running.WaitForShutdown()
	s.running = nil
}

// Rewind runs fn and then kills the server as a power loss would that this one stream did not survive whole: when it has
// started again the stream is as it was before fn, the others are as they are.
func (s *Server) Rewind(stream string, fn func()) {
	s.tb.Helper()
	live := filepath.Join(s.options.StoreDir, "jetstream", "$G", "streams", stream)
	kept := filepath.Join(s.tb.TempDir(), stream)
	if err := os.CopyFS(kept, os.DirFS(live)); err != nil {
		s.tb.Fatal(err)
	}
	fn()
	s.Stop()
	err := os.RemoveAll(live)
	if err == nil {
		err = os.CopyFS(live, os.DirFS(kept))
	}
	if err != nil {
		s.tb.Fatal(err)
	}
	s.StartAgain()
}

// Copy copies the whole store of the server, which must be stopped, and returns what puts the copy back in its place. The
// server must be stopped then too.
func (s *Server) Copy() (putBack func()) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := s.options.StoreDir
	kept := s.tb.TempDir()
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		s.tb.Fatal(err)
	}
	return func() {
		s.tb.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		err := os.RemoveAll(dir)
		if err == nil {
			err = os.CopyFS(dir, os.DirFS(kept))
		}
		if err != nil {
			s.tb.Fatal(err)
		}
	}
}

// Wipe gives a stopped server an empty store.
func (s *Server) Wipe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.options.StoreDir = s.tb.TempDir()
}

// Embedded returns the running server, for in-process connections; nil while it is stopped.
func (s *Server) Embedded() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// Conn returns a plain connection for what a test does beside the code under test. It survives restarts.
func (s *Server) Conn() *nats.Conn {
	s.tb.Helper()
	nc := connect(s.tb, s.URL)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, nc)
	return nc
}

func connect(tb testing.TB, url string) *nats.Conn {
	tb.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		tb.Fatalf("connect %s: %v", url, err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

// Cluster is three servers that replicate streams among them.
type Cluster struct {
	URL     string // of all three
	Servers []*Server
}

// StartCluster runs three servers and waits until they have a leader.
func StartCluster(tb testing.TB, options ...Option) *Cluster {
	tb.Helper()
	const size = 3
	ports, routes := make([]int, size), ""
	for i := range ports {
		ports[i] = Port(tb)
		if i > 0 {
			routes += ","
		}
		routes += fmt.Sprintf("nats://127.0.0.1:%d", ports[i])
	}
	c := &Cluster{}
	dir := tb.TempDir()
	for i := range size {
		o := server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: Port(tb), JetStream: true,
			StoreDir: filepath.Join(dir, fmt.Sprintf("n%d", i)), NoSigs: true, NoLog: true,
			Cluster: server.ClusterOpts{Name: "bustest", Host: "127.0.0.1", Port: ports[i]},
			Routes:  server.RoutesFromStr(routes),
		}
		for _, option := range options {
			option(&o)
		}
		s := &Server{tb: tb, options: o, URL: fmt.Sprintf("nats://127.0.0.1:%d", o.Port)}
		s.StartAgain()
		tb.Cleanup(s.Stop)
		c.Servers = append(c.Servers, s)
		if i > 0 {
			c.URL += ","
		}
		c.URL += s.URL
	}
	Eventually(tb, "the cluster has a leader that knows all three", func() bool {
		for _, s := range c.Servers {
			if e := s.Embedded(); e.JetStreamIsLeader() {
				return len(e.JetStreamClusterPeers()) == size
			}
		}
		return false
	})
	return c
}

// Conn returns a plain connection to the cluster.
func (c *Cluster) Conn(tb testing.TB) *nats.Conn {
	tb.Helper()
	return connect(tb, c.URL)
}

// Eventually asks again and again until done, and fails the test after a generous time. It is for states of the server
// that nothing signals; what signals is waited for.
func Eventually(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-limit.C:
			tb.Fatalf("not within %s: %s", startLimit, what)
		}
	}
}

// Port returns a port of 127.0.0.1 that is the test's until it ends: whoever asks for any port is given another, also
// while nothing listens on it. A server keeps its address across restarts, so it cannot ask for any itself.
//
// On Linux a socket that is bound and does not listen keeps a port from those that ask for any, and not from a listener that
// names it, where both have SO_REUSEADDR, as all of Go's listeners have.
func Port(tb testing.TB) int {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatalf("socket: %v", err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	var bound unix.Sockaddr
	if err == nil {
		bound, err = unix.Getsockname(fd)
	}
	if err != nil {
		tb.Fatalf("bind: %v", err)
	}
	return bound.(*unix.SockaddrInet4).Port
}
