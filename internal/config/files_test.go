package config

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
)

const fileSecret = "from-a-file-1234"

func secretFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// loadText loads a config that is written to disk first: Parse reads no files.
func loadText(t *testing.T, text string) (*File, []Warning, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path, environment(map[string]string{"NAME": "from-the-environment"}))
}

func TestValuesFromFiles(t *testing.T) {
	secret, other := secretFile(t, fileSecret+"\r\n"), secretFile(t, "{x} #: '\"\nsecond line\n\n")
	f, warnings, err := loadText(t, "tools:\n  t:\n    effect: write\n    command: {argv: [prog, \"a-${file:"+secret+"}-${NAME}\", \"${file:"+other+"}\", \"$${file:x}\"]}\n")
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	want := []string{"prog", "a-" + fileSecret + "-from-the-environment", "{x} #: '\"\nsecond line", "${file:x}"}
	if got := f.Tools[0].Kind.Command.Argv; !slices.Equal(got, want) {
		t.Fatalf("argv %q, wanted %q", got, want)
	}
	if !slices.Contains(f.Secrets, fileSecret) {
		t.Fatal("what came from the file is not redacted")
	}
	if len(f.Files) != 2 || f.Files[secret] != sha256.Sum256([]byte(fileSecret+"\r\n")) {
		t.Fatalf("files %v", f.Files)
	}

	if err := os.WriteFile(secret, []byte("renewed-12345678"), 0o600); err != nil {
		t.Fatal(err)
	}
	if now := HeldNow(f.Files); now[secret] == f.Files[secret] || now[other] != f.Files[other] {
		t.Fatal("which file has changed is not seen")
	}
	again, _, err := f.Again(environment(map[string]string{"NAME": "n"}))
	if err != nil || again.Tools[0].Kind.Command.Argv[1] != "a-renewed-12345678-n" {
		t.Fatalf("read again: %v", err)
	}
}

// TLS files are noted too, whether or not they can be read: one that is missing may come.
func TestTLSFilesAreNoted(t *testing.T) {
	there := secretFile(t, "x")
	f, _, err := loadText(t, "tools:\n  t:\n    effect: read\n    http: {url: 'https://h/', tls: {ca: "+there+", cert: /no/such/cert, key: /no/such/key}}\n")
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Files) != 3 || f.Files[there] == (Digest{}) || f.Files["/no/such/cert"] != (Digest{}) {
		t.Fatalf("files %v", f.Files)
	}
}

// Whatever is wrong with a file is told with its name and never with what it holds.
func TestBadSecretFiles(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, problem string }{
		"missing":      {"/no/such/file", "cannot be read (no such file or directory)"},
		"a directory":  {t.TempDir(), "is no regular file"},
		"a pipe":       {fifo, "is no regular file"},
		"empty":        {secretFile(t, "\n"), "is empty"},
		"no text":      {secretFile(t, fileSecret+"\xff"), "is no text in UTF-8"},
		"binary":       {secretFile(t, fileSecret+"\x00"), "is no text in UTF-8"},
		"long":         {secretFile(t, strings.Repeat("s", secretFileMax+1)), "is too large"},
		"endless":      {secretFile(t, strings.Repeat("s", connector.SecretFileMax+1)), "is too large"},
		"a line break": {secretFile(t, fileSecret+"\nX: y"), "partly from the environment or a file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := loadText(t, "tools:\n  t:\n    effect: read\n    http: {url: 'http://h/', headers: {A: \"${file:"+c.path+"}\"}}\n")
			if err == nil || !strings.Contains(err.Error(), c.problem) || !strings.Contains(err.Error(), "c.yaml:4:") {
				t.Fatalf("got %v, wanted %q", err, c.problem)
			}
			if strings.Contains(err.Error(), fileSecret) {
				t.Fatal("what the file holds is shown")
			}
		})
	}
	if _, _, err := Parse("c.yaml", []byte("tools: {t: {effect: read, http: {url: 'http://h/', headers: {A: '${file:/etc/hostname}'}}}}"), noEnvironment); err == nil {
		t.Fatal("Parse reads files")
	}
}

// A tool's calls know which files stand in what is sent, with what they held: those of the token's request apart, and none
// that stand elsewhere.
func TestCallsKnowTheirSecretFiles(t *testing.T) {
	key, client, body, other := secretFile(t, "key-12345678"), secretFile(t, "client-12345678\n"), secretFile(t, "body-12345678"), secretFile(t, "an authority")
	oauth2 := "oauth2: {token_url: 'https://i/', client_id: me, client_secret: '${file:" + client + "}'}"
	f, _, err := loadText(t, "mcp_servers:\n  m: {url: 'https://m/', headers: {X: '${file:"+key+"}'}, "+oauth2+"}\ntools:\n  t:\n    effect: write\n    http:\n      tls: {ca: "+other+"}\n"+
		"      method: POST\n      url: 'https://h/'\n      headers: {X: 'a ${file:"+key+"}', Y: '${file:"+key+"} ${NAME}'}\n      body: {deep: [{k: '${file:"+body+"}'}]}\n      "+oauth2+"\n")
	if err != nil {
		t.Fatal(err)
	}
	of := func(path, content string) connector.SecretFile {
		return connector.SecretFile{Path: path, Sum: sha256.Sum256([]byte(content))}
	}
	h, m := f.Tools[0].Kind.HTTP, f.MCPServers["m"]
	token := []connector.SecretFile{of(client, "client-12345678\n")}
	for name, c := range map[string]struct{ got, want []connector.SecretFile }{
		"tool":           {h.Secrets, []connector.SecretFile{of(key, "key-12345678"), of(body, "body-12345678")}},
		"its token":      {h.OAuth2.Secrets, token},
		"server":         {m.Secrets, []connector.SecretFile{of(key, "key-12345678")}},
		"server's token": {m.OAuth2.Secrets, token},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s: got %v, wanted %v", name, c.got, c.want)
		}
	}
}
