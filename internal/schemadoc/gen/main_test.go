package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	for _, pkg := range []string{"pkg/envelope", "pkg/budget", "pkg/deadletter", "pkg/run", "internal/engine"} {
		if err := os.CopyFS(filepath.Join(dir, pkg), os.DirFS(filepath.Join("../../..", pkg))); err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct {
		args   []string
		code   int
		stderr string
	}{
		{[]string{"-root", dir, "-check"}, 1, "stale: docs/codes.md"},
		{[]string{"-root", dir}, 0, ""},
		{[]string{"-root", dir, "-check"}, 0, ""},
		{[]string{"-root", t.TempDir()}, 1, "no Go files"},
		{[]string{"-nope"}, 2, "-nope"},
		{[]string{"extra"}, 2, ""},
	}
	for _, s := range steps {
		var stderr bytes.Buffer
		if code := run(s.args, &stderr); code != s.code || !strings.Contains(stderr.String(), s.stderr) || (s.code == 0 && stderr.Len() > 0) {
			t.Errorf("%q: exit %d, %s", s.args, code, stderr.String())
		}
	}
}
