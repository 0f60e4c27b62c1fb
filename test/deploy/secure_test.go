package deploy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/agentrun/executor/internal/bus/bustest"
)

// authority makes certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority writes ca.crt into dir.
func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key, a.cert = a.sign(template, "ca", nil, nil)
	return a
}

// issue writes <name>.crt and <name>.key into dir, for a server at 127.0.0.1 or for a client.
func (a *authority) issue(name string) {
	a.t.Helper()
	a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, name, a.cert, a.key)
}

func (a *authority) sign(template *x509.Certificate, name string, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	a.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	return key, cert
}

func (a *authority) write(name string, data []byte) {
	writeFile(a.t, filepath.Join(a.dir, name), string(data))
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTLS: with tls.conf included, nobody connects without a certificate of the authority, and the fleet works.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := newAuthority(t, dir)
	a.issue("tls")
	a.issue("client")
	for _, name := range []string{"nats.conf", "accounts.conf"} {
		writeFile(t, filepath.Join(dir, name), read(t, "deploy/nats/"+name))
	}
	writeFile(t, filepath.Join(dir, "tls.conf"), strings.ReplaceAll(read(t, "deploy/nats/tls.conf"), "/tls/", dir+"/"))
	writeFile(t, filepath.Join(dir, "server.conf"), "include ./nats.conf\ninclude ./tls.conf\n")
	n := start(t, filepath.Join(dir, "server.conf"), nil)
	ca, cert, key := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
	for what, options := range map[string][]nats.Option{
		"without TLS":           nil,
		"without a certificate": {nats.RootCAs(ca)},
		"without the authority": {nats.ClientCert(cert, key)},
	} {
		if nc, err := nats.Connect(n.as("executor"), append(options, nats.Timeout(limit))...); err == nil {
			nc.Close()
			t.Errorf("a client connects %s", what)
		}
	}
	f := n.fleet(t, toolConfig(t), "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key)
	nc, err := nats.Connect(n.as("publisher-acme"), nats.CustomInboxPrefix(inbox("publisher-acme")), nats.RootCAs(ca), nats.ClientCert(cert, key))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if !nc.TLSRequired() {
		t.Error("the connection is not encrypted")
	}
	submitOne(t, nc, f)
}

// submitOne runs one job with a write to its end.
func submitOne(t *testing.T, nc *nats.Conn, f *fleet) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	p := &publisher{t: t, nc: nc, js: js}
	all := p.submit(fmt.Sprintf("r%d", time.Now().UnixNano()), "get_invoice", "apply_credit")
	if end := all[len(all)-1]; end.Outcome != "ok" {
		t.Errorf("the run ended %+v\n%s", end, f.executor.log)
	}
}

// TestCredentials: the same permissions in the form of JWTs, with a credentials file for each process.
func TestCredentials(t *testing.T) {
	t.Parallel()
	shipped, err := server.ProcessConfigFile(filepath.Join(root, "deploy/nats/nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	operator := newSigner(t, nkeys.CreateOperator)
	account := newSigner(t, nkeys.CreateAccount)
	system := newSigner(t, nkeys.CreateAccount)
	resolver := ""
	for _, a := range []struct {
		*signer
		name string
	}{{account, "AGENTRUN"}, {system, "SYS"}} {
		claims := jwt.NewAccountClaims(a.public)
		claims.Name = a.name
		if a.signer == account {
			claims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: jwt.NoLimit, MemoryStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
		}
		token, err := claims.Encode(operator.key)
		if err != nil {
			t.Fatal(err)
		}
		resolver += fmt.Sprintf("%s: %s\n", a.public, token)
	}
	claims := jwt.NewOperatorClaims(operator.public)
	claims.SystemAccount = system.public
	token, err := claims.Encode(operator.key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "server.conf"), fmt.Sprintf(
		"jetstream {store_dir: %q, sync_interval: always}\noperator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload {\n%s}\n", dir, token, system.public, resolver))
	n := start(t, filepath.Join(dir, "server.conf"), nil)
	creds := map[string]string{}
	for _, u := range shipped.Users {
		if u.Account.Name == "AGENTRUN" {
			creds[u.Username] = credentials(t, dir, u, account)
		}
	}
	config := toolConfig(t)
	flags := func(user string) []string {
		return []string{"--nats", "nats://" + n.url, "--creds", creds[user], "--inbox-prefix", inbox(user), "--config", config, "--id", user}
	}
	f := &fleet{reconciler: reconcilerServe(t, flags("reconciler")...), executor: executorServe(t, flags("executor")...)}
	publisher := &server.User{Username: "publisher", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{"agentrun.jobs.*.acme.*"}}, Subscribe: &server.SubjectPermission{Allow: []string{">"}},
	}}
	nc, err := nats.Connect("nats://"+n.url, nats.UserCredentials(credentials(t, dir, publisher, account)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	submitOne(t, nc, f)
	if _, err := nats.Connect("nats://"+n.url, nats.Timeout(limit)); err == nil {
		t.Error("a client connects without credentials")
	}
	f.executor.stop()
	f.reconciler.stop()
	for _, line := range n.refuse.take() {
		if !strings.Contains(line, "Authorization") && !strings.Contains(line, "uthentication") {
			t.Errorf("refused in an ordinary flow: %s", line)
		}
	}
}

// signer is a key that signs JWTs.
type signer struct {
	key    nkeys.KeyPair
	public string
}

func newSigner(t *testing.T, create func() (nkeys.KeyPair, error)) *signer {
	t.Helper()
	key, err := create()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return &signer{key, public}
}

// credentials writes a credentials file for a user with the permissions of a configured one.
func credentials(t *testing.T, dir string, u *server.User, account *signer) string {
	t.Helper()
	user := newSigner(t, nkeys.CreateUser)
	claims := jwt.NewUserClaims(user.public)
	claims.Name = u.Username
	if p := u.Permissions.Publish; p != nil {
		claims.Pub = jwt.Permission{Allow: p.Allow, Deny: p.Deny}
	}
	if p := u.Permissions.Subscribe; p != nil {
		claims.Sub = jwt.Permission{Allow: p.Allow, Deny: p.Deny}
	}
	if r := u.Permissions.Response; r != nil {
		claims.Resp = &jwt.ResponsePermission{MaxMsgs: r.MaxMsgs, Expires: r.Expires}
	}
	token, err := claims.Encode(account.key)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.key.Seed()
	if err != nil {
		t.Fatal(err)
	}
	data, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, u.Username+".creds")
	writeFile(t, file, string(data))
	return file
}

