package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/run"
)

const tokensMax = 4 << 20

// token is a line of the file of tokens: who has the token of this hash.
type token struct {
	Name    string    `json:"name"`
	SHA256  string    `json:"sha256"` // of the token, 64 lower-case hex digits
	Tenant  string    `json:"tenant"`
	Actor   string    `json:"actor"`
	Tools   []string  `json:"tools"`
	Expires time.Time `json:"expires"`
}

type holder struct {
	*Caller
	expires time.Time
}

// Tokens knows callers by their bearer tokens. The file is read again when it has changed; one that cannot be read changes
// nothing, and is logged. Safe for concurrent use.
type Tokens struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	mu     sync.Mutex
	by     map[[sha256.Size]byte]holder
	seen   os.FileInfo
	looked time.Time
}

// lookEvery is how old what is known of the file may be.
const lookEvery = time.Second

// ReadTokens reads the file of tokens for the first time; it must be good.
func ReadTokens(path string, log *slog.Logger, now func() time.Time) (*Tokens, error) {
	t := &Tokens{path: path, log: log, now: now, looked: now()}
	return t, t.read()
}

func (t *Tokens) read() error {
	info, err := os.Stat(t.path)
	if err != nil {
		return err
	}
	t.seen = info
	if info.Size() > tokensMax {
		return fmt.Errorf("%s is larger than %d MiB", t.path, tokensMax>>20)
	}
	data, err := os.ReadFile(t.path)
	if err != nil {
		return err
	}
	by, err := parseTokens(data)
	if err != nil {
		return fmt.Errorf("%s: %w", t.path, err)
	}
	t.by = by
	return nil
}

func parseTokens(data []byte) (map[[sha256.Size]byte]holder, error) {
	if err := strictjson.CheckJSON(data, strictjson.Bounds{MaxBytes: tokensMax, MaxDepth: 8}); err != nil {
		return nil, err
	}
	var file struct {
		Tokens []token `json:"tokens"`
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		return nil, err
	}
	out := map[[sha256.Size]byte]holder{}
	for i := range file.Tokens {
		k := &file.Tokens[i]
		var sum [sha256.Size]byte
		raw, err := hex.DecodeString(k.SHA256)
		switch {
		case err != nil || len(raw) != len(sum) || strings.ToLower(k.SHA256) != k.SHA256:
			return nil, fmt.Errorf("tokens[%d].sha256 is not 64 lower-case hex digits", i)
		case !run.ValidID(k.Tenant):
			return nil, fmt.Errorf("tokens[%d].tenant is no identifier", i)
		case k.Actor == "" || !run.ValidActor(k.Actor):
			return nil, fmt.Errorf("tokens[%d].actor must be 1 to %d bytes without control characters", i, run.MaxActorBytes)
		}
		copy(sum[:], raw)
		if _, twice := out[sum]; twice {
			return nil, fmt.Errorf("tokens[%d] has the sha256 of an earlier one", i)
		}
		out[sum] = holder{&Caller{Name: k.Name, Tenant: k.Tenant, Actor: k.Actor, Tools: k.Tools}, k.Expires}
	}
	return out, nil
}

// Find returns who has the token, nil if nobody has, or not any more.
func (t *Tokens) Find(secret string) *Caller {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); now.Sub(t.looked) >= lookEvery {
		t.looked = now
		info, err := os.Stat(t.path)
		if err == nil && (t.seen == nil || info.ModTime() != t.seen.ModTime() || info.Size() != t.seen.Size() || !os.SameFile(info, t.seen)) {
			if err = t.read(); err == nil {
				t.log.Info("the tokens are read again", "tokens", len(t.by))
			}
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.log.Error("the tokens cannot be read; those that were known stay", "error", err)
		}
	}
	k, known := t.by[sha256.Sum256([]byte(secret))]
	if !known || !k.expires.IsZero() && !t.now().Before(k.expires) {
		return nil
	}
	return k.Caller
}
