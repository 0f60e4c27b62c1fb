package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

func mustParse(t *testing.T, name, text string, env map[string]string) *File {
	t.Helper()
	f, _, err := Parse(name, []byte(text), environment(env))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestScalarsByTheCoreSchema holds what a plain scalar becomes where any value may stand.
func TestScalarsByTheCoreSchema(t *testing.T) {
	for text, want := range map[string]any{
		"5": json.Number("5"), "-5": json.Number("-5"), "+5": json.Number("5"), "0": json.Number("0"), "-0": json.Number("-0"),
		"2.50": json.Number("2.50"), ".5": json.Number("0.5"), "-.5": json.Number("-0.5"), "1.": json.Number("1.0"), "1.e3": json.Number("1.0e3"),
		"1e3": json.Number("1e3"), "12e-03": json.Number("12e-03"), "0x1F": json.Number("31"), "0o17": json.Number("15"),
		"9007199254740993": json.Number("9007199254740993"), "123456789012345678901234567890.10": json.Number("123456789012345678901234567890.10"),
		"true": true, "False": false, "TRUE": true, "null": nil, "~": nil, "Null": nil,
		"yes": "yes", "no": "no", "on": "on", "off": "off", "y": "y", "tRUE": "tRUE", "2001-12-14": "2001-12-14",
		"2001-12-14t21:59:43.10-05:00": "2001-12-14t21:59:43.10-05:00", "1.2.3": "1.2.3", "0x": "0x", "e3": "e3", "'5'": "5", "\"true\"": "true",
		"'${A}'": "12345678", "'$${A}'": "${A}",
	} {
		f := mustParse(t, "c.yaml", "tools: {t: {effect: read, http: {url: 'http://h/'}, input_schema: {const: "+text+"}}}", map[string]string{"A": "12345678"})
		got := f.Tools[0].InputSchema.(map[string]any)["const"]
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %T %v, want %T %v", text, got, got, want, want)
		}
		if n, ok := got.(json.Number); ok && !json.Valid([]byte(n)) {
			t.Errorf("%s became %s, which is no JSON", text, n)
		}
	}
	for _, text := range []string{"017", "-08", "1_000", "0b11", "0x1_0", "0X1F", ".inf", "-.Inf", ".nan", "1:30"} {
		_, _, err := Parse("c.yaml", []byte("tools: {t: {effect: read, http: {url: 'http://h/'}, input_schema: {const: "+text+"}}}"), noEnvironment)
		if err == nil || !strings.Contains(err.Error(), "not the same number everywhere") {
			t.Errorf("%s: error is %v", text, err)
		}
	}
}

// TestJSONSaysTheSame reads one config in both forms.
func TestJSONSaysTheSame(t *testing.T) {
	yaml := `
tools:
  t:
    effect: write
    command: {argv: ["a/b", "😀", "\u00e9"]}
    input_schema: {minimum: 1e3, maximum: 12345678901234567890, enum: [null, true, x]}
    retry: {max_attempts: 2}
tenants: {acme: {concurrency: 8, weight: 2}, b: {}}
`
	text := "{\n\t\"tools\": {\"t\": {\"effect\": \"write\", \"command\": {\"argv\": [\"a\\/b\", \"\\ud83d\\ude00\", \"é\"]},\r\n\t" +
		"\"input_schema\": {\"minimum\":1e3,\"maximum\":12345678901234567890,\"enum\":[null,true,\"x\"]}, \"retry\":{\"max_attempts\":2}}},\n" +
		"\t\"tenants\":{\"acme\":{\"concurrency\":8,\"weight\":2},\"b\":{}}}\n"
	a, b := mustParse(t, "c.yaml", yaml, nil), mustParse(t, "c.json", text, nil)
	if !reflect.DeepEqual(a.Tools, b.Tools) {
		t.Errorf("\nYAML %+v\nJSON %+v", a.Tools, b.Tools)
	}
	want := map[string]Tenant{"acme": {Concurrency: 8, Weight: 2}, "b": {Weight: 1}}
	if !reflect.DeepEqual(a.Tenants, want) || !reflect.DeepEqual(b.Tenants, want) {
		t.Errorf("tenants: %v and %v", a.Tenants, b.Tenants)
	}
}