// TestCluster: three servers with cluster.conf keep three copies, and the fleet goes on without one of them.
func TestCluster(t *testing.T) {
	t.Setenv("NATS_ROUTES_USER", "routes")
	t.Setenv("NATS_ROUTES_PASSWORD", "secret1")
	ports := make([]int, 3)
	for i := range ports {
		ports[i] = bustest.Port(t)
		t.Setenv(fmt.Sprintf("NATS_ROUTE_%d", i+1), fmt.Sprintf("nats://routes:secret1@127.0.0.1:%d", ports[i]))
	}
	var nodes []*natsServer
	urls := map[string][]string{}
	for i, port := range ports {
		t.Setenv("NATS_SERVER_NAME", fmt.Sprintf("nats-%d", i))
		n := start(t, filepath.Join(root, "deploy/nats/cluster.conf"), func(o *server.Options) {
			o.Cluster.Host, o.Cluster.Port = "127.0.0.1", port
		})
		nodes = append(nodes, n)
		for _, user := range users {
			urls[user] = append(urls[user], n.as(user))
		}
	}
	config := toolConfig(t)
	flags := func(user string) []string {
		return []string{"--nats", strings.Join(urls[user], ","), "--inbox-prefix", inbox(user), "--config", config, "--id", user, "--replicas", "3"}
	}
	f := &fleet{reconciler: reconcilerServe(t, flags("reconciler")...), executor: executorServe(t, flags("executor")...)}
	nc, err := nats.Connect(strings.Join(urls["publisher-acme"], ","), nats.CustomInboxPrefix(inbox("publisher-acme")), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	submitOne(t, nc, f)
	observer, err := nats.Connect(strings.Join(urls["observer"], ","), nats.CustomInboxPrefix(inbox("observer")), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(observer.Close)
	for _, stream := range []string{"JOBS", "WAKES", "RUNS", "RESULTS", "DEADLETTERS", "ALERTS"} {
		m, err := observer.Request("agentrun.api.STREAM.INFO.AGENTRUN_"+stream, nil, limit)
		if err != nil || !strings.Contains(string(m.Data), `"num_replicas":3`) {
			t.Errorf("%s has no three copies: %v", stream, err)
		}
	}
	nodes[0].Shutdown()
	nodes[0].WaitForShutdown()
	reconnected(t, nc)
	submitOne(t, nc, f)
	f.executor.stop()
	f.reconciler.stop()
	for _, n := range nodes {
		for _, line := range n.refuse.take() {
			if strings.Contains(line, "Violation") {
				t.Errorf("refused in an ordinary flow: %s", line)
			}
		}
	}
}

// reconnected waits until a connection is there and the server at its other end answers.
func reconnected(t *testing.T, nc *nats.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for nc.FlushWithContext(ctx) != nil {
		if ctx.Err() != nil {
			t.Fatal("not connected again")
		}
	}
}
