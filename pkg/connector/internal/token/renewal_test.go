package token

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

// says gives the word on an answer to a call of the operation, "" for none.
func says(c *Credentials, operation string, lookup bool, status int, id uint64) string {
	r := &connector.Request{Call: &connector.Call{OperationRef: operation}, Lookup: lookup}
	if renewal := c.Answered(r, status, id); renewal != nil {
		return renewal.After.String()
	}
	return ""
}

// A refused token is renewed once for each operation; an operation that is refused with the next one too is denied, and
// any other answer lets it begin anew. A lookup of it is another matter.
func TestRenewedOnceForEachOperation(t *testing.T) {
	bubble(t, &endpoint{}, func(t *testing.T, s *Source) {
		c := &Credentials{Tokens: s}
		for i, step := range []struct {
			operation string
			lookup    bool
			status    int
			want      string
		}{
			{"t/r/a", false, http.StatusUnauthorized, "0s"},
			{"t/r/a", true, http.StatusUnauthorized, "0s"},
			{"t/r/a", false, http.StatusUnauthorized, ""}, // with the next token
			{"t/r/a", true, http.StatusNoContent, ""},
			{"t/r/a", true, http.StatusUnauthorized, "0s"},
			{"t/r/a", false, http.StatusUnauthorized, "0s"}, // it was denied, and is tried again by a person's word
			{"t/r/a", false, http.StatusForbidden, ""},
			{"t/r/a", false, http.StatusUnauthorized, "0s"},
			{"t/r/b", false, http.StatusUnauthorized, "0s"},
		} {
			held, err := s.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := says(c, step.operation, step.lookup, step.status, held.ID); got != step.want {
				t.Fatalf("%d: %+v got %q", i, step, got)
			}
			time.Sleep(pause)
		}
	})
}

// An API that takes no token of this client has one asked for every pause at most, and each operation has its turn with a
// new one.
func TestTokensAreDroppedAPauseApart(t *testing.T) {
	e := &endpoint{}
	bubble(t, e, func(t *testing.T, s *Source) {
		begun := time.Now()
		c := &Credentials{Tokens: s}
		for n := range 100 {
			held, err := s.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			after, err := time.ParseDuration(says(c, fmt.Sprint(n), false, http.StatusUnauthorized, held.ID))
			if err != nil || after > pause {
				t.Fatalf("%d: %v, %s", n, err, after)
			}
			if n%7 == 0 {
				time.Sleep(after)
				if next, err := s.Get(t.Context()); err != nil || next.ID == held.ID {
					t.Fatalf("%d: %v, %v: the token is not renewed when it was said to be", n, next, err)
				}
				if got := says(c, fmt.Sprint(n), false, http.StatusUnauthorized, held.ID+1); got != "" {
					t.Fatalf("%d: got %q, refused with the next token", n, got)
				}
			}
			time.Sleep(300 * time.Millisecond)
		}
		if most := int(time.Since(begun)/pause) + 2; e.count() > most || e.count() < 5 {
			t.Fatalf("%d tokens in %s", e.count(), time.Since(begun))
		}
	})
}

// What is remembered of operations is bounded; the latest stay.
func TestRefusalsAreBounded(t *testing.T) {
	var r refusals
	for n := range 5 * refusalsMax {
		r.put(fmt.Sprint(n), 1)
	}
	if n := len(r.young) + len(r.old); n > 2*refusalsMax {
		t.Fatalf("%d are remembered", n)
	}
	for n := 4 * refusalsMax; n < 5*refusalsMax; n++ {
		if _, there := r.get(fmt.Sprint(n)); !there {
			t.Fatalf("%d is forgotten", n)
		}
	}
}

// A secret that is refused while its file holds another by now is being renewed: that is no denial, and the endpoint is left
// alone for a while all the same. One whose file is as it was is denied.
func TestRefusedWhileTheSecretIsRenewed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	e := &endpoint{answer: func(int) (int, string) { return http.StatusUnauthorized, `{"error":"invalid_client"}` }}
	synctest.Test(t, func(t *testing.T) {
		spec := connector.OAuth2Spec{TokenURL: "https://idp/token", Timeout: time.Second, Secrets: []connector.SecretFile{{Path: path, Sum: sha256.Sum256([]byte("old"))}}}
		s := source(spec, e)
		if _, err := s.Get(t.Context()); !errors.As(err, new(*Refused)) {
			t.Fatalf("as it was: %v", err)
		}
		write("new")
		time.Sleep(pause)
		for range 3 {
			_, err := s.Get(t.Context())
			got := Response(err)
			if !Missing(err) || got.Failure != connector.NotSent || got.Fault == nil || got.Fault.Code != envelope.CodeUpstreamUnavailable ||
				got.Fault.RetryAfter != connector.RenewalWait {
				t.Fatalf("%v: %+v", err, got.Fault)
			}
		}
		if e.count() != 2 {
			t.Fatalf("asked %d times", e.count())
		}
	})
}

// A 401 to a secret from a file is a renewal if the file holds something else by now, or is just being replaced.
func TestFilesThatAreRenewed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Credentials{Files: []connector.SecretFile{{Path: path, Sum: sha256.Sum256([]byte("old"))}}}
	if got := says(c, "t/r/s", false, http.StatusUnauthorized, 0); got != "" {
		t.Fatalf("unchanged: %q", got)
	}
	if err := os.WriteFile(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := says(c, "t/r/s", false, http.StatusForbidden, 0); got != "" {
		t.Fatalf("a 403: %q", got)
	}
	if got := says(c, "t/r/s", false, http.StatusUnauthorized, 0); got != connector.RenewalWait.String() {
		t.Fatalf("changed: %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := says(c, "t/r/s", false, http.StatusUnauthorized, 0); got != connector.RenewalWait.String() {
		t.Fatalf("away: %q", got)
	}
}
