package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestBadFiles(t *testing.T) {
	env := environment(map[string]string{"SECRET": "hunter2-hunter2", "LINES": "hunter2\nhunter2", "EMPTY": "", "BRACES": "hunter2{x}"})
	for _, c := range badFiles {
		t.Run(c.name, func(t *testing.T) {
			_, warnings, err := Parse("bad.yaml", []byte(c.text), env)
			var all Errors
			if !errors.As(err, &all) {
				t.Fatalf("error is %v", err)
			}
			first, _, _ := strings.Cut(err.Error(), "\n")
			if want := "bad.yaml:" + c.first; first != want {
				t.Errorf("\n got %s\nwant %s", first, want)
			}
			if shown := fmt.Sprint(err, warnings); strings.Contains(shown, "hunter2") {
				t.Errorf("the environment shows: %s", shown)
			}
		})
	}
}

func TestEveryMistakeIsReported(t *testing.T) {
	text := "tools:\n  b:\n    effect: x\n    http: {url: 5}\n  a:\n    efect: read\n    timeout: 3\n"
	_, _, err := Parse("bad.yaml", []byte(text), noEnvironment)
	var places []string
	for _, line := range strings.Split(fmt.Sprint(err), "\n") {
		places = append(places, strings.Join(strings.SplitN(line, ":", 4)[:3], ":"))
	}
	want := "bad.yaml:3:13 bad.yaml:4:17 bad.yaml:5:3 bad.yaml:6:5 bad.yaml:7:14"
	if got := strings.Join(places, " "); got != want {
		t.Errorf("got  %s\nwant %s\n%v", got, want, err)
	}
}

func TestMoreMistakesThanAreWorthPrinting(t *testing.T) {
	text := "tools: {}\n" + "x: 1\ny:\n"
	for i := range 30 {
		text += fmt.Sprintf("k%d: 1\n", i)
	}
	_, _, err := Parse("bad.yaml", []byte(text), noEnvironment)
	lines := strings.Split(fmt.Sprint(err), "\n")
	if len(lines) != 21 || lines[20] != "bad.yaml:22:1: and 12 more errors" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
	var all Errors
	if !errors.As(err, &all) || len(all) != 32 {
		t.Errorf("%d errors", len(all))
	}
}

func TestLimits(t *testing.T) {
	nested := strings.Repeat("{a: ", 70) + "1" + strings.Repeat("}", 70)
	for _, c := range []struct{ name, file, text, first string }{
		{"huge", "c.yaml", strings.Repeat("# comment\n", 110_000), "c.yaml:1:1: the file is larger than 1024 KiB"},
		{"deep", "c.yaml", "tools: " + nested, "c.yaml:1:264: " + tooDeep},
		{"deep JSON", "c.json", `{"tools": ` + strings.ReplaceAll(nested, "a", `"a"`) + "}", "c.json:1:395: " + tooDeep},
		{"deep by dashes", "c.yaml", strings.Repeat("- ", 100_000), "c.yaml:1:129: " + tooDeep},
		{"deep by brackets", "c.yaml", strings.Repeat("[", 100_000), "c.yaml:1:65: " + tooDeep},
		{"deeper than JSON goes", "c.json", strings.Repeat(`{"a":`, 11_000) + "1" + strings.Repeat("}", 11_000), "c.json:1:50001: not valid JSON: invalid character '{' exceeded max depth"},
		{"many", "c.yaml", strings.Repeat("- a\n", 250_000), "c.yaml:1:1: the file must be a mapping"},
	} {
		_, _, err := Parse(c.file, []byte(c.text), noEnvironment)
		if err == nil || !strings.HasPrefix(err.Error(), c.first) {
			t.Errorf("%s: got %.200v\nwant %s", c.name, err, c.first)
		}
	}
}

func TestMistakesInJSON(t *testing.T) {
	for _, c := range []struct{ name, text, first string }{
		{"conformance", "{\"tools\": {\n\t\"t\": {\n\t\t\"http\": {\"url\": \"http://h/\"},\n\t\t\"efect\": \"read\"}}}", "4:3: unknown key \"efect\" in tools.t: did you mean effect?"},
		{"syntax", "{\n\t\"tools\": {},\n}", "3:1: not valid JSON: invalid character '}' looking for beginning of object key string: correct it, or name the file .yaml"},
		{"two values", "{} {}", "1:4: not valid JSON: invalid character '{' after top-level value: correct it, or name the file .yaml"},
		{"a list", "[]", "1:1: the file must be one JSON object with the keys defaults, tools, mcp_servers, tenants"},
		{"duplicate", "{\"tools\": {},\n \"tools\": {}}", "2:2: duplicate key \"tools\": it is already given on line 1, keep one"},
		{"escapes before", "{\"tools\": {\"t\": {\"command\": {\"argv\": [\"\\/\\ud83d\\ude00\\\\\"]}, \"efect\": 1}}}", "1:61: unknown key \"efect\" in tools.t: did you mean effect?"},
		{"half a character", "{\"tools\": {},\n \"defaults\": {\"owner\": \"\\ud83d\"}}", "2:25: not valid JSON: found invalid Unicode character escape code: check quotes, brackets and indentation here"},
		{"wide characters before", "{\"tools\": {\"\u00e9\": {}, \"t\": 1}}", "1:12: tools: \"\u00e9\" is no name for a tool: use letters, digits, _ . / and -, at most 128, the first a letter or digit"},
	} {
		_, _, err := Parse("bad.json", []byte(c.text), noEnvironment)
		if first, _, _ := strings.Cut(fmt.Sprint(err), "\n"); first != "bad.json:"+c.first {
			t.Errorf("%s:\n got %s\nwant bad.json:%s", c.name, first, c.first)
		}
	}
}

func TestNothingControlsTheTerminal(t *testing.T) {
	_, _, err := Parse("bad.yaml", []byte("tools:\n  t:\n    effect: write\n    http: {url: 'http://h/', headers: {\"a\\x9b31m\\u202e\": x}}\n"), noEnvironment)
	if want := "bad.yaml:4:40: tools.t.http.headers: \"a\\u009b31m\\u202e\" is no name for a header: use letters, digits and -"; fmt.Sprint(err) != want {
		t.Errorf("got  %q\nwant %q", fmt.Sprint(err), want)
	}
}
