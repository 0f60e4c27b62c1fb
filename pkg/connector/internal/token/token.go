// Package token gets the access tokens that tools are called with: by OAuth 2.0 client credentials (RFC 6749, 4.4). It hides
// golang.org/x/oauth2, and it owns the rule of when a token is renewed: before it expires, beside the calls that still use it,
// by one request at a time.
//
// Nothing that a token endpoint says gets out of here but a token and the error codes of RFC 6749 and of HTTP: not its texts,
// which may repeat what it was sent.
package token

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/connector/internal/httpwire"
	"github.com/agentrun/executor/pkg/envelope"
)

const (
	// earlyMax and lateMax bound how long before its end a token is renewed: first beside the calls, then before them.
	earlyMax = 5 * time.Minute
	lateMax  = 10 * time.Second
	// pause is between two attempts to renew a token that is still good, and for how long a refusal is believed: who is
	// refused again and again is locked out.
	pause = 5 * time.Second
	// textMax bounds a token; servers refuse longer headers.
	textMax = 16 << 10
)

// ErrUnavailable is of a token endpoint that gave no token now and may later.
var ErrUnavailable = errors.New("token: the token endpoint gives none at the moment")

var errRenewed = fmt.Errorf("%w: the credentials for it are being renewed", ErrUnavailable)

// Refused is of a token endpoint that does not accept these credentials.
type Refused struct {
	Why string // an error code of RFC 6749, 5.2, or status_NNN
}

func (r *Refused) Error() string {
	return "token: the token endpoint refuses the credentials: " + r.Why
}

// Token is what goes out with a request.
type Token struct {
	Header string // the value of Authorization
	ID     uint64 // counts the tokens of its source, from 1
}

// Source has the tokens of one client at one token endpoint. Safe for concurrent use.
type Source struct {
	config  clientcredentials.Config
	client  *http.Client
	timeout time.Duration

	secrets []connector.SecretFile // that the config is made of

	mu       sync.Mutex
	current  held
	getting  *getting
	tried    time.Time // when the last attempt began
	refusal  error     // of the last attempt; nil if it was not refused
	last     uint64    // ID
	dropped  time.Time // when a token was dropped last, or will be
	refusals refusals
}

// held is a token with its times; zero: it does not say when it ends.
type held struct {
	Token
	renew, end time.Time
}

// getting is an attempt to get a token, shared by all who wait for one.
type getting struct {
	done  chan struct{}
	token Token
	err   error
}

// New makes a source; it asks for nothing yet. The endpoint is reached with the tool's TLS settings, but for the name that
// the tool's certificate must have.
func New(s connector.OAuth2Spec, secure *tls.Config, proxy func(*url.URL) (*url.URL, error)) *Source {
	secure = secure.Clone()
	secure.ServerName = ""
	style := oauth2.AuthStyleInHeader
	if s.AuthStyle == "body" {
		style = oauth2.AuthStyleInParams
	}
	params := url.Values{}
	for name, value := range s.Params {
		params.Set(name, value)
	}
	return &Source{
		config: clientcredentials.Config{
			ClientID: s.ClientID, ClientSecret: s.ClientSecret, TokenURL: s.TokenURL, Scopes: s.Scopes, EndpointParams: params, AuthStyle: style,
		},
		client: &http.Client{
			Transport:     wire{&httpwire.Pool{TLS: secure, Proxy: proxy}},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it would take the secret along
		},
		timeout: s.Timeout,
		secrets: s.Secrets,
	}
}

// Get returns a token that is good for now, from the endpoint if it must be. The error is ErrUnavailable, a *Refused, or
// ctx's.
func (s *Source) Get(ctx context.Context) (Token, error) {
	s.mu.Lock()
	now := time.Now()
	good := s.current.ID != 0 && (s.current.end.IsZero() || now.Before(s.current.end))
	if good && (s.current.renew.IsZero() || now.Before(s.current.renew)) {
		defer s.mu.Unlock()
		return s.current.Token, nil
	}
	resting := !s.tried.IsZero() && now.Sub(s.tried) < pause
	if !good && resting && s.refusal != nil {
		defer s.mu.Unlock()
		return Token{}, s.refusal
	}
	g := s.getting
	if g == nil && !(good && resting) {
		g = &getting{done: make(chan struct{})}
		s.getting, s.tried = g, now
		// The attempt is everyone's, so it does not end with the call that began it.
		go s.get(context.WithoutCancel(ctx), g)
	}
	if good {
		defer s.mu.Unlock()
		return s.current.Token, nil
	}
	s.mu.Unlock()
	select {
	case <-g.done:
		return g.token, g.err
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
}

// get asks the endpoint once.
func (s *Source) get(ctx context.Context, g *getting) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, oauth2.HTTPClient, s.client), s.timeout)
	defer cancel()
	began := time.Now()
	t, err := s.config.Token(ctx)
	took := time.Since(began)
	err = s.failure(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(g.done)
	s.getting, s.refusal = nil, nil
	if g.err = err; err != nil {
		if refused(err) || errors.Is(err, errRenewed) {
			s.refusal = err
		}
		return
	}
	s.last++
	g.token = Token{Header: t.Type() + " " + t.AccessToken, ID: s.last}
	s.current = held{Token: g.token}
	if !t.Expiry.IsZero() {
		// It began to run when it was asked for, as far as we can tell.
		end := t.Expiry.Add(-took)
		life := end.Sub(began)
		s.current.renew, s.current.end = end.Add(-min(life/5, earlyMax)-min(life/10, lateMax)), end.Add(-min(life/10, lateMax))
	}
}

// failure says what an answer comes to. Credentials that are refused while their files hold others by now are not denied:
// whoever has the next config asks with those.
func (s *Source) failure(t *oauth2.Token, err error) error {
	if err = failure(t, err); refused(err) && connector.Renewed(s.secrets) {
		return errRenewed
	}
	return err
}

func refused(err error) bool { return errors.As(err, new(*Refused)) }

// failure says what an answer comes to, in words of our own.
func failure(t *oauth2.Token, err error) error {
	var said *oauth2.RetrieveError
	switch {
	case errors.As(err, &said):
		status := 0
		if said.Response != nil {
			status = said.Response.StatusCode
		}
		switch said.ErrorCode {
		case "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope":
			if status < 500 {
				return &Refused{said.ErrorCode}
			}
		}
		if status == http.StatusBadRequest || status == http.StatusUnauthorized || status == http.StatusForbidden {
			return &Refused{"status_" + strconv.Itoa(status)}
		}
		return ErrUnavailable
	case err != nil, t.Type() != "Bearer", !usable(t.AccessToken):
		return ErrUnavailable
	}
	return nil
}

// usable reports whether a token can stand in a header (RFC 6750, 2.1, and what else is visible ASCII).
func usable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= textMax
}

// Missing reports whether an error is of a token that could not be got.
func Missing(err error) bool { return refused(err) || errors.Is(err, ErrUnavailable) }

// Response is a call's end that got no token: it was not sent. What is refused is a denial, all else may be tried again.
func Response(err error) connector.Response {
	out := connector.Response{Failure: connector.NotSent}
	var denial *Refused
	switch {
	case errors.As(err, &denial):
		out.Fault = &connector.Fault{
			Code: envelope.CodeUpstreamDenied, CommitState: envelope.NotCommitted, Details: envelope.Details{"token_error": denial.Why},
		}
	case errors.Is(err, errRenewed):
		out.Fault = &connector.Fault{
			Code: envelope.CodeUpstreamUnavailable, CommitState: envelope.NotCommitted, RetryAfter: connector.RenewalWait,
		}
	}
	return out
}
