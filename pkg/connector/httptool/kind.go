package httptool

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/internal/httpwire"
	"github.com/agentrun/executor/pkg/connector/internal/token"
	"github.com/agentrun/executor/pkg/envelope"
)

// Kind makes transports for http tools. Tools with the same TLS, proxy and connection settings share their connections.
// Safe for concurrent use.
type Kind struct {
	mu     sync.Mutex
	pools  map[poolKey]*httpwire.Pool
	tokens map[tokenKey]*token.Source
}

// tokenKey is what tools must have in common to share access tokens.
type tokenKey struct {
	poolKey
	spec [sha256.Size]byte // digest of the whole of oauth2
}

// poolKey is what tools must have in common to share connections. A file that was replaced has another content under its
// name: then tools that are made anew get connections anew, and those that were made before keep theirs.
type poolKey struct {
	poolSettings
	files [sha256.Size]byte // digest of what the TLS files hold
}

type poolSettings struct {
	tls          connector.TLSSpec
	proxyFromEnv bool
	maxConns     int
}

// New returns a Kind without connections.
func New() *Kind {
	return &Kind{pools: map[poolKey]*httpwire.Pool{}, tokens: map[tokenKey]*token.Source{}}
}

// Name implements connector.Kind.
func (*Kind) Name() string { return connector.KindHTTP }

// Close closes idle connections. Calls in flight go on.
func (k *Kind) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pools {
		p.CloseIdle()
	}
}

// Prepare implements connector.Kind. It reads the TLS files, and nothing else.
func (k *Kind) Prepare(p connector.Preparation) (connector.Transport, error) {
	s := *p.Spec.HTTP
	method := strings.ToUpper(s.Method)
	if method == "" {
		method = http.MethodGet
		if p.Effect == envelope.Write {
			return nil, fail("method", "is required for a write")
		}
	}
	if !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}, method) {
		return nil, fail("method", "must be GET, HEAD, POST, PUT, PATCH or DELETE")
	}
	target, err := parseTemplate(s.URL)
	if err != nil {
		return nil, err
	}
	t := &transport{method: method, url: target, lookup: p.Lookup, keyHeader: "Idempotency-Key", credentials: token.Credentials{Files: s.Secrets}}
	if s.IdempotencyHeader != "" {
		if !httpwire.ValidName(s.IdempotencyHeader) || owned(s.IdempotencyHeader) {
			return nil, fail("idempotency_header", "is not a header name that a tool may use")
		}
		t.keyHeader = textproto.CanonicalMIMEHeaderKey(s.IdempotencyHeader)
	}
	if err := t.setContent(s); err != nil {
		return nil, err
	}
	t.restInQuery = t.bodyless && !p.Lookup
	if err := t.setHeaders(s.Headers, p.Effect); err != nil {
		return nil, err
	}
	t.noteConsumed()
	if s.MaxConnsPerHost < 0 {
		return nil, fail("max_conns_per_host", "must not be negative")
	}
	key := poolSettings{proxyFromEnv: s.ProxyFromEnv, maxConns: s.MaxConnsPerHost}
	if s.TLS != nil {
		key.tls = *s.TLS
	}
	if t.pool, err = k.pool(key); err != nil || s.OAuth2 == nil {
		return t, err
	}
	for name := range s.Headers {
		if textproto.CanonicalMIMEHeaderKey(name) == "Authorization" {
			return nil, &connector.SpecError{Path: []any{"headers", name}, Message: "is set by oauth2"}
		}
	}
	t.credentials.Tokens, err = k.source(*s.OAuth2, key)
	return t, err
}

// source has the tokens of these settings: those of tools that were made before are good for the next, also across reloads.
func (k *Kind) source(s connector.OAuth2Spec, settings poolSettings) (*token.Source, error) {
	settings.maxConns = 0
	config, files, err := settings.tls.Read()
	if err != nil {
		return nil, err
	}
	config.NextProtos = []string{"http/1.1"}
	spec, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	key := tokenKey{poolKey{settings, files}, sha256.Sum256(spec)}
	k.mu.Lock()
	defer k.mu.Unlock()
	if source := k.tokens[key]; source != nil {
		return source, nil
	}
	var proxy func(*url.URL) (*url.URL, error)
	if settings.proxyFromEnv {
		proxy = proxyFromEnv
	}
	k.tokens[key] = token.New(s, config, proxy)
	return k.tokens[key], nil
}

