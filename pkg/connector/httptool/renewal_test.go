package httptool_test

import (
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

func (i *issuer) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

// A token that the API refuses is renewed once: the operation goes out again with the next one, as an attempt of its own.
func TestRefusedTokenIsRenewedOnce(t *testing.T) {
	i := newIssuer(t)
	tool := i.tool(t, newKind(t), nil)
	attempt := func(want envelope.Code, requests int) {
		t.Helper()
		_, before := i.counts()
		got := tool.Caller.Call(t.Context(), newCall(`{}`))
		if _, after := i.counts(); got.Row.Code != want || got.OK != (want == "") || after-before != requests {
			t.Fatalf("%d requests, got %+v; wanted %q", after-before, got, want)
		}
		if want == envelope.CodeCredentialsExpired && (got.NotSent || got.Row != envelope.RowFor(want, envelope.Write) || got.Row.CommitState != envelope.NotCommitted || got.Row.Outcome != envelope.Retryable) {
			t.Fatalf("got %+v", got)
		}
	}
	attempt("", 1)
	i.set(func() { i.refuse = func(authorization string) bool { return authorization == "Bearer token-1" } }) // it was revoked
	attempt(envelope.CodeCredentialsExpired, 1)
	attempt("", 1)
	i.set(func() { i.refuse = func(string) bool { return true } })
	attempt(envelope.CodeCredentialsExpired, 1) // the token of a moment ago: it is used a little longer
	if issued, _ := i.counts(); issued != 2 {
		t.Fatalf("%d tokens", issued)
	}
}

// An operation that is refused with the next token as well is denied.
func TestRefusedTwiceIsDenied(t *testing.T) {
	i := newIssuer(t)
	i.refuse = func(string) bool { return true }
	tool := i.tool(t, newKind(t), nil)
	for n, want := range []envelope.Code{envelope.CodeCredentialsExpired, envelope.CodeUpstreamDenied} {
		got := tool.Caller.Call(t.Context(), newCall(`{}`))
		if issued, calls := i.counts(); got.Row.Code != want || issued != n+1 || calls != n+1 || got.RetryAfter != 0 {
			t.Fatalf("%d tokens, %d calls, got %+v", issued, calls, got)
		}
	}
}

// A key from a file that was replaced is taken in soon, so a 401 to the old one waits for that; otherwise it is a denial.
func TestRefusedKeyWhoseFileIsRenewed(t *testing.T) {
	var calls atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(api.Close)
	path := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	tool, err := connector.Compile(connector.Spec{Name: "credit", Effect: envelope.Write, Kind: connector.KindSpec{HTTP: &connector.HTTPSpec{
		Method: "POST", URL: api.URL, Headers: map[string]string{"X-Key": "old"}, Secrets: []connector.SecretFile{{Path: path, Sum: sha256.Sum256([]byte("old"))}},
	}}}, newKind(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := tool.Caller.Call(t.Context(), newCall(`{}`)); got.Row.Code != envelope.CodeUpstreamDenied || got.RetryAfter != 0 {
		t.Fatalf("unchanged: %+v", got)
	}
	write("new")
	if got := tool.Caller.Call(t.Context(), newCall(`{}`)); got.Row.Code != envelope.CodeCredentialsExpired || got.RetryAfter != connector.RenewalWait.Milliseconds() {
		t.Fatalf("changed: %+v", got)
	}
	if n := calls.Load(); n != 2 {
		t.Fatalf("%d requests in two attempts", n)
	}
}
