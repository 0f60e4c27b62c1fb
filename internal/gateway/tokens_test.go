package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func line(token, more string) string {
	return fmt.Sprintf(`{"sha256":%q,"tenant":"acme","actor":"agent:ada"%s}`, hash(token), more)
}

// The file is taken in as it changes; a bad one changes nothing and is said; what has expired is known to nobody.
func TestTokens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens.json")
	now := time.Date(2026, 12, 3, 12, 0, 0, 0, time.UTC)
	write := func(text string) {
		now = now.Add(lookEvery)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"tokens":[` + line("one", "") + `,` + line("two", `,"expires":"2026-12-03T12:00:10Z","tools":["pay"]`) + `]}`)
	var log bytes.Buffer
	k, err := ReadTokens(path, slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	if k.Find("one") == nil || k.Find("two") == nil || k.Find("three") != nil || k.Find("") != nil || k.Find(hash("one")) != nil {
		t.Error("the tokens of the file are not those that are known")
	}
	if k.Find("two").May("tell") || !k.Find("one").May("tell") {
		t.Error("the tools of the tokens are not those of the file")
	}
	if now = now.Add(10 * time.Second); k.Find("two") != nil || k.Find("one") == nil {
		t.Error("a token is known after its time")
	}
	write(`{"tokens":[` + line("three", "") + `]}`)
	if k.Find("one") != nil || k.Find("three") == nil {
		t.Error("the file was not taken in")
	}
	write(`{"tokens":[`)
	if k.Find("three") == nil || !strings.Contains(log.String(), "those that were known stay") {
		t.Errorf("after a bad file: %s", log.String())
	}
	if strings.Contains(log.String(), hash("three")) {
		t.Error("the log has a hash")
	}
}

func TestBadTokens(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ file, says string }{
		"no JSON":      {"tokens: []", "unexpected byte"},
		"unknown key":  {`{"tokens":[` + line("a", `,"tool":["x"]`) + `]}`, "tool"},
		"no hash":      {`{"tokens":[{"sha256":"secret","tenant":"acme","actor":"a"}]}`, "tokens[0].sha256"},
		"tenant":       {strings.Replace(`{"tokens":[`+line("a", "")+`]}`, "acme", "*", 1), "tokens[0].tenant"},
		"no actor":     {strings.Replace(`{"tokens":[`+line("a", "")+`]}`, "agent:ada", "", 1), "tokens[0].actor"},
		"twice":        {`{"tokens":[` + line("a", "") + "," + line("a", "") + `]}`, "tokens[1]"},
		"a key twice":  {`{"tokens":[` + line("a", `,"tenant":"other"`) + `]}`, ""},
		"wrong expiry": {`{"tokens":[` + line("a", `,"expires":"tomorrow"`) + `]}`, ""},
	} {
		if _, err := parseTokens([]byte(x.file)); err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
