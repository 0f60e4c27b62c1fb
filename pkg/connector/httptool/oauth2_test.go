package httptool_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/httptool"
	"github.com/agentrun/executor/pkg/envelope"
)

const clientSecret = "client-s3cr3t"

// issuer is a token endpoint over TLS with an API beside it, which wants the latest token.
type issuer struct {
	api, tokens *httptest.Server
	ca          string

	mu     sync.Mutex
	issued int
	calls  int
	answer func(w http.ResponseWriter) bool // of the token endpoint; nil or false: a token
	refuse func(authorization string) bool  // by the API; nil: all but the latest
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{}
	i.tokens = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.issued++
		if i.answer != nil && i.answer(w) {
			return
		}
		if _, secret, _ := r.BasicAuth(); secret != clientSecret || r.FormValue("grant_type") != "client_credentials" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`, i.issued)
	}))
	t.Cleanup(i.tokens.Close)
	i.api = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.calls++
		authorization := r.Header.Get("Authorization")
		refused := authorization != fmt.Sprintf("Bearer token-%d", i.issued)
		if i.refuse != nil {
			refused = i.refuse(authorization)
		}
		if refused {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	t.Cleanup(i.api.Close)
	i.ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(i.ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.tokens.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *issuer) counts() (issued, calls int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.issued, i.calls
}

// tool is a write at the API by this kind.
func (i *issuer) tool(t *testing.T, kind connector.Kind, edit func(*connector.Spec)) *connector.Tool {
	t.Helper()
	spec := connector.Spec{Name: "credit", Effect: envelope.Write, Timeout: 20 * time.Second, Kind: connector.KindSpec{HTTP: &connector.HTTPSpec{
		Method: "POST", URL: i.api.URL, TLS: &connector.TLSSpec{CA: i.ca, ServerName: "the.api"},
		OAuth2: &connector.OAuth2Spec{TokenURL: i.tokens.URL, ClientID: "me", ClientSecret: clientSecret, Timeout: 10 * time.Second},
	}}}
	if edit != nil {
		edit(&spec)
	}
	tool, err := connector.Compile(spec, kind)
	if err != nil {
		t.Fatal(err)
	}
	return tool
}

func newKind(t *testing.T) *httptool.Kind {
	kind := httptool.New()
	t.Cleanup(kind.Close)
	return kind
}

// Tools of one client share its token, and keep it across a reload; a changed secret gets one of its own.
func TestClientCredentials(t *testing.T) {
	i, kind := newIssuer(t), newKind(t)
	tools := []*connector.Tool{i.tool(t, kind, nil), i.tool(t, kind, func(s *connector.Spec) { s.Effect, s.Kind.HTTP.MaxConnsPerHost = envelope.Read, 3 })}
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			if got := tools[n%2].Caller.Call(t.Context(), newCall(`{}`)); !got.OK {
				t.Errorf("got %+v", got)
			}
		})
	}
	all.Wait()
	if got := i.tool(t, kind, nil).Caller.Call(t.Context(), newCall(`{}`)); !got.OK {
		t.Fatalf("after a reload: %+v", got)
	}
	if issued, calls := i.counts(); issued != 1 || calls != 21 {
		t.Fatalf("%d tokens for %d calls", issued, calls)
	}
	wrong := i.tool(t, kind, func(s *connector.Spec) { s.Kind.HTTP.OAuth2.ClientSecret = "another-s3cr3t" })
	if got := wrong.Caller.Call(t.Context(), newCall(`{}`)); got.OK {
		t.Fatal("a changed secret has the old one's token")
	}
}

// A call that gets no token is not sent: it is tried again where that may help, and ends where the credentials are refused.
// Nothing of what the endpoint says gets any further.
func TestNoTokenIsNotSent(t *testing.T) {
	const text = "te5t-text-of-the-endpoint"
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter) bool
		code   envelope.Code
		detail any
	}{
		"away":   {func(w http.ResponseWriter) bool { http.Error(w, text, http.StatusServiceUnavailable); return true }, envelope.CodeUpstreamUnavailable, nil},
		"broken": {func(http.ResponseWriter) bool { panic(http.ErrAbortHandler) }, envelope.CodeUpstreamUnavailable, nil},
		"too much": {func(w http.ResponseWriter) bool {
			_, _ = io.WriteString(w, `{"access_token":"`+text+`","x":"`+strings.Repeat("x", 1<<17)+`"}`)
			return true
		}, envelope.CodeUpstreamUnavailable, nil},
		"elsewhere": {func(w http.ResponseWriter) bool { w.Header().Set("Location", "/"); w.WriteHeader(307); return true }, envelope.CodeUpstreamUnavailable, nil},
		"refused": {func(w http.ResponseWriter) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(401)
			_, _ = io.WriteString(w, `{"error":"invalid_client","error_description":"`+text+`"}`)
			return true
		}, envelope.CodeUpstreamDenied, "invalid_client"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newIssuer(t)
			i.answer = c.answer
			asked := newCall(`{}`)
			asked.Last = func() error { t.Error("it was about to leave"); return nil }
			got := i.tool(t, newKind(t), nil).Caller.Call(t.Context(), asked)
			retried := got.Row.Outcome == envelope.Retryable
			if !got.NotSent || got.Row.Code != c.code || got.Row.CommitState != envelope.NotCommitted || retried == (c.detail != nil) || got.Details["token_error"] != c.detail {
				t.Fatalf("got %+v", got)
			}
			b, err := json.Marshal(got)
			if err != nil || strings.Contains(string(b), text) || strings.Contains(string(b), clientSecret) {
				t.Fatalf("%v: %s", err, b)
			}
			if issued, calls := i.counts(); calls != 0 || issued != 1 {
				t.Fatalf("%d calls, %d requests for a token", calls, issued)
			}
		})
	}
}

// The call's own timeout holds while it waits for its token.
func TestSilentTokenEndpoint(t *testing.T) {
	i := newIssuer(t)
	through := make(chan struct{})
	i.answer = func(http.ResponseWriter) bool { <-through; return true }
	t.Cleanup(func() { close(through) })
	got := i.tool(t, newKind(t), func(s *connector.Spec) { s.Timeout = 50 * time.Millisecond }).Caller.Call(t.Context(), newCall(`{}`))
	if !got.NotSent || got.Row.Code != envelope.CodeUpstreamUnavailable {
		t.Fatalf("got %+v", got)
	}
}

func TestOAuth2SetsAuthorization(t *testing.T) {
	i := newIssuer(t)
	_, err := connector.Compile(connector.Spec{Name: "x", Effect: envelope.Read, Kind: connector.KindSpec{HTTP: &connector.HTTPSpec{
		URL: i.api.URL, Headers: map[string]string{"authorization": "x"}, OAuth2: &connector.OAuth2Spec{TokenURL: i.tokens.URL},
	}}}, newKind(t))
	if err == nil || !strings.Contains(err.Error(), "is set by oauth2") {
		t.Fatal(err)
	}
}
