package app

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dependency is a module that is part of the commands.
type dependency struct{ path, dir string }

// linked are the modules of which the commands hold code, wherever they are built for.
func linked(t *testing.T) (out []dependency) {
	t.Helper()
	for _, system := range []string{"linux", "darwin"} {
		list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}", "./cmd/...")
		list.Dir = filepath.Join("..", "..")
		list.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0")
		var problems bytes.Buffer
		list.Stderr = &problems
		data, err := list.Output()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, problems.String())
		}
		for line := range strings.Lines(string(data)) {
			path, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
			if m := (dependency{path, dir}); path != "" && !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	slices.SortFunc(out, func(a, b dependency) int { return strings.Compare(a.path, b.path) })
	return out
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying)(\.|-|$)`)
	noticeFile  = regexp.MustCompile(`(?i)^notice(\.|$)`)
)

// texts are the files of a module's root that match, by name, without what differs in layout only.
func texts(t *testing.T, m dependency, name *regexp.Regexp) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() || !name.MatchString(e.Name()) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(m.dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(strings.ToValidUTF8(string(data), "?")) {
			lines = append(lines, strings.TrimRight(line, " \t\r\n\f"))
		}
		out = append(out, strings.Trim(strings.Join(lines, "\n"), "\n"))
	}
	return out
}

// isApache: the text of the licence itself, which is in LICENSE. Its appendix is a form to fill in and no part of it.
func isApache(text string) bool {
	words := strings.Join(strings.Fields(text), " ")
	return strings.HasPrefix(words, "Apache License Version 2.0, January 2004") && strings.Contains(words, "END OF TERMS AND CONDITIONS")
}

// notice is the file as it must be: the copyright of every module that the commands hold, its licence where that asks to
// be handed on, and what its own NOTICE says (Apache-2.0, section 4d).
func notice(t *testing.T) string {
	var b strings.Builder
	b.WriteString(`agentrun
Licensed under the Apache License, Version 2.0; see LICENSE.

The commands hold code of the modules below, under their own licences. This file is printed from the modules that are
linked: go test ./internal/app -run TestNotice -update
`)
	under := map[string][]string{} // licence to modules
	var order []string
	for _, m := range linked(t) {
		found := texts(t, m, licenceFile)
		if len(found) == 0 {
			t.Errorf("%s has no licence: it cannot be handed on", m.path)
		}
		for _, text := range found {
			if isApache(text) {
				text = "Apache License, Version 2.0; see LICENSE."
			}
			if under[text] == nil {
				order = append(order, text)
			}
			under[text] = append(under[text], m.path)
		}
		for _, text := range texts(t, m, noticeFile) {
			fmt.Fprintf(&b, "\n%s\n\nNotice of %s:\n\n%s\n", strings.Repeat("=", 80), m.path, text)
		}
	}
	for _, text := range order {
		fmt.Fprintf(&b, "\n%s\n\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(under[text], "\n"), text)
	}
	return b.String()
}

func TestNotice(t *testing.T) {
	t.Parallel()
	file, want := filepath.Join("..", "..", "NOTICE"), notice(t)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Errorf("NOTICE is not what is linked (%v): make golden", err)
	}
	licence, err := os.ReadFile(filepath.Join("..", "..", "LICENSE"))
	if err != nil || !isApache(string(licence)) {
		t.Errorf("LICENSE is not the Apache License (%v)", err)
	}
}
