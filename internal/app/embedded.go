package app

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// Embedded is a NATS server inside this process, with JetStream on a directory.
type Embedded struct {
	dir string

	mu      sync.Mutex
	options natsserver.Options
	server  *natsserver.Server // nil while it is being started anew, and after Close
	closed  bool
}

const embeddedStart = 20 * time.Second

// EmbeddedAddr takes the one host and port that a server in this process can listen at from --nats.
func EmbeddedAddr(natsURL string) (addr string, err error) {
	u, err := url.Parse(natsURL)
	if err != nil || strings.Contains(natsURL, ",") || u.Scheme != "nats" || u.Port() == "" {
		return "", fmt.Errorf("--nats: with --embedded-nats it must be one nats://host:port to listen at, not %q", withoutPassword(natsURL))
	}
	if u.User != nil {
		return "", fmt.Errorf("--nats: an embedded server has no users: leave them out of the URL")
	}
	return u.Host, nil
}

// StartEmbedded runs a NATS server that listens at addr (port 0 takes a free one) and keeps its streams in dir; domain is its
// JetStream's, "" for none.
func StartEmbedded(addr, dir, domain string) (*Embedded, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("the embedded NATS server's address %q: %w", addr, err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, fmt.Errorf("the embedded NATS server's port %q is no number", portText)
	}
	if port == 0 {
		port = natsserver.RANDOM_PORT
	} else {
		// The server only logs that its port is taken, and its log is off: ask first.
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("the embedded NATS server cannot listen at %s: %w", addr, err)
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("the embedded NATS server's address %s: %w", addr, err)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the embedded NATS server's store: %w", err)
	}
	e := &Embedded{dir: dir, options: natsserver.Options{
		ServerName: "agentrun", Host: host, Port: port,
		JetStream: true, StoreDir: dir, JetStreamDomain: domain,
		NoSigs: true, // else the library installs signal handlers of its own
		NoLog:  true,
	}}
	if err := e.start(); err != nil {
		return nil, err
	}
	e.options.Port = e.server.Addr().(*net.TCPAddr).Port // clients find it there when it is started anew
	return e, nil
}

// start runs the server; the caller has e.mu, or nobody else has e.
func (e *Embedded) start() error {
	o := e.options // the server changes what it is given
	s, err := natsserver.NewServer(&o)
	if err != nil {
		return fmt.Errorf("the embedded NATS server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(embeddedStart) {
		s.Shutdown()
		s.WaitForShutdown()
		return fmt.Errorf("the embedded NATS server at %s:%d was not ready within %s; is its store %s damaged or in use?", e.options.Host, e.options.Port, embeddedStart, e.dir)
	}
	e.server = s
	return nil
}

// URL is where clients reach the server.
func (e *Embedded) URL() string {
	return "nats://" + net.JoinHostPort(e.options.Host, strconv.Itoa(e.options.Port))
}

// Close stops the server and waits until its store is closed.
func (e *Embedded) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.stop()
}

func (e *Embedded) stop() {
	if e.server == nil {
		return
	}
	e.server.Shutdown()
	e.server.WaitForShutdown()
	e.server = nil
}
