package bus

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// refusedFirst connects, sees that the server refuses what the files hold, renews them, and is let in without a restart.
func refusedFirst(t *testing.T, o Options, renew func()) {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	conn, err := Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	bustest.Eventually(t, "a reason why there is no connection", func() bool {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		return conn.why != ""
	})
	renew()
	bustest.Eventually(t, "the connection with the renewed files", conn.Connected)
}

// The TLS files of the connection are read at every connect.
func TestRenewedTLSFilesAreUsedAtTheNextConnect(t *testing.T) {
	t.Parallel()
	pair, cert, key := certificate(t)
	_, oldCert, oldKey := certificate(t)
	pool := x509.NewCertPool()
	pool.AddCert(pair.Leaf)
	url := bustest.Start(t, func(o *server.Options) {
		o.TLS, o.TLSTimeout = true, 5
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	}).URL
	refusedFirst(t, Options{URL: url, TLSCA: oldCert, TLSCert: oldCert, TLSKey: oldKey}, func() {
		for to, from := range map[string]string{oldCert: cert, oldKey: key} {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// So is the credentials file: a user's JWT is renewed long before the process ends.
func TestRenewedCredentialsAreUsedAtTheNextConnect(t *testing.T) {
	t.Parallel()
	pair := func(make func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
		k, err := make()
		if err != nil {
			t.Fatal(err)
		}
		public, err := k.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		return k, public
	}
	operator, trusted := pair(nkeys.CreateOperator)
	account, named := pair(nkeys.CreateAccount)
	accountJWT, err := jwt.NewAccountClaims(named).Encode(operator)
	if err != nil {
		t.Fatal(err)
	}
	accounts := &server.MemAccResolver{}
	if err := accounts.Store(named, accountJWT); err != nil {
		t.Fatal(err)
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, TrustedKeys: []string{trusted}, AccountResolver: accounts})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	file := filepath.Join(t.TempDir(), "user.creds")
	write := func(expires time.Time) {
		t.Helper()
		user, public := pair(nkeys.CreateUser)
		claims := jwt.NewUserClaims(public)
		claims.Expires = expires.Unix()
		token, err := claims.Encode(account)
		if err != nil {
			t.Fatal(err)
		}
		seed, err := user.Seed()
		if err != nil {
			t.Fatal(err)
		}
		creds, err := jwt.FormatUserConfig(token, seed)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file+".new", creds, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(time.Now().Add(-time.Hour))
	refusedFirst(t, Options{URL: s.ClientURL(), Creds: file}, func() { write(time.Now().Add(time.Hour)) })
}