// setContent reads body and form.
func (t *transport) setContent(s connector.HTTPSpec) (err error) {
	none := t.method == http.MethodGet || t.method == http.MethodHead
	for key, v := range map[string]any{"body": s.Body, "form": s.Form} {
		switch {
		case v == nil:
			continue
		case none:
			return fail(key, "a GET or HEAD has no body")
		case t.content != nil:
			return fail("form", "is there beside body: a request has one of them")
		}
		if t.content, err = parseContent(key, v); err != nil {
			return err
		}
	}
	t.bodyless = none || (t.method == http.MethodDelete && t.content == nil)
	return nil
}

// noteConsumed notes which args are not sent again because they have a place.
func (t *transport) noteConsumed() {
	names := slices.Clone(t.url.names)
	for i := range t.headers {
		names = t.headers[i].value.args(names)
	}
	if t.content != nil {
		names = append(names, t.content.names...)
	}
	t.consumed = make(map[string]bool, len(names))
	for _, name := range names {
		t.consumed[name] = true
	}
}

// owned are headers that belong to the connection or to the runtime.
func owned(name string) bool {
	switch textproto.CanonicalMIMEHeaderKey(name) {
	case "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Connection", "Trailer", "Te", "Upgrade",
		"Expect", "Host", operationRefHeader, "Traceparent":
		return true
	}
	return false
}

func (t *transport) setHeaders(headers map[string]string, effect envelope.Effect) error {
	lines := map[string]string{"Accept": "application/json", "Accept-Encoding": httpwire.AcceptEncoding, "User-Agent": "agentrun"}
	switch {
	case t.content != nil && t.content.form:
		lines["Content-Type"] = "application/x-www-form-urlencoded"
	case !t.bodyless:
		lines["Content-Type"] = "application/json"
	}
	seen := map[string]bool{}
	for name, v := range headers {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		at := &connector.SpecError{Path: []any{"headers", name}}
		switch {
		case !httpwire.ValidName(name):
			at.Message = "is not a header name"
		case canonical == "Host" && printable(v) && v != "":
			t.host = v
		case owned(name) || (effect == envelope.Write && canonical == t.keyHeader):
			at.Message = "is set by the runtime"
		case seen[canonical]:
			at.Message = "is there twice"
		case !httpwire.ValidValue(v):
			at.Message = "has a value that no header can have" // the value may be a secret
		}
		if at.Message != "" {
			return at
		}
		seen[canonical] = true
		switch value := parsePhrase(v); {
		case canonical == "Host":
		case value.fills():
			delete(lines, canonical)
			t.headers = append(t.headers, header{canonical, value})
		default:
			lines[canonical] = v
		}
	}
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		b = httpwire.Line(b, name, lines[name])
	}
	t.head = string(b)
	slices.SortFunc(t.headers, func(a, b header) int { return strings.Compare(a.name, b.name) })
	return nil
}

func (k *Kind) pool(settings poolSettings) (*httpwire.Pool, error) {
	config, files, err := settings.tls.Read()
	if err != nil {
		return nil, err
	}
	config.NextProtos = []string{"http/1.1"}
	key := poolKey{settings, files}
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pools[key]; p != nil {
		return p, nil
	}
	p := &httpwire.Pool{TLS: config, MaxConns: settings.maxConns}
	if settings.proxyFromEnv {
		p.Proxy = proxyFromEnv
	}
	// What was made of the files as they were is left to the tools that have it; its idle connections expire.
	maps.DeleteFunc(k.pools, func(old poolKey, _ *httpwire.Pool) bool { return old.poolSettings == settings })
	k.pools[key] = p
	return p, nil
}

// proxyFromEnv is HTTP_PROXY, HTTPS_PROXY and NO_PROXY as net/http reads them. Proxies are spoken to in plain HTTP.
func proxyFromEnv(u *url.URL) (*url.URL, error) {
	via, err := http.ProxyFromEnvironment(&http.Request{URL: u})
	if err == nil && via != nil && via.Scheme != "http" {
		return nil, httpwire.ErrProxy
	}
	return via, err
}
