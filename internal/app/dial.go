package app

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus"
	"github.com/agentrun/executor/internal/streams"
)

// dialTimeout bounds one attempt to reach a server.
const dialTimeout = 5 * time.Second

// Dial connects a command, which fails if there is no server; serve waits for one instead. name is shown by the server's
// monitoring. What the server says beside an answer is left to the request that it is about.
func Dial(c Connection, name string) (*nats.Conn, error) {
	opts := append(options(c), nats.Name(name), nats.Timeout(dialTimeout), nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	nc, err := nats.Connect(c.NATS, opts...)
	if err != nil {
		return nil, fmt.Errorf("cannot reach NATS at %s (--nats): %w", withoutPassword(c.NATS), err)
	}
	return nc, nil
}

// bus is what the flags of a connection stand for where the streams are used. Every connection to them is made from it, so
// that no command can leave a flag out.
func (c Connection) bus(name string) streams.Options {
	return streams.Options{Options: bus.Options{
		URL: c.NATS, Name: name, Creds: c.Creds, TLSCA: c.TLSCA, TLSCert: c.TLSCert, TLSKey: c.TLSKey, InboxPrefix: c.Inbox,
		API: c.API(),
	}}
}

// API is whose JetStream the flags mean.
func (c Connection) API() bus.API { return bus.API{Domain: c.JSDomain, Prefix: c.JSPrefix} }

// options are the same for the plain client.
func options(c Connection) []nats.Option {
	var opts []nats.Option
	if c.Creds != "" {
		opts = append(opts, nats.UserCredentials(c.Creds))
	}
	if c.TLSCA != "" {
		opts = append(opts, nats.RootCAs(c.TLSCA))
	}
	if c.Inbox != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.Inbox))
	}
	if c.TLSCert != "" {
		opts = append(opts, nats.ClientCert(c.TLSCert, c.TLSKey))
	}
	return opts
}