func TestRetryOverridesEachDefault(t *testing.T) {
	f := mustParse(t, "c.yaml", `
defaults: {retry: {initial_delay: 1s, max_attempts: 7}, poison_after: 5, unknown_tool_grace: 90s, max_budget: {max_tool_calls: 10, max_elapsed: 1m}}
tools:
  a: {effect: read, http: {url: 'http://h/'}, retry: {jitter: 0, max_retry_after: 0s}, poison_after: 1}
  b: {effect: read, http: {url: 'http://h/'}, retry: {initial_delay: 2m}}
  c: {effect: read, http: {url: 'http://h/'}, retry: {max_delay: 100ms}}
`, nil)
	base := builtinRetry()
	base.InitialDelay, base.MaxAttempts = 1e9, 7
	a, b, c := base, base, base
	a.Jitter, a.MaxRetryAfter = 0, 0
	b.InitialDelay, b.MaxDelay = 120e9, 120e9 // an inherited bound gives way
	c.InitialDelay, c.MaxDelay = 100e6, 100e6
	for i, want := range []any{a, b, c} {
		if got := f.Tools[i].Retry; got != want {
			t.Errorf("%s: got %+v, want %+v", f.Tools[i].Name, got, want)
		}
	}
	if f.Defaults.UnknownToolGrace != 90*time.Second {
		t.Errorf("unknown_tool_grace: %s", f.Defaults.UnknownToolGrace)
	}
	if f.Tools[0].PoisonAfter != 1 || f.Tools[1].PoisonAfter != 5 {
		t.Errorf("poison_after: %d and %d", f.Tools[0].PoisonAfter, f.Tools[1].PoisonAfter)
	}
	// Defaults that nobody wrote are lowered to the ceiling.
	if got := f.Defaults.Budget; got.MaxToolCalls != 10 || got.MaxElapsedMillis != 60_000 || got.MaxTurns != 12 {
		t.Errorf("budget: %+v", got)
	}
}

func TestEveryOtherKey(t *testing.T) {
	f := mustParse(t, "c.yaml", `
defaults: {owner: ops, workflow: w, actor: "agent:x"}
mcp_servers:
  tickets: {url: "https://mcp.internal/x", headers: {Authorization: "Bearer ${TOKEN}"}, import: ["get_*", {match: close, effect: write}, {match: "list_*", effect: read}]}
  local: {command: [server, --stdio], env: {HOME: /tmp}}
tools:
  a:
    effect: write
    http:
      url: https://h/${BASE}/{id}?ref={operation_ref}
      method: PUT
      idempotency_header: X-Key
      tls: {ca: ca.pem, cert: c.pem, key: k.pem, server_name: billing}
      proxy_from_env: true
      max_conns_per_host: 4
    response: envelope
    idempotent_for: 24h
    rate: {per_second: 0.5, scope: fleet}
    max_result_bytes: 1048576
    requires_approval: true
  b: {effect: write, nats: {subject: svc.refunds.create}, verify: {mcp: {server: tickets, tool: find}, committed: is_error == false, always: true, timeout: 3s, max_attempts: 9}}
  c: {effect: read, command: {argv: [prog, "two words", "${TOKEN}"], env: {A: "${TOKEN}"}}}
  d: {effect: read, mcp: {server: local, tool: x}}
`, map[string]string{"TOKEN": "tok-0123456789", "BASE": "v1"})
	if d := f.Defaults; d.Owner != "ops" || d.Workflow != "w" || d.Actor != "agent:x" {
		t.Errorf("defaults: %+v", d)
	}
	wantHTTP := connector.HTTPSpec{
		Method: "PUT", URL: "https://h/v1/{id}?ref={operation_ref}", IdempotencyHeader: "X-Key",
		TLS:          &connector.TLSSpec{CA: "ca.pem", Cert: "c.pem", Key: "k.pem", ServerName: "billing"},
		ProxyFromEnv: true, MaxConnsPerHost: 4,
	}
	a, b := f.Tools[0], f.Tools[1]
	if !reflect.DeepEqual(*a.Kind.HTTP, wantHTTP) {
		t.Errorf("http: %+v", *a.Kind.HTTP)
	}
	if a.Response != "envelope" || a.IdempotentFor != 24*3600e9 || *a.Rate != (connector.Rate{PerSecond: 0.5, Burst: 1, Scope: "fleet"}) || a.MaxResultBytes != 1<<20 || !a.RequiresApproval {
		t.Errorf("a: %+v", a)
	}
	if v := b.Verify; *v.Kind.MCP != (connector.MCPSpec{Server: "tickets", Tool: "find"}) || !v.Always || v.Timeout != 3e9 || v.MaxAttempts != 9 || v.HasWindow {
		t.Errorf("verify: %+v", v)
	}
	wantServers := map[string]connector.MCPServerSpec{
		"tickets": {URL: "https://mcp.internal/x", Headers: map[string]string{"Authorization": "Bearer tok-0123456789"}},
		"local":   {Command: []string{"server", "--stdio"}, Env: map[string]string{"HOME": "/tmp"}},
	}
	if !reflect.DeepEqual(f.MCPServers, wantServers) {
		t.Errorf("servers: %+v", f.MCPServers)
	}
	wantImports := []MCPImport{
		{Server: "tickets", Match: "get_*", Effect: envelope.Write},
		{Server: "tickets", Match: "close", Effect: envelope.Write},
		{Server: "tickets", Match: "list_*", Effect: envelope.Read},
	}
	got := slices.Clone(f.MCPImports)
	for i := range got {
		if got[i].Place.Line == 0 {
			t.Errorf("import %d has no place", i)
		}
		if m := &got[i]; m.Timeout != defaultTimeout || m.Retry != f.Defaults.Retry {
			t.Errorf("import %d: %+v", i, m)
		}
		got[i].Place, got[i].Timeout, got[i].Retry = Place{}, 0, run.Retry{}
	}
	if !reflect.DeepEqual(got, wantImports) {
		t.Errorf("imports: %+v", got)
	}
	describes(t, f, `TOOL    EFFECT  KIND     TARGET                                          TIMEOUT  SAFETY              APPROVAL  ATTEMPTS
a       write   http     PUT https://h/${BASE}/{id}?ref={operation_ref}  30s      idempotent for 24h  required  3
b       write   nats     svc.refunds.create                              30s      verify always       no        3
c       read    command  prog "two words" ${TOKEN}                       30s      repeated            no        3
d       read    mcp      local/x                                         30s      repeated            no        3
get_*   write   mcp      imported from tickets                           30s      a person            no        3
close   write   mcp      imported from tickets                           30s      a person            no        3
list_*  read    mcp      imported from tickets                           30s      repeated            no        3
`)
}

