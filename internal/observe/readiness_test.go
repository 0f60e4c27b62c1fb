package observe

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

func TestReadiness(t *testing.T) {
	ready := NewReadiness()
	s, err := Listen("127.0.0.1:0", Handler(New(Executor).Registry(), ready))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	connected := ""
	// Each line goes on from where the one before it left the process.
	for _, x := range []struct {
		name string
		do   func(*Readiness)
		code int
		body string
	}{
		{"at first", func(*Readiness) {}, 503, "not ready\nstarting: the process is starting\n"},
		{"started", func(r *Readiness) { r.Started() }, 200, "ready\n"},
		{"a warning keeps it ready", func(r *Readiness) { r.Warn("retention", "runs are at 60 % of --max-runs") }, 200, "ready\nwarning: retention: runs are at 60 % of --max-runs\n"},
		{"unable to write", func(r *Readiness) { r.Block("journal", "the disk is\nfull") }, 503, "not ready\njournal: the disk is full\nwarning: retention: runs are at 60 % of --max-runs\n"},
		{"two reasons, sorted", func(r *Readiness) { r.Block("bus", "b") }, 503, "not ready\nbus: b\njournal: the disk is full\nwarning: retention: runs are at 60 % of --max-runs\n"},
		{"able again", func(r *Readiness) { r.Clear("journal"); r.Clear("bus"); r.Warn("retention", "") }, 200, "ready\n"},
		{"a check that is content", func(r *Readiness) { r.Check("nats", func() string { return connected }) }, 200, "ready\n"},
		{"a check that is not", func(*Readiness) { connected = "disconnected" }, 503, "not ready\nnats: disconnected\n"},
		{"content again", func(*Readiness) { connected = "" }, 200, "ready\n"},
		{"two runs that cannot write", func(r *Readiness) { r.BlockFor("publish", "t/b", "no\nroom"); r.BlockFor("publish", "t/a", "full") }, 503, "not ready\npublish: full (and 1 more)\n"},
		{"one of them could", func(r *Readiness) { r.ClearFor("publish", "t/a"); r.ClearFor("publish", "t/c") }, 503, "not ready\npublish: no room\n"},
		{"so could the other", func(r *Readiness) { r.ClearFor("publish", "t/b") }, 200, "ready\n"},
		{"draining", func(r *Readiness) { r.Draining() }, 503, "not ready\ndraining: the process is draining and takes no more work\n"},
	} {
		x.do(ready)
		code, body := get(t, s, "/readyz")
		if code != x.code || body != x.body {
			t.Errorf("%s: %d %q, wanted %d %q", x.name, code, body, x.code, x.body)
		}
		if code, body := get(t, s, "/healthz"); code != 200 || body != "ok\n" {
			t.Errorf("%s: /healthz says %d %q", x.name, code, body)
		}
	}
}

func get(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + s.Addr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestAnAddressInUseIsNamed(t *testing.T) {
	s, err := Listen("127.0.0.1:0", http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	_, err = Listen(s.Addr(), http.NotFoundHandler())
	if err == nil || !strings.Contains(err.Error(), s.Addr()) || !strings.Contains(err.Error(), "--http") {
		t.Errorf("a second listener gets %v", err)
	}
}

// Args, results and upstream text are in no line at info or above, wherever they were attached.
func TestLogsWithholdToolData(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		log, err := NewLogger(&b, format, "debug")
		if err != nil {
			t.Fatal(err)
		}
		log = log.With("run", "acme/run_1", "args", "secret-1").WithGroup("call").With("result", "secret-2")
		log.Info("called", "tool", "t", "body", "secret-3")
		log.Error("called", slog.Group("reply", "x", "secret-4"))
		log.Warn("called", slog.Group("outer", slog.Group("inner", "upstream", "secret-5")))
		if got := b.String(); strings.Contains(got, "secret") || !strings.Contains(got, "acme/run_1") || !strings.Contains(got, "tool") {
			t.Errorf("%s at info: %s", format, got)
		}
		b.Reset()
		log.Debug("called", "body", "secret-3")
		for _, want := range []string{"secret-1", "secret-2", "secret-3"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s at debug lacks %s: %s", format, want, b.String())
			}
		}
	}
}

func TestLogLevels(t *testing.T) {
	for _, level := range []string{"debug", "info", "warn", "error"} {
		var b bytes.Buffer
		log, err := NewLogger(&b, "json", level)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("m")
		log.Info("m")
		log.Warn("m")
		log.Error("m")
		if got, want := strings.Count(b.String(), "\n"), map[string]int{"debug": 4, "info": 3, "warn": 2, "error": 1}[level]; got != want {
			t.Errorf("level %s: %d lines, wanted %d", level, got, want)
		}
		if !strings.Contains(b.String(), `Z"`) {
			t.Errorf("times are not UTC: %s", b.String())
		}
	}
	if _, err := NewLogger(io.Discard, "xml", "info"); err == nil || !strings.Contains(err.Error(), "xml") {
		t.Errorf("format xml: %v", err)
	}
	if _, err := NewLogger(io.Discard, "text", "loud"); err == nil || !strings.Contains(err.Error(), "loud") {
		t.Errorf("level loud: %v", err)
	}
}
