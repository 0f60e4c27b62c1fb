package cli

import (
	"testing"
)

// TestEmbeddedServerOfADomain: the embedded server has the domain that the executor asks for, and only that one.
func TestEmbeddedServerOfADomain(t *testing.T) {
	t.Parallel()
	config := write(t, "c.yaml", "tools:\n  t: {effect: read, command: {argv: [/bin/true]}}\n")
	p := serve(t, "--embedded-nats", "--nats", "nats://127.0.0.1:0", "--js-domain", "edge", "--config", config, "--data", t.TempDir())
	if code, body := p.get(t, "/readyz"); code != 200 {
		t.Errorf("/readyz: %d %q", code, body)
	}
	if code := p.end(t); code != 0 {
		t.Errorf("exit code %d:\n%s", code, p.log)
	}
}