func TestWhatAProgramFinds(t *testing.T) {
	f := mustParse(t, "c.yaml", `
mcp_servers:
  s: {command: [server], cwd: /srv, user: "nobody:users", umask: "0077", limits: {nproc: 20}}
tools:
  a: {effect: write, command: {argv: [x], cwd: "${WHERE}/a", user: 1000, umask: 027, limits: {as: 1073741824, cpu: 2m, core: 0}}}
  b: {effect: write, command: {argv: [x]}}
  c: {effect: write, command: {argv: [x], user: 1000:100}, verify: {command: {argv: [y], limits: {nofile: 64}}, committed: "true"}}
`, map[string]string{"WHERE": "/var/lib"})
	for name, c := range map[string]struct{ got, want connector.ProcessSpec }{
		"server": {f.MCPServers["s"].ProcessSpec, connector.ProcessSpec{Cwd: "/srv", User: "nobody:users", Umask: "0077", Limits: map[string]uint64{"nproc": 20}}},
		"a":      {f.Tools[0].Kind.Command.ProcessSpec, connector.ProcessSpec{Cwd: "/var/lib/a", User: "1000", Umask: "027", Limits: map[string]uint64{"as": 1 << 30, "cpu": 120, "core": 0}}},
		"b":      {f.Tools[1].Kind.Command.ProcessSpec, connector.ProcessSpec{}},
		"c":      {f.Tools[2].Kind.Command.ProcessSpec, connector.ProcessSpec{User: "1000:100"}},
		"lookup": {f.Tools[2].Verify.Kind.Command.ProcessSpec, connector.ProcessSpec{Limits: map[string]uint64{"nofile": 64}}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, c.got, c.want)
		}
	}
}

func TestWhatAnEntryTookAwayIsNotImported(t *testing.T) {
	describes(t, mustParse(t, "c.yaml", `
mcp_servers:
  s: {command: [server], import: [make, {match: "find_*", effect: read, prefix: s_, timeout: 2m, retry: {max_attempts: 9}}, other]}
tools:
  a: {effect: write, mcp: {server: s, tool: make}}
  b: {effect: read, mcp: {server: s, tool: find_it}}
`, nil), `TOOL      EFFECT  KIND  TARGET                            TIMEOUT  SAFETY    APPROVAL  ATTEMPTS
a         write   mcp   s/make                            30s      a person  no        3
b         read    mcp   s/find_it                         30s      repeated  no        3
s_find_*  read    mcp   imported from s, without find_it  2m       repeated  no        9
other     write   mcp   imported from s                   30s      a person  no        3
`)
}

