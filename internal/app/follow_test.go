package app

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/pkg/connector"
)

// mount is a directory of secrets as Kubernetes mounts them: the names lead through a link that is swapped.
type mount struct {
	t    *testing.T
	dir  string
	next int
}

func newMount(t *testing.T, files map[string]string) *mount {
	m := &mount{t: t, dir: t.TempDir()}
	m.swap(files)
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), m.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *mount) path(name string) string { return filepath.Join(m.dir, name) }

func (m *mount) swap(files map[string]string) {
	m.t.Helper()
	m.next++
	version := "..v" + string(rune('0'+m.next))
	if err := os.Mkdir(m.path(version), 0o700); err != nil {
		m.t.Fatal(err)
	}
	for name, text := range files {
		m.write(filepath.Join(version, name), text)
	}
	if err := os.Symlink(version, m.path("..data_tmp")); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(m.path("..data_tmp"), m.path("..data")); err != nil {
		m.t.Fatal(err)
	}
}

func (m *mount) write(name, text string) {
	m.t.Helper()
	if err := os.WriteFile(m.path(name), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// followed is a config under a follower whose looks the test triggers.
type followed struct {
	t      *testing.T
	tools  *live
	look   chan time.Time
	reload chan struct{}
	log    strings.Builder
	oks    []bool
	stop   func()
}

func follow(t *testing.T, path string) *followed {
	t.Helper()
	return followWith(t, path, nil)
}

// followWith has the config as bytes, if data is not nil.
func followWith(t *testing.T, path string, data []byte) *followed {
	t.Helper()
	f := &followed{t: t, look: make(chan time.Time), reload: make(chan struct{})}
	c := &Process{Config: path, Seams: Seams{Reload: f.reload, Lookup: func(string) (string, bool) { return "", false }}}
	kinds := testKinds(t)
	kinds.data = data
	box, _, err := kinds.load(t.Context(), path, c.lookup(), importWait)
	if err != nil {
		t.Fatal(err)
	}
	f.tools = newLive(box)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	fl := &follower{
		live: f.tools, process: c, kinds: kinds, log: slog.New(slog.NewTextHandler(&f.log, nil)), done: func() {},
		reloaded: func(ok bool) { f.oks = append(f.oks, ok) }, look: f.look,
	}
	go func() {
		defer close(ended)
		fl.run(ctx)
	}()
	f.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(f.stop)
	return f
}

// looks has the follower look n times; when it returns the last look may still be going on.
func (f *followed) looks(n int) {
	for range n {
		f.look <- time.Time{}
	}
}

func (f *followed) call(tool string) {
	f.t.Helper()
	got, ok := f.tools.get(tool)
	if !ok {
		f.t.Fatal("no tool " + tool)
	}
	if reply := got.Caller.Call(f.t.Context(), &connector.Call{OperationRef: "t/r/s", Args: json.RawMessage("{}")}); !reply.OK {
		f.t.Fatalf("%+v", reply)
	}
}

// A secret that is swapped is taken in by itself once it is settled; one that is half written, and whatever else is being
// changed in the config, is not.
func TestSecretFilesAreWatched(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen string
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = r.Header.Get("Authorization")
		w.WriteHeader(204)
	}))
	t.Cleanup(far.Close)
	sent := func(f *followed) string {
		f.call("one")
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
	m := newMount(t, map[string]string{"token": "first-secret\n"})
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := "tools:\n  one: {effect: read, http: {url: '" + far.URL + "', headers: {Authorization: 'Bearer ${file:" + m.path("token") + "}'}}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := follow(t, path)
	if got := sent(f); got != "Bearer first-secret" {
		t.Fatalf("sent %q", got)
	}
	if err := os.WriteFile(path, []byte(text+"  half: {eff"), 0o600); err != nil { // somebody edits it
		t.Fatal(err)
	}
	m.swap(map[string]string{"token": "second-secret\n"})
	f.looks(1)
	if got := sent(f); got != "Bearer first-secret" {
		t.Fatalf("taken before it was settled: %q", got)
	}
	f.looks(2) // the second begins when the first is through
	if got := sent(f); got != "Bearer second-secret" {
		t.Fatalf("sent %q after the swap", got)
	}

	m.write("..data/token", "") // truncated, about to be written
	f.looks(3)
	if got := sent(f); got != "Bearer second-secret" {
		t.Fatalf("sent %q while the file was empty", got)
	}
	if got := len(f.oks); got != 2 || f.oks[1] {
		t.Fatalf("told %v", f.oks)
	}
	m.write("..data/token", "third-secret")
	f.looks(3)
	if got := sent(f); got != "Bearer third-secret" {
		t.Fatalf("sent %q", got)
	}
	f.looks(2)
	f.stop()
	if len(f.oks) != 3 {
		t.Fatalf("reloaded without a change: %v", f.oks)
	}
	log := f.log.String()
	if !strings.Contains(log, "is empty") || !strings.Contains(log, "level=ERROR") || strings.Contains(log, "-secret") {
		t.Fatalf("the log: %s", log)
	}
	// Answers to calls that carried the earlier ones may still come.
	for _, secret := range []string{"first-secret", "second-secret", "third-secret"} {
		if !strings.Contains(string(join(f.tools.secrets())), secret) {
			t.Errorf("%s is not redacted any more", secret)
		}
	}
}

