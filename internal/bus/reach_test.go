package bus

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// lockedBuffer is a log that a test reads while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// certificate makes a certificate that is its own authority, for server and client, and returns it with the files' names.
func certificate(t *testing.T) (pair tls.Certificate, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if pair, err = tls.LoadX509KeyPair(cert, key); err != nil {
		t.Fatal(err)
	}
	return pair, cert, key
}

// vague is all that can be said of a certificate where the server's alert was lost.
const vague = "wants a client certificate, or refuses this one"

// A process that waits for its server says why it cannot come to it.
func TestWhyThereIsNoConnection(t *testing.T) {
	t.Parallel()
	pair, cert, key := certificate(t)
	_, otherCert, otherKey := certificate(t)
	pool := x509.NewCertPool()
	pool.AddCert(pair.Leaf)
	secure := bustest.Start(t, func(o *server.Options) {
		o.TLS, o.TLSTimeout = true, 5
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	}).URL
	guarded := bustest.Start(t, func(o *server.Options) { o.Username, o.Password = "fleet", "right" }).URL
	as := func(user string) string { return strings.Replace(guarded, "nats://", "nats://"+user+"@", 1) }
	plain := bustest.Start(t)
	plain.Stop()
	for _, c := range []struct {
		name        string
		o           Options
		why, remedy string
		certificate bool // what the server says of it may be lost on the way
	}{
		{"a wrong password", Options{URL: as("fleet:wr0ngpass")}, "the server refuses the user or password", "--creds", false},
		{"no user", Options{URL: guarded}, "the server refuses the user or password", "--creds", false},
		{"no client certificate", Options{URL: secure, TLSCA: cert}, "the server wants a client certificate", "--tls-cert", true},
		{"another's client certificate", Options{URL: secure, TLSCA: cert, TLSCert: otherCert, TLSKey: otherKey}, "the server refuses the client certificate", "--tls-cert", true},
		{"an unknown authority", Options{URL: secure, TLSCA: otherCert, TLSCert: cert, TLSKey: key}, "signed by an authority that is not known", "--tls-ca", false},
		{"nobody there", Options{URL: plain.URL}, "no server listens there", "--nats", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log lockedBuffer
			c.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			conn, err := Connect(c.o)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			named := func(text string) bool {
				return strings.Contains(text, c.why) || c.certificate && strings.Contains(text, vague)
			}
			bustest.Eventually(t, "the log names the reason", func() bool {
				return named(log.String()) && strings.Contains(log.String(), c.remedy)
			})
			if err := conn.NotConnected(); err == nil || !named(err.Error()) {
				t.Errorf("ready: %v", err)
			}
			// The commands, which do not wait, are told the same.
			nc, err := nats.Connect(c.o.URL, conn.natsOptions(c.o)[len(conn.natsOptions(Options{})):]...)
			if err == nil {
				nc.Close()
				t.Fatal("connected")
			}
			if why, remedy := Unreached(err); !named(why) || !strings.Contains(remedy, c.remedy) {
				t.Errorf("a command is told %q (%s): %v", why, remedy, err)
			}
			text := log.String()
			if strings.Contains(text, "wr0ngpass") || strings.Count(text, c.why) > 1 || strings.Count(text, vague) > 1 ||
				strings.Count(text, "nats cannot be reached") != strings.Count(text, c.why)+strings.Count(text, vague) {
				t.Errorf("the log says\n%s", text)
			}
		})
	}
}

// The reason goes when the connection comes.
func TestTheReasonEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	s.Stop()
	conn, err := Connect(Options{URL: s.URL, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	bustest.Eventually(t, "a reason", func() bool { return strings.Contains(conn.NotConnected().Error(), "no server listens") })
	s.StartAgain()
	bustest.Eventually(t, "the connection", conn.Connected)
	bustest.Eventually(t, "no reason", func() bool { return !strings.Contains(conn.NotConnected().Error(), "no server listens") })
}

// Who may not subscribe to the inbox that it uses is told which flag names the right one.
func TestAnInboxThatIsRefused(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_executor.>"}},
		}}}
	})
	nc, err := nats.Connect(strings.Replace(s.URL, "nats://", "nats://u:p@", 1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for subject, named := range map[string]bool{nc.NewInbox(): true, "agentrun.x": false} {
		if _, err := nc.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := Denied(nc.LastError()); !errors.Is(err, nats.ErrPermissionViolation) || strings.Contains(err.Error(), "--inbox-prefix") != named {
			t.Errorf("%s: %v", subject, err)
		}
	}
}