func describes(t *testing.T, f *File, want string) {
	t.Helper()
	var out bytes.Buffer
	if err := Describe(&out, f); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"no tools", "defaults: {owner: ops}\n", "c.yaml:1:1: warning: the file defines no tools: every step will end UNKNOWN_TOOL"},
		{
			"a lookup of nothing in particular", "tools:\n  t:\n    effect: write\n    http: {url: 'http://h/'}\n    verify: {http: {url: 'http://h/{id}'}, committed: 'status == 200'}\n",
			"c.yaml:5:5: warning: tools.t.verify uses neither {operation_ref} nor {idempotency_key}: it may find another operation than the one that is looked up",
		},
		{
			"a window for nothing", "tools:\n  t:\n    effect: write\n    http: {url: 'http://h/'}\n    verify:\n      http: {url: 'http://h/{idempotency_key}'}\n      committed: 'true'\n      consistency_window: 1s\n",
			"c.yaml:8:7: warning: tools.t.verify.consistency_window has no effect without not_committed: nothing can prove absence",
		},
		{
			"both ways", "tools:\n  t:\n    effect: write\n    http: {url: 'http://h/'}\n    verify: {nats: {subject: a}, committed: 'true'}\n    idempotent_for: 1h\n",
			"c.yaml:6:5: warning: tools.t: idempotent_for is for tools without lookup: with verify an unknown write is looked up",
		},
		{
			"a write by GET", "tools:\n  t:\n    effect: write\n    http: {method: GET, url: 'http://h/'}\n",
			"c.yaml:4:5: warning: tools.t is a write by GET: proxies and caches may repeat or answer it",
		},
		{
			"JSON that is called a form", "tools:\n  t:\n    effect: write\n    http:\n      url: 'http://h/'\n      headers: {content-type: application/x-www-form-urlencoded}\n",
			"c.yaml:6:17: warning: tools.t.http.headers.content-type: the body is JSON: write form for one that is not",
		},
		{
			"a form that is called JSON", "tools:\n  t:\n    effect: write\n    http:\n      url: 'http://h/'\n      headers: {Content-Type: application/json}\n      form: {a: '{a}'}\n",
			"c.yaml:6:17: warning: tools.t.http.headers.Content-Type: form makes an application/x-www-form-urlencoded body: remove it: the runtime sends the one that is right",
		},
		{
			"a type of no body", "tools:\n  t:\n    effect: read\n    http:\n      url: 'http://h/'\n      headers: {Content-Type: application/json}\n",
			"c.yaml:6:17: warning: tools.t.http.headers.Content-Type: a GET has no body: remove it: the runtime sends the one that is right",
		},
		{
			"a placeholder that nothing fills", "tools:\n  t:\n    effect: write\n    http: {url: 'http://h/{id}', headers: {If-Match: '{etga}'}, body: {n: '{n}', ref: '{operation_ref}'}}\n    input_schema: {required: [id], properties: {n: {}}}\n",
			"c.yaml:4:5: warning: tools.t.http has a placeholder {etga} that nothing fills: input_schema has no such property",
		},
		{
			"an actor with a star", "tools:\n  t:\n    effect: read\n    http: {url: 'http://h/'}\n    allow: {actors: ['agent:*']}\n",
			"c.yaml:5:22: warning: tools.t.allow.actors[0] is compared as it is written: * is no wildcard",
		},
	} {
		f, warnings, err := Parse("c.yaml", []byte(c.text), noEnvironment)
		if err != nil || len(warnings) != 1 || warnings[0].String() != c.want || !reflect.DeepEqual(f.Warnings, warnings) {
			t.Errorf("%s:\n got %v %v\nwant %s", c.name, warnings, err, c.want)
			continue
		}
		var out bytes.Buffer
		if err := Describe(&out, f); err != nil || !strings.HasSuffix(out.String(), "\n"+c.want+"\n") {
			t.Errorf("%s: described as\n%s", c.name, out.String())
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, bytes.ErrTooLarge }

func TestDescribeReportsWhatItCannotWrite(t *testing.T) {
	if err := Describe(fullDisk{}, mustParse(t, "c.yaml", "tools: {}\n", nil)); err == nil {
		t.Error("no error")
	}
}

// TestAliases holds that an alias is its anchor's value: programs that write YAML use them where a value repeats.
func TestAliases(t *testing.T) {
	f := mustParse(t, "c.yaml", `
tools:
  a:
    effect: &e read
    http: &id001
      url: http://h/
      headers: {A: "${TOKEN}"}
    errors: &rules
    - {when: "true", code: STATE_CONFLICT}
  b: {effect: *e, http: *id001, errors: *rules}
`, map[string]string{"TOKEN": "tok-0123456789"})
	a, b := f.Tools[0], f.Tools[1]
	b.Name = a.Name
	if !reflect.DeepEqual(a, b) || b.Kind.HTTP.Headers["A"] != "tok-0123456789" || len(b.Errors) != 1 {
		t.Errorf("\na %+v\nb %+v", a, b)
	}
	if got := f.Locate("b", &connector.SpecError{Path: []any{"errors", 0, "when"}, Line: 1, Column: 1, Message: "m"}); got != "c.yaml:9:15: tools.b.errors[0].when: m" {
		t.Errorf("located at %s", got)
	}
}

func TestAliasesOfAliasesEnd(t *testing.T) {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 30 {
		items := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", ")
		text += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, items)
	}
	_, _, err := Parse("c.yaml", []byte(text), noEnvironment)
	if err == nil || !strings.HasPrefix(err.Error(), "c.yaml:5:") || !strings.HasSuffix(err.Error(), "stand for more than 20000 values: write fewer") {
		t.Errorf("error is %.300v", err)
	}
}
