package mcptool_test

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/mcptool"
	"github.com/agentrun/executor/pkg/envelope"
)

// The TLS files are read anew with every version of the config: what holds the same keeps its session, what holds something
// else begins one with that, and what cannot be used is refused before anything changes.
func TestTLSFilesAreReadAnew(t *testing.T) {
	t.Parallel()
	p := newPeer(t, nil)
	far := httptest.NewUnstartedServer(http.HandlerFunc(p.serve))
	far.Config.ErrorLog = log.New(io.Discard, "", 0)
	far.StartTLS()
	t.Cleanup(far.Close)
	file := filepath.Join(t.TempDir(), "ca.pem")
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	right := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: far.Certificate().Raw})
	write(right)
	servers := map[string]connector.MCPServerSpec{"billing": {URL: far.URL + "/mcp", TLS: &connector.TLSSpec{CA: file}}}
	kind := mcptool.New(servers)
	t.Cleanup(func() { kind.Close() })
	next := func() {
		k := kind.Next(servers)
		kind.Leave(k)
		kind = k
	}
	credit := func() envelope.Reply {
		return compile(t, &peer{kind: kind}, envelope.Write, nil).Caller.Call(t.Context(), call(`{}`))
	}
	for range 2 {
		if got := credit(); !got.OK {
			t.Fatalf("got %+v", got)
		}
		next()
	}
	if n := p.count("initialize"); n != 1 {
		t.Fatalf("%d sessions although nothing has changed", n)
	}
	write([]byte("-----BEGIN CERTIFICATE-----\nhalf"))
	bad := kind.Next(servers)
	_, err := connector.Compile(connector.Spec{Name: "credit", Effect: envelope.Write, Kind: connector.KindSpec{MCP: &connector.MCPSpec{Server: "billing", Tool: "credit"}}}, bad)
	if err == nil || !strings.Contains(err.Error(), "tls.ca holds no PEM certificate") {
		t.Fatalf("a half-written file: %v", err)
	}
	if _, err := bad.List(t.Context(), "billing"); err == nil {
		t.Fatal("a server without its files was asked")
	}
	bad.Leave(kind)
	if got := credit(); !got.OK {
		t.Fatalf("after a version that was not taken: %+v", got)
	}
	write(append(right, right...))
	next()
	if got := credit(); !got.OK || p.count("initialize") != 2 {
		t.Fatalf("%d sessions, %+v", p.count("initialize"), got)
	}
}
