package bus

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"
)

// Unreached says why a connection is not there, in words for whoever runs the process, and what mends it; remedy is "" where
// that follows from the words. Neither holds a password.
func Unreached(err error) (why, remedy string) {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case errors.Is(err, nats.ErrAuthorization), strings.Contains(strings.ToLower(text), "authorization violation"):
		return "the server refuses the user or password", "correct the user and password in --nats, or the file of --creds"
	case errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		return "the server refuses the credentials: " + strings.TrimPrefix(text, "nats: "), "issue new ones, and name their file in --creds"
	// The server's alerts have no type of their own in crypto/tls.
	case strings.Contains(text, "certificate required"):
		return "the server wants a client certificate", "give --tls-cert and --tls-key"
	case strings.Contains(text, "tls: bad certificate"), strings.Contains(text, "tls: unknown certificate"):
		return "the server refuses the client certificate", "correct --tls-cert and --tls-key: the server's authority must have signed it"
	// With TLS 1.3 the server judges the certificate after the client's side of the handshake is done (RFC 8446, 4.4.2.4).
	// Its alert is lost where the client's next bytes meet a closed connection.
	case strings.Contains(text, "closed by remote after TLS handshake"):
		return "the server closed the connection after the TLS handshake: it wants a client certificate, or refuses this one", "correct --tls-cert and --tls-key: the server's authority must have signed it"
	case errors.As(err, &authority):
		return "the server's certificate is signed by an authority that is not known here", "name its PEM file in --tls-ca"
	case errors.As(err, &host):
		return "the server's certificate is for another name", "use a name of the certificate in --nats"
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "the server speaks no TLS", "remove tls:// and --tls-…, or give the server a certificate"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, nats.ErrNoServers):
		return "no server listens there", "start it, or correct --nats"
	case text == "":
		return "no server answers", ""
	}
	return text, ""
}

// reasonsMost bounds what the log says while one connection is away: a reason that nobody foresaw may hold a port.
const reasonsMost = 16

// unreached notes why an attempt to connect failed, and says so once for each reason: the next attempts follow every
// quarter of a second.
func (c *Conn) unreached(err error) {
	why, remedy := Unreached(err)
	c.mu.Lock()
	known := c.whys[why] || len(c.whys) >= reasonsMost
	if c.whys == nil {
		c.whys = map[string]bool{}
	}
	c.why, c.whys[why] = why, true
	c.mu.Unlock()
	if known || c.isClosing() {
		return
	}
	c.log.Warn("nats cannot be reached; trying on", "reason", why, "remedy", remedy)
}

// reached forgets the reasons.
func (c *Conn) reached() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.why, c.whys = "", nil
}

// NotConnected is what is said while there is no connection.
func (c *Conn) NotConnected() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == "" {
		return errors.New("not connected to nats")
	}
	return fmt.Errorf("not connected to nats: %s", c.why)
}

// Denied is a refusal of the server with what mends it, where that is known: replies come back to an inbox, and a user of
// deploy/nats/accounts.conf may have one of its own name only.
func Denied(err error) error {
	if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), `Subscription to "_INBOX.`) {
		return err
	}
	return fmt.Errorf("%w (no reply can come: give the inbox that this user has, for example --inbox-prefix _INBOX_executor)", err)
}
