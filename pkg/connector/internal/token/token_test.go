package token

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/pkg/connector"
)

// endpoint is a token endpoint that hands out numbered tokens.
type endpoint struct {
	mu     sync.Mutex
	asked  []url.Values
	basic  []string
	busy   int
	most   int           // requests at once
	takes  time.Duration // of one request
	answer func(n int) (status int, body string)
}

func (e *endpoint) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	user, password, _ := r.BasicAuth()
	e.mu.Lock()
	e.asked = append(e.asked, form)
	e.basic = append(e.basic, user+":"+password)
	e.busy++
	e.most = max(e.most, e.busy)
	n, answer := len(e.asked), e.answer
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.busy--
	}()
	select {
	case <-time.After(e.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	status, text := 200, fmt.Sprintf(`{"access_token":"t%d","token_type":"bearer","expires_in":3600}`, n)
	if answer != nil {
		status, text = answer(n)
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text)), Request: r,
	}, nil
}

func (e *endpoint) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.asked)
}

// bubble runs a test on a source over the endpoint, in a time of its own.
func bubble(t *testing.T, e *endpoint, f func(t *testing.T, s *Source)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := source(connector.OAuth2Spec{
			TokenURL: "https://idp/token", ClientID: "me:1", ClientSecret: "s3cr3t/+", Scopes: []string{"a", "b"},
			Params: map[string]string{"audience": "billing"}, Timeout: 10 * time.Second,
		}, e)
		f(t, s)
		synctest.Wait()
	})
}

func source(spec connector.OAuth2Spec, e *endpoint) *Source {
	s := New(spec, &tls.Config{}, nil)
	s.client.Transport = e
	return s
}

func get(t *testing.T, s *Source) string {
	t.Helper()
	held, err := s.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return held.Header
}

// One request gets everybody's token, with what the grant and the config say.
func TestOneRequestAtATime(t *testing.T) {
	e := &endpoint{takes: time.Second}
	bubble(t, e, func(t *testing.T, s *Source) {
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.Get(impatient); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that cannot wait: %v", err)
		}
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if held, err := s.Get(t.Context()); err != nil || held.Header != "Bearer t1" {
					t.Errorf("%v, %v", held, err)
				}
			})
		}
		all.Wait()
		if e.count() != 1 || e.basic[0] != url.QueryEscape("me:1")+":"+url.QueryEscape("s3cr3t/+") {
			t.Errorf("asked %d times, as %v", e.count(), e.basic)
		}
		want := url.Values{"grant_type": {"client_credentials"}, "scope": {"a b"}, "audience": {"billing"}}
		if got := e.asked[0]; got.Encode() != want.Encode() {
			t.Errorf("sent %v", got)
		}
	})
}

func TestSecretInTheBody(t *testing.T) {
	e := &endpoint{}
	s := source(connector.OAuth2Spec{TokenURL: "https://idp/token", ClientID: "me", ClientSecret: "s3cr3t", AuthStyle: "body", Timeout: time.Second}, e)
	get(t, s)
	if e.basic[0] != ":" || e.asked[0].Get("client_id") != "me" || e.asked[0].Get("client_secret") != "s3cr3t" {
		t.Fatalf("sent %v as %q", e.asked[0], e.basic[0])
	}
}

