package config

import (
	"bytes"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// topLevel is the path of the whole file in messages; a key below it is named by itself.
const topLevel = "the file"

const emptyFile = "the file is empty: it needs tools, and can have defaults, mcp_servers and tenants"

var (
	identifier = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	toolName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]{0,127}$`)
)

const identifierRule = "letters, digits, _ and -, at most 64, the first a letter or digit"

// file reads everything. It returns a File that is only good if no error was recorded.
func (d *decoder) file(data []byte) *File {
	f := &File{Name: d.name}
	d.doc = &document{}
	f.doc = d.doc
	text, ok := d.readable(data)
	if !ok {
		return f
	}
	// As YAML says; the parser would count CRLF inside quotes as two lines.
	text = strings.ReplaceAll(text, "\r\n", "\n")
	d.doc.setText(text)
	switch {
	case looksLikeJSON(text):
		d.doc.root = d.readJSON(text)
	case strings.HasSuffix(d.name, ".json"):
		d.jsonError(text)
	default:
		d.doc.root = d.readYAML(text)
	}
	if d.doc.root == nil {
		return f
	}
	o := d.object(&pair{place: place{1, 1}, value: d.doc.root}, topLevel, "defaults", "tools", "mcp_servers", "tenants")
	if o == nil {
		return f
	}
	f.Defaults = d.defaults(o.get("defaults"))
	f.MCPServers, f.MCPImports = d.mcpServers(o, f.Defaults.Retry)
	f.Tools = d.tools(o, f)
	f.Tenants = d.tenants(o)
	if len(f.Tools) == 0 && len(f.MCPImports) == 0 && !o.has("tools") {
		d.warn(place{1, 1}, "the file defines no tools: every step will end UNKNOWN_TOOL")
	}
	f.Secrets = longestFirst(d.secrets)
	return f
}

// readable checks the bytes before anything parses them.
func (d *decoder) readable(data []byte) (string, bool) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	switch {
	case len(data) > bytesMax:
		d.failAt(place{1, 1}, "the file is larger than %d KiB: split the tools over several fleets", bytesMax>>10)
		return "", false
	case bytes.HasPrefix(data, []byte("\xff\xfe")), bytes.HasPrefix(data, []byte("\xfe\xff")):
		d.failAt(place{1, 1}, "the file is UTF-16: save it as UTF-8")
		return "", false
	case len(bytes.TrimSpace(data)) == 0:
		d.failAt(place{1, 1}, emptyFile)
		return "", false
	}
	at := place{1, 1}
	for rest := data; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		if r == utf8.RuneError && size == 1 {
			d.failAt(at, "the file is not UTF-8 here: save it as UTF-8")
			return "", false
		}
		if r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f || r == '\ufeff' {
			d.failAt(at, "control character U+%04X: remove it", r)
			return "", false
		}
		if rest = rest[size:]; r == '\r' && (len(rest) == 0 || rest[0] != '\n') {
			d.failAt(at, "a carriage return without a line feed: save the file with LF or CRLF line ends")
			return "", false
		}
		if at.col++; r == '\n' {
			at = place{at.line + 1, 1}
		}
	}
	return string(data), true
}

func (d *decoder) defaults(p *pair) Defaults {
	out := Defaults{Budget: builtinBudget(), Retry: builtinRetry(), PoisonAfter: defaultPoisonAfter, UnknownToolGrace: defaultUnknownToolGrace}
	if p == nil {
		return out
	}
	o := d.object(p, "defaults", "owner", "workflow", "actor", "budget", "max_budget", "retry", "poison_after", "unknown_tool_grace")
	if o == nil {
		return out
	}
	out.Owner = o.identifier("owner")
	out.Workflow = o.label("workflow")
	out.Actor = o.label("actor")
	out.PoisonAfter = int(o.whole("poison_after", defaultPoisonAfter, 1, 1000))
	out.UnknownToolGrace = o.duration("unknown_tool_grace", defaultUnknownToolGrace, 0, 24*time.Hour)
	out.Retry = d.retry(o, out.Retry)
	given := d.budget(o.get("budget"), "defaults.budget")
	out.Budget = budget.Fill(given, out.Budget)
	out.MaxBudget = d.budget(o.get("max_budget"), "defaults.max_budget")
	if out.MaxBudget != nil {
		d.underCeiling(o, &out, given)
	}
	return out
}

// underCeiling refuses a default above the ceiling, which would refuse every job that names no budget. A default that
// nobody wrote is lowered instead.
func (d *decoder) underCeiling(o *object, out *Defaults, given *budget.Request) {
	for {
		name := budget.Exceeds(out.Budget, out.MaxBudget)
		if name == "" {
			return
		}
		key := budgetKey(name)
		if given != nil && budgetField(given, name) {
			p := o.n.pair("budget").value.pair(key)
			d.failAt(p.place, "defaults.budget.%s is above defaults.max_budget.%s: every job without a budget would be refused; lower it or raise the ceiling", key, key)
			return
		}
		lower := budget.Request{}
		switch name {
		case "max_turns":
			lower.MaxTurns = out.MaxBudget.MaxTurns
		case "max_tool_calls":
			lower.MaxToolCalls = out.MaxBudget.MaxToolCalls
		case "max_attempts_per_step":
			lower.MaxAttemptsPerStep = out.MaxBudget.MaxAttemptsPerStep
		case "max_elapsed_seconds":
			lower.MaxElapsedSeconds = out.MaxBudget.MaxElapsedSeconds
		case "max_input_tokens":
			lower.MaxInputTokens = out.MaxBudget.MaxInputTokens
		case "max_output_tokens":
			lower.MaxOutputTokens = out.MaxBudget.MaxOutputTokens
		case "max_estimated_cost_minor_units":
			lower.MaxEstimatedCostMinorUnits = out.MaxBudget.MaxEstimatedCostMinorUnits
		}
		out.Budget = budget.Fill(&lower, out.Budget)
	}
}

// budgetKey is the config's name of a limit: a duration there, seconds in JSON.
func budgetKey(name string) string { return strings.TrimSuffix(name, "_seconds") }

func budgetField(r *budget.Request, name string) bool {
	return map[string]bool{
		"max_turns": r.MaxTurns != nil, "max_tool_calls": r.MaxToolCalls != nil,
		"max_attempts_per_step": r.MaxAttemptsPerStep != nil, "max_elapsed_seconds": r.MaxElapsedSeconds != nil,
		"max_input_tokens": r.MaxInputTokens != nil, "max_output_tokens": r.MaxOutputTokens != nil,
		"max_estimated_cost_minor_units": r.MaxEstimatedCostMinorUnits != nil,
	}[name]
}

func (d *decoder) budget(p *pair, path string) *budget.Request {
	if p == nil {
		return nil
	}
	o := d.object(p, path, "max_turns", "max_tool_calls", "max_attempts_per_step", "max_elapsed", "max_input_tokens",
		"max_output_tokens", "max_estimated_cost_minor_units")
	if o == nil {
		return nil
	}
	limit := func(key string, least int64) *int64 {
		if o.get(key) == nil {
			return nil
		}
		v := o.whole(key, least, least, budget.MaxNumber)
		return &v
	}
	r := &budget.Request{
		MaxTurns: limit("max_turns", 0), MaxToolCalls: limit("max_tool_calls", 0),
		MaxAttemptsPerStep: limit("max_attempts_per_step", 1), MaxInputTokens: limit("max_input_tokens", 0),
		MaxOutputTokens: limit("max_output_tokens", 0), MaxEstimatedCostMinorUnits: limit("max_estimated_cost_minor_units", 0),
	}
	if o.get("max_elapsed") != nil {
		s := o.duration("max_elapsed", 0, time.Millisecond, 366*24*time.Hour).Seconds()
		r.MaxElapsedSeconds = &s
	}
	return r
}

// retry reads the policy at key retry over base: a key that is not given keeps base's value.
func (d *decoder) retry(in *object, base run.Retry) run.Retry {
	p := in.get("retry")
	if p == nil {
		return base
	}
	o := d.object(p, in.sub("retry"), "max_attempts", "initial_delay", "max_delay", "multiplier", "jitter", "max_retry_after")
	if o == nil {
		return base
	}
	r := run.Retry{
		MaxAttempts:   int(o.whole("max_attempts", int64(base.MaxAttempts), 1, 1000)),
		InitialDelay:  o.duration("initial_delay", base.InitialDelay, 0, 24*time.Hour),
		MaxDelay:      o.duration("max_delay", base.MaxDelay, 0, 24*time.Hour),
		Multiplier:    o.number("multiplier", base.Multiplier, 1, 100),
		Jitter:        o.number("jitter", base.Jitter, 0, 1),
		MaxRetryAfter: o.duration("max_retry_after", base.MaxRetryAfter, 0, 30*24*time.Hour),
	}
	// A bound that was only inherited gives way to what is written.
	switch initial, most := o.get("initial_delay"), o.get("max_delay"); {
	case r.InitialDelay <= r.MaxDelay:
	case initial != nil && most != nil:
		d.fail(initial.value, "%s.initial_delay is above %s.max_delay: the first delay cannot be longer than the longest", o.path, o.path)
	case initial != nil:
		r.MaxDelay = r.InitialDelay
	default:
		r.InitialDelay = r.MaxDelay
	}
	return r
}

func (o *object) identifier(key string) string {
	s := o.text(key, "")
	if s != "" && !identifier.MatchString(s) {
		n := o.n.pair(key).value
		o.d.fail(n, "%s must be an identifier (%s), not %s", o.sub(key), identifierRule, quote(n.text))
	}
	return s
}

// label reads free text that is shown to people: up to 256 bytes, no control characters (contract §1, actor).
func (o *object) label(key string) string {
	s := o.text(key, "")
	if !isLabel(s) {
		o.d.fail(o.n.pair(key).value, "%s must be at most 256 bytes without control characters", o.sub(key))
	}
	return s
}

func isLabel(s string) bool {
	return len(s) <= 256 && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 })
}

func (d *decoder) tenants(root *object) map[string]Tenant {
	var out map[string]Tenant
	for _, p := range root.entries("tenants", "tenant names to their share") {
		path := "tenants." + printable(p.key)
		if !identifier.MatchString(p.key) {
			d.failAt(p.place, "%s: a tenant must be an identifier (%s)", path, identifierRule)
			continue
		}
		o := d.object(p, path, "concurrency", "weight")
		if o == nil {
			continue
		}
		if out == nil {
			out = map[string]Tenant{}
		}
		out[p.key] = Tenant{
			Concurrency: int(o.whole("concurrency", 0, 1, math.MaxInt32)),
			Weight:      int(o.whole("weight", 1, 1, 1000)),
		}
	}
	return out
}

func (d *decoder) mcpServers(root *object, retry run.Retry) (map[string]connector.MCPServerSpec, []MCPImport) {
	var out map[string]connector.MCPServerSpec
	var imports []MCPImport
	for _, p := range root.entries("mcp_servers", "server names to url or command") {
		path := "mcp_servers." + printable(p.key)
		if !identifier.MatchString(p.key) {
			d.failAt(p.place, "%s: a server's name must be an identifier (%s)", path, identifierRule)
		}
		if out == nil {
			out = map[string]connector.MCPServerSpec{}
		}
		// Set at once: a tool that names a server with a mistake in it gets no second error.
		out[p.key] = connector.MCPServerSpec{}
		o := d.object(p, path, append([]string{"url", "headers", "tls", "oauth2", "command", "env", "import"}, processKeys...)...)
		if o == nil {
			continue
		}
		switch {
		case o.has("url") && o.has("command"):
			d.failAt(p.place, "%s has both url and command: keep url for streamable HTTP or command for stdio", path)
		case !o.has("url") && !o.has("command"):
			d.failAt(p.place, "%s needs url (streamable HTTP) or command (stdio): give one", path)
		case o.has("headers") && o.has("command"):
			d.failAt(p.place, "%s: headers need url; a command gets env", path)
		case o.has("oauth2") && o.has("command"):
			d.failAt(p.place, "%s: oauth2 needs url; a command gets env", path)
		case o.has("tls") && o.has("command"):
			d.failAt(p.place, "%s: tls needs url; a command is no connection", path)
		case o.has("env") && o.has("url"):
			d.failAt(p.place, "%s: env needs command; a url gets headers", path)
		case o.has("url") && slices.ContainsFunc(processKeys, o.has):
			d.failAt(p.place, "%s: %s needs command: a url is somebody else's process", path, processKeys[slices.IndexFunc(processKeys, o.has)])
		}
		s := connector.MCPServerSpec{Headers: o.headers("headers"), Command: o.argv("command"), Env: o.environment("env"), ProcessSpec: o.process()}
		if s.URL = o.text("url", ""); s.URL != "" {
			if strings.ContainsAny(s.URL, "{}") {
				d.fail(o.n.pair("url").value, "%s.url cannot hold {placeholders}: it is the server's, not a call's", path)
			} else {
				u := d.checkURL(o.n.pair("url").value, path+".url", s.URL)
				s.OAuth2, s.Secrets = d.oauth2(o), d.secretFiles(o, "url", "headers")
				s.TLS = d.tls(o, u == nil || u.Scheme == "https" || s.OAuth2 != nil && strings.HasPrefix(s.OAuth2.TokenURL, "https:"))
			}
		}
		out[p.key] = s
		imports = append(imports, d.imports(o, p.key, retry)...)
	}
	return out, imports
}

// imports reads a list of patterns, each text or {match, …}.
func (d *decoder) imports(o *object, server string, retry run.Retry) []MCPImport {
	p := o.get("import")
	if p == nil {
		return nil
	}
	if p.value.kind != sequenceNode || len(p.value.items) == 0 {
		d.fail(p.value, "%s must be a list of tool names, each with an optional * at its end, not %s", o.sub("import"), p.value.describe())
		return nil
	}
	var out []MCPImport
	for i, n := range p.value.items {
		path := o.sub("import") + index(i)
		at, m := n, MCPImport{Server: server, Effect: envelope.Write, Place: d.at(n.place), Timeout: defaultTimeout, Retry: retry}
		if n.kind == mappingNode {
			item := d.object(&pair{place: n.place, value: n}, path, "match", "effect", "prefix", "timeout", "retry", "safe_details")
			if item == nil {
				continue
			}
			item.require("match", "the name of a tool, or a prefix and *")
			m.Match = item.text("match", "")
			m.Effect = envelope.Effect(item.choice("effect", string(envelope.Write), "read", "write"))
			m.Prefix = item.text("prefix", "")
			if q := item.n.pair("prefix"); q != nil && m.Prefix != "" && !toolName.MatchString(m.Prefix) {
				d.fail(q.value, "%s.prefix must be the beginning of a tool's name (letters, digits, _ . / and -, the first a letter or digit), not %s", path, quote(q.value.text))
			}
			m.Timeout = item.duration("timeout", defaultTimeout, time.Millisecond, durationMost)
			m.Retry = d.retry(item, retry)
			m.SafeDetails = item.textMap("safe_details", "names to CEL expressions", d.safeDetail)
			if q := item.n.pair("match"); q != nil {
				at = q.value
			}
		} else {
			m.Match, _ = d.text(n, path)
		}
		prefix := strings.TrimSuffix(m.Match, "*")
		if m.Match != "" && prefix != "" && !toolName.MatchString(prefix) {
			d.fail(at, "%s must be a tool's name, or a prefix and one * at its end, not %s", path, quote(at.text))
		}
		out = append(out, m)
	}
	return out
}

// checkURL wants an absolute http or https URL without credentials. The value may come from the environment, so it is
// never part of the message.
func (d *decoder) checkURL(n *node, path, s string) *url.URL {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		d.fail(n, "%s is not a URL: check it for spaces, control characters and a wrong port or percent-encoding", path)
	case u.Scheme != "http" && u.Scheme != "https":
		d.fail(n, "%s must begin with http:// or https://", path)
	case u.Hostname() == "":
		d.fail(n, "%s names no host", path)
	case u.User != nil:
		d.fail(n, "%s must not hold a user or password: send them in a header, from ${NAME}", path)
	case u.Fragment != "" || strings.HasSuffix(s, "#"):
		d.fail(n, "%s must not hold a # fragment: it is never sent", path)
	default:
		return u
	}
	return nil
}
