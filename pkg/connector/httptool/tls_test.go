package httptool_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/httptool"
	"github.com/agentrun/executor/pkg/envelope"
)

func caFile(t *testing.T, s *httptest.Server) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ca.pem")
	b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestUntrustedServerIsNotSent(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	p := newPeer(t)
	tool := compile(t, p, "POST", envelope.Write, func(sp *connector.Spec) { sp.Kind.HTTP.URL = s.URL })
	if got := tool.Caller.Call(t.Context(), newCall(`{}`)); !got.NotSent || got.Row.Code != envelope.CodeUpstreamUnavailable {
		t.Fatalf("got %+v", got)
	}
}

// stranger is the certificate of an authority that has signed nobody.
func stranger(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	who := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "stranger"}, IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, who, who, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// A reload makes every tool anew by the same kind: it reads the TLS files as they are, and refuses those that are broken.
// Tools that were made before go on as they were.
func TestTLSFilesAreReadAnewAtAReload(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	ca := caFile(t, s)
	good, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	k := httptool.New()
	defer k.Close()
	load := func(content []byte) (*connector.Tool, error) {
		if err := os.WriteFile(ca, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return connector.Compile(connector.Spec{
			Name: "x", Effect: envelope.Write,
			Kind: connector.KindSpec{HTTP: &connector.HTTPSpec{Method: "POST", URL: s.URL, TLS: &connector.TLSSpec{CA: ca, ServerName: "example.com"}}},
		}, k)
	}
	answered := func(tool *connector.Tool) bool { return tool.Caller.Call(t.Context(), newCall(`{}`)).OK }
	first, err := load(good)
	if err != nil || !answered(first) {
		t.Fatalf("it is not called: %v", err)
	}
	if other, err := load(stranger(t)); err != nil || answered(other) {
		t.Errorf("another authority is in the file, and the server is still trusted (%v)", err)
	}
	if _, err := load([]byte("no certificate")); err == nil {
		t.Error("a broken file is accepted")
	}
	if !answered(first) {
		t.Error("the tool from before does not work any more")
	}
	if again, err := load(good); err != nil || !answered(again) {
		t.Errorf("the right file is back, and it is not called: %v", err)
	}
}

func TestSpecErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		spec connector.HTTPSpec
		path string
	}{
		{"scheme", connector.HTTPSpec{URL: "ftp://h/"}, "[http url]"},
		{"no host", connector.HTTPSpec{URL: "https:///x"}, "[http url]"},
		{"placeholder in host", connector.HTTPSpec{URL: "https://{h}/x"}, "[http url]"},
		{"credentials", connector.HTTPSpec{URL: "https://u:s3cr3t@h/x"}, "[http url]"},
		{"fragment", connector.HTTPSpec{URL: "https://h/x#{a}"}, "[http url]"},
		{"open brace", connector.HTTPSpec{URL: "https://h/{x"}, "[http url]"},
		{"odd name", connector.HTTPSpec{URL: "https://h/{x.y}"}, "[http url]"},
		{"parameter name", connector.HTTPSpec{URL: "https://h/?{x}=1"}, "[http url]"},
		{"port", connector.HTTPSpec{URL: "https://h:no/"}, "[http url]"},
		{"method", connector.HTTPSpec{URL: "https://h/", Method: "TRACE"}, "[http method]"},
		{"no method", connector.HTTPSpec{URL: "https://h/"}, "[http method]"},
		{"header name", connector.HTTPSpec{URL: "https://h/", Method: "POST", Headers: map[string]string{"a b": "1"}}, "[http headers a b]"},
		{"header value", connector.HTTPSpec{URL: "https://h/", Method: "POST", Headers: map[string]string{"A": "s3cr3t\r\nB: 1"}}, "[http headers A]"},
		{"own key", connector.HTTPSpec{URL: "https://h/", Method: "POST", Headers: map[string]string{"idempotency-key": "1"}}, "[http headers idempotency-key]"},
		{"length", connector.HTTPSpec{URL: "https://h/", Method: "POST", Headers: map[string]string{"Content-Length": "1"}}, "[http headers Content-Length]"},
		{"key header", connector.HTTPSpec{URL: "https://h/", Method: "POST", IdempotencyHeader: "a:b"}, "[http idempotency_header]"},
		{"ca", connector.HTTPSpec{URL: "https://h/", Method: "POST", TLS: &connector.TLSSpec{CA: "/does/not/exist"}}, "[http tls ca]"},
		{"half a pair", connector.HTTPSpec{URL: "https://h/", Method: "POST", TLS: &connector.TLSSpec{Cert: "x"}}, "[http tls cert]"},
		{"connections", connector.HTTPSpec{URL: "https://h/", Method: "POST", MaxConnsPerHost: -1}, "[http max_conns_per_host]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.spec.Method == "" && c.name != "no method" {
				c.spec.Method = "POST"
			}
			_, err := connector.Compile(connector.Spec{
				Name: "x", Effect: envelope.Write, Kind: connector.KindSpec{HTTP: &c.spec},
			}, httptool.New())
			e, ok := err.(*connector.SpecError)
			if !ok || !strings.HasPrefix(e.Error(), c.path+": ") {
				t.Fatalf("got %v, want it at %s", err, c.path)
			}
			if strings.Contains(err.Error(), "s3cr3t") {
				t.Fatalf("the message holds a value of the config: %v", err)
			}
		})
	}
}