// A token is renewed before it ends, first beside the calls; while that fails, it is used to its end.
func TestRenewal(t *testing.T) {
	e := &endpoint{takes: time.Second}
	bubble(t, e, func(t *testing.T, s *Source) {
		begun := time.Now()
		at := func(d time.Duration) { time.Sleep(time.Until(begun.Add(d))) }
		if got := get(t, s); got != "Bearer t1" {
			t.Fatal(got)
		}
		at(54 * time.Minute)
		if got := get(t, s); got != "Bearer t1" || e.count() != 1 {
			t.Fatalf("%s after %d requests", got, e.count())
		}
		at(56 * time.Minute)
		before := time.Now()
		if got := get(t, s); got != "Bearer t1" || time.Since(before) != 0 {
			t.Fatalf("%s, waited %s: a call waits although its token is good", got, time.Since(before))
		}
		time.Sleep(2 * time.Second)
		if got := get(t, s); got != "Bearer t2" || e.count() != 2 {
			t.Fatalf("%s after %d requests", got, e.count())
		}
		e.mu.Lock()
		e.answer = func(int) (int, string) { return 503, "" }
		e.mu.Unlock()
		at(112 * time.Minute)
		for range 10 { // within the pause
			if got := get(t, s); got != "Bearer t2" {
				t.Fatal(got)
			}
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if e.count() != 3 {
			t.Fatalf("%d requests", e.count())
		}
		at(115*time.Minute + 40*time.Second)
		if got := get(t, s); got != "Bearer t2" {
			t.Fatal(got)
		}
		at(117 * time.Minute)
		if _, err := s.Get(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("after its end: %v", err)
		}
		e.mu.Lock()
		e.answer = nil
		e.mu.Unlock()
		if got := get(t, s); !strings.HasPrefix(got, "Bearer t") || got == "Bearer t2" {
			t.Fatal(got)
		}
		if e.most != 1 {
			t.Fatalf("%d requests at once", e.most)
		}
	})
}

// What was refused where it was used is dropped, once: a call that is late with the same word does not drop its successor.
func TestDrop(t *testing.T) {
	bubble(t, &endpoint{}, func(t *testing.T, s *Source) {
		first, _ := s.Get(t.Context())
		s.Drop(first.ID)
		second, err := s.Get(t.Context())
		if err != nil || second.ID == first.ID || second.Header != "Bearer t2" {
			t.Fatal(second, err)
		}
		s.Drop(first.ID)
		if again, _ := s.Get(t.Context()); again != second {
			t.Fatal(again)
		}
	})
}

// A token that does not say when it ends is used until it is dropped; one that lives for a moment serves those who asked.
func TestTokensWithoutAnEndAndShortOnes(t *testing.T) {
	e := &endpoint{answer: func(n int) (int, string) { return 200, fmt.Sprintf(`{"access_token":"t%d","token_type":"Bearer"}`, n) }}
	bubble(t, e, func(t *testing.T, s *Source) {
		get(t, s)
		time.Sleep(1000 * time.Hour)
		if get(t, s); e.count() != 1 {
			t.Fatalf("%d requests", e.count())
		}
	})
	short := &endpoint{takes: 2 * time.Second, answer: func(n int) (int, string) {
		return 200, fmt.Sprintf(`{"access_token":"t%d","token_type":"Bearer","expires_in":1}`, n)
	}}
	bubble(t, short, func(t *testing.T, s *Source) {
		if get(t, s) != "Bearer t1" || get(t, s) != "Bearer t2" {
			t.Fatal("a token that ends at once")
		}
	})
}

// What an endpoint says is told in codes that are ours, and whether another attempt may help.
func TestWhatTheEndpointSays(t *testing.T) {
	const secret = "s3cr3t-text-of-the-endpoint"
	for name, c := range map[string]struct {
		status int
		body   string
		why    string // "": unavailable
	}{
		"a wrong secret":                {401, `{"error":"invalid_client","error_description":"` + secret + `"}`, "invalid_client"},
		"as the RFC has it":             {400, `{"error":"invalid_scope"}`, "invalid_scope"},
		"an error with 200":             {200, `{"error":"invalid_client"}`, "invalid_client"},
		"a code that nobody knows":      {400, `{"error":"` + secret + `"}`, "status_400"},
		"no JSON":                       {403, "<html>" + secret, "status_403"},
		"temporarily":                   {400 + 29, `{"error":"slow_down"}`, ""},
		"its own error":                 {500, `{"error":"invalid_client"}`, ""},
		"overloaded":                    {503, secret, ""},
		"elsewhere":                     {302, "", ""},
		"another path":                  {404, "", ""},
		"no token":                      {200, `{}`, ""},
		"an empty one":                  {200, `{"access_token":"","token_type":"bearer"}`, ""},
		"one that breaks out of a line": {200, `{"access_token":"x\r\nX: y","token_type":"bearer"}`, ""},
		"one that no header can have":   {200, `{"access_token":"` + strings.Repeat("x", textMax+1) + `","token_type":"bearer"}`, ""},
		"of another type":               {200, `{"access_token":"x","token_type":"mac"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := &endpoint{answer: func(int) (int, string) { return c.status, c.body }}
			bubble(t, e, func(t *testing.T, s *Source) {
				_, err := s.Get(t.Context())
				var refused *Refused
				switch {
				case err == nil, strings.Contains(err.Error(), secret):
					t.Fatalf("got %v", err)
				case c.why == "" && !errors.Is(err, ErrUnavailable):
					t.Fatalf("got %v", err)
				case c.why != "" && (!errors.As(err, &refused) || refused.Why != c.why):
					t.Fatalf("got %v, wanted %s", err, c.why)
				}
				_, _ = s.Get(t.Context())
				if n := e.count(); (n == 1) != (c.why != "") {
					t.Fatalf("asked %d times: a refusal is believed for a while, anything else is not", n)
				}
				time.Sleep(pause)
				if _, _ = s.Get(t.Context()); e.count() < 2 {
					t.Fatal("never asked again")
				}
			})
		})
	}
}

// An endpoint that says nothing is given up after the config's time.
func TestSilentEndpoint(t *testing.T) {
	bubble(t, &endpoint{takes: time.Hour}, func(t *testing.T, s *Source) {
		begun := time.Now()
		if _, err := s.Get(t.Context()); !errors.Is(err, ErrUnavailable) || time.Since(begun) != 10*time.Second {
			t.Fatalf("%v after %s", err, time.Since(begun))
		}
	})
}
