// Package bus is the connection to NATS and what it stores by compare-and-set: the run records, numbered results, letters,
// alerts, large results, wakes and hints, the watches of them, and the clock. internal/streams keeps its streams there, and
// internal/queue pulls from it; both ask it, and it knows neither.
//
// It keeps no truth of its own. Each method says what is durable when it returns, whether it may be called
// concurrently, and which errors a caller branches on. Everything is safe for concurrent use unless it says otherwise.
package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentrun/executor/internal/boottime"
	"github.com/agentrun/executor/internal/port"
)

// Errors that callers branch on, beside those of port.
var (
	// ErrTooLarge: the message is above the server's or the stream's limit. Nothing was stored.
	ErrTooLarge error = refused("message too large")
	// ErrDenied: the user of this connection may not write there.
	ErrDenied error = refused("not permitted")
	// ErrUnsettled: the context ended before it was known whether the write landed. It may still land.
	ErrUnsettled = errors.New("the write may or may not have landed")
	// ErrGap: an earlier message of the result subject is missing; publish from there.
	ErrGap = errors.New("an earlier outcome is missing")
	// ErrNotLiteral: a name in the subject is no identifier. A wildcard would be taken for one by the server later.
	ErrNotLiteral = errors.New("not an identifier")
	// ErrClosed: the connection was closed by this process.
	ErrClosed = errors.New("connection closed")
)

// refused is a port.ErrRefused with its reason.
type refused string

func (r refused) Error() string { return string(r) }

// Is says that the store does not take it, now or later.
func (refused) Is(target error) bool { return target == port.ErrRefused }

// Refusal is a port.ErrRefused of the server that no other sentinel stands for.
type Refusal struct {
	Code        int    // the server's error code, for example 10097
	Description string // the server's text
}

func (r *Refusal) Error() string { return fmt.Sprintf("refused: %s (%d)", r.Description, r.Code) }

// Is says that the store does not take it, now or later.
func (*Refusal) Is(target error) bool { return target == port.ErrRefused }

// Options say how to reach the server.
type Options struct {
	URL   string // comma-separated; ignored with InProcess
	Name  string // shown in the server's connection list
	Creds string // credentials file, optional

	TLSCA, TLSCert, TLSKey string // files, optional

	API API // whose JetStream has the streams; the zero value is that of the account and server

	Keeper Keeper // of the streams; nil: nobody keeps them

	InboxPrefix string        // default _INBOX
	Extra       []nats.Option // applied first, so that what this package relies on wins
	InProcess   nats.InProcessConnProvider
	Logger      *slog.Logger // default: slog.Default()

	// Refused is called, from the client's own goroutine, with what the server says when this user lacks a permission;
	// optional. A process that serves goes on asking, since permissions may be granted; a command ends.
	Refused func(error)

	// AttemptTimeout is how long one attempt of a write or request waits for its answer before it is sent again;
	// default 2s, doubled with each attempt up to 10s.
	AttemptTimeout time.Duration
	// StalledAfter is for how long a write may wait for its acknowledgement before Healthy says so; default 8s.
	StalledAfter time.Duration
}

var (
	_ port.Store = (*Conn)(nil)
	_ port.Fleet = (*Conn)(nil)
	_ port.Watch = (*Conn)(nil)
	_ port.Waker = (*Conn)(nil)
)

// Conn is one connection with everything that hangs on it: the store, the fleet's records, the watches.
type Conn struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	log  *slog.Logger
	mux  *mux
	opts Options

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change of the connection's state
	gone    chan struct{} // closed and replaced when the connection is lost
	denied  chan struct{} // closed and replaced when the server has refused this user something
	made    chan struct{} // closed and replaced when a stream was made
	closed  chan struct{} // closed for good
	denial  error         // the latest
	closing bool
	why     string          // the last attempt to connect failed, "" while there is a connection
	whys    map[string]bool // all that the log has named since there was one

	clock  Clock
	stalls stalls
}

// Connect starts the connection and returns at once: if no server answers, it goes on trying in the background, for
// ever. Close it.
func Connect(o Options) (*Conn, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.AttemptTimeout <= 0 {
		o.AttemptTimeout = 2 * time.Second
	}
	if o.Keeper == nil {
		o.Keeper = unkept{}
	}
	if o.StalledAfter <= 0 {
		o.StalledAfter = stalledAfter
	}
	c := &Conn{
		log: o.Logger, opts: o,
		changed: make(chan struct{}), gone: make(chan struct{}), made: make(chan struct{}), denied: make(chan struct{}),
		closed: make(chan struct{}),
	}
	c.clock.now = boottime.Now
	c.stalls.connected(time.Now())
	c.mux = newMux(o.AttemptTimeout)
	nc, err := nats.Connect(o.URL, c.natsOptions(o)...)
	if err != nil {
		c.mux.stop()
		return nil, fmt.Errorf("bus: connect %s: %w", o.URL, err)
	}
	c.nc = nc
	if c.js, err = o.API.JetStream(nc); err == nil {
		err = c.mux.attach(nc)
	}
	if err != nil {
		c.mux.stop()
		nc.Close()
		return nil, fmt.Errorf("bus: connect: %w", err)
	}
	return c, nil
}