// A program that gives its config as bytes has its secrets renewed just the same.
func TestSecretFilesOfAConfigWithoutAFile(t *testing.T) {
	t.Parallel()
	m := newMount(t, map[string]string{"token": "first-secret"})
	f := followWith(t, "", []byte("tools:\n  one: {effect: read, http: {url: 'http://127.0.0.1:1/', headers: {A: '${file:"+m.path("token")+"}'}}}\n"))
	m.swap(map[string]string{"token": "second-secret"})
	f.looks(3)
	f.reload <- struct{}{}
	f.looks(1)
	f.stop()
	if got := f.tools.box().File.Secrets; len(f.oks) != 2 || !f.oks[0] || !f.oks[1] || len(got) != 1 || got[0] != "second-secret" {
		t.Fatalf("%v, %q\n%s", f.oks, got, f.log.String())
	}
}

func join(parts [][]byte) (out []byte) {
	for _, p := range parts {
		out = append(append(out, p...), '\n')
	}
	return out
}

// What could not be taken over is tried again after a while although nothing has changed, and said once.
func TestRefusedSecretIsTriedAgain(t *testing.T) {
	t.Parallel()
	far := httptest.NewTLSServer(http.NotFoundHandler())
	defer far.Close()
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: far.Certificate().Raw}))
	m := newMount(t, map[string]string{"ca.pem": authority})
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := "tools:\n  one: {effect: read, http: {url: 'https://127.0.0.1:1/', tls: {ca: '" + m.path("ca.pem") + "'}}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := follow(t, path)
	m.write("..data/ca.pem", authority[:100])
	f.looks(2 + 2*takeAgain)
	f.looks(1)
	f.stop()
	if len(f.oks) != 3 || f.oks[0] || f.oks[1] || f.oks[2] || strings.Count(f.log.String(), "level=ERROR") != 1 ||
		!strings.Contains(f.log.String(), m.path("ca.pem")) {
		t.Fatalf("%v\n%s", f.oks, f.log.String())
	}
}

// Secrets that are cut out of results are the longest first, whichever config they are of.
func TestRetiredSecretsLeaveNoPiece(t *testing.T) {
	t.Parallel()
	box := func(secrets ...string) *Toolbox { return &Toolbox{File: &config.File{Secrets: secrets}} }
	tools := newLive(box("longer-secret-value"))
	tools.put(box("secret-v"))
	got := tools.secrets()
	if len(got) != 2 || string(got[0]) != "longer-secret-value" {
		t.Fatalf("%q", got)
	}
	for i := range 2 * retiredMax {
		tools.put(box("secret-" + strings.Repeat("x", i+8)))
	}
	if n := len(tools.secrets()); n != retiredMax+1 {
		t.Fatalf("%d secrets are kept", n)
	}
}