func (c *Conn) natsOptions(o Options) []nats.Option {
	opts := append(slices.Clone(o.Extra),
		nats.Name(o.Name),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectWait(250*time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 500*time.Millisecond),
		// Nothing is kept for later by the client: what could not be sent now is decided anew by us.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(5*time.Second),
		nats.MaxPingsOutstanding(2),
		nats.Timeout(2*time.Second),
		nats.DrainTimeout(10*time.Second),
		nats.ConnectHandler(func(nc *nats.Conn) {
			c.log.Info("nats connected", "url", nc.ConnectedUrlRedacted())
			c.reached()
			c.stalls.connected(time.Now())
			c.sayLimits(nc)
			c.stateChanged()
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.log.Info("nats reconnected", "url", nc.ConnectedUrlRedacted())
			c.reached()
			c.stalls.connected(time.Now())
			c.sayLimits(nc)
			c.stateChanged()
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.unreached(err) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if !c.isClosing() {
				c.log.Warn("nats disconnected", "error", err)
			}
			c.mux.loseAll()
			c.signal(&c.gone)
			c.opts.Keeper.Forget() // whoever comes back may have another store
			c.stateChanged()
		}),
		nats.ClosedHandler(func(*nats.Conn) { c.stateChanged() }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			err = Denied(err)
			if errors.Is(err, nats.ErrPermissionViolation) {
				c.mux.refused(err.Error())
				c.mu.Lock()
				c.denial = err
				c.mu.Unlock()
				c.signal(&c.denied)
			}
			if o.Refused != nil && errors.Is(err, nats.ErrPermissionViolation) {
				o.Refused(err)
			}
			if sub != nil {
				c.log.Error("nats", "subject", sub.Subject, "error", err)
				return
			}
			c.log.Error("nats", "error", err)
		}),
	)
	if o.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(o.InboxPrefix))
	}
	if o.InProcess != nil {
		opts = append(opts, nats.InProcessServer(o.InProcess))
	}
	if o.Creds != "" {
		opts = append(opts, nats.UserCredentials(o.Creds))
	}
	if o.TLSCA != "" {
		opts = append(opts, nats.RootCAs(o.TLSCA))
	}
	if o.TLSCert != "" || o.TLSKey != "" {
		opts = append(opts, nats.ClientCert(o.TLSCert, o.TLSKey))
	}
	return opts
}

// NATS returns the underlying connection, JetStream the library's view of what API names, Log the log.
func (c *Conn) NATS() *nats.Conn               { return c.nc }
func (c *Conn) JetStream() jetstream.JetStream { return c.js }
func (c *Conn) API() API                       { return c.opts.API }
func (c *Conn) Log() *slog.Logger              { return c.log }

// Server names the server process at the other end; empty while there is none. A server that is started anew has another
// name.
func (c *Conn) Server() string { return c.nc.ConnectedServerId() }

// Close ends everything that was started on the connection. Calls in flight return ErrUnsettled or ErrClosed.
func (c *Conn) Close() {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return
	}
	c.closing = true
	close(c.closed)
	c.mu.Unlock()
	if c.nc.IsConnected() {
		// Plain acknowledgements that were just sent must reach the server.
		_ = c.nc.FlushTimeout(time.Second)
	}
	c.mux.stop()
	c.nc.Close()
}

func (c *Conn) isClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}

// stateChanged wakes everyone who waits for the connection.
func (c *Conn) stateChanged() {
	c.signal(&c.changed)
	c.CheckStreams()
}

// signal wakes everyone who waits on one of the connection's channels.
func (c *Conn) signal(ch *chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(*ch)
	*ch = make(chan struct{})
}

// Changed is closed at the next change of the connection's state, Gone when the connection is lost, Closed when this process
// has closed it for good. Take it before looking.
func (c *Conn) Changed() <-chan struct{} { return c.next(&c.changed) }
func (c *Conn) Gone() <-chan struct{}    { return c.next(&c.gone) }
func (c *Conn) Closed() <-chan struct{}  { return c.closed }

// CheckStreams asks for a look at the streams soon.
func (c *Conn) CheckStreams() { c.opts.Keeper.Check() }

// Made lets every watch begin again: a stream was made.
func (c *Conn) Made() { c.signal(&c.made) }

// next returns the channel that the next signal closes. Take it before looking.
func (c *Conn) next(ch *chan struct{}) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *ch
}

// Connected reports whether there is a server at the other end right now.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// WaitConnected returns nil as soon as there is a connection.
func (c *Conn) WaitConnected(ctx context.Context) error {
	for {
		changed := c.next(&c.changed)
		if c.nc.IsConnected() {
			return nil
		}
		select {
		case <-changed:
		case <-c.closed:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("bus: waiting for a connection: %w", ctx.Err())
		}
	}
}

// MaxPayload is the server's limit for one message with its headers, in bytes; 0 while it is not known.
func (c *Conn) MaxPayload() int64 { return c.nc.MaxPayload() }

const (
	// messageOverhead is what a message's headers may take of the server's limit: those of a record, with its names.
	messageOverhead = 4 << 10
	// messageWanted is what holds the largest letter of the contract, headers included.
	messageWanted = 1 << 20
)

// MessageMax is how many bytes the body of a message of ours may have at the server that is connected, or was last; 0 while
// that is not known.
func (c *Conn) MessageMax() int {
	if most := int(c.nc.MaxPayload()); most > 0 {
		return max(most-messageOverhead, 1)
	}
	return 0
}

// sayLimits warns of a server that takes less than the contract allows.
func (c *Conn) sayLimits(nc *nats.Conn) {
	if most := nc.MaxPayload(); most > 0 && most < messageWanted {
		c.log.Warn("the server's max_payload is small: runs, results and dead letters are bounded by it, and what does not fit is refused or kept as an object",
			"max_payload", most, "wanted", messageWanted)
	}
}
