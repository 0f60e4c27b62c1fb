package config

import (
	"bytes"
	"net/url"
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
	if d.doc.root = d.read(text); d.doc.root == nil {
		return f
	}
	d.hold(d.doc.root)
	o := d.object(&pair{place: place{1, 1}, value: d.doc.root}, topLevel)
	if o == nil {
		return f
	}
	f.Defaults = d.defaults(o.object("defaults"))
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
		// Some readers of YAML take U+0085, U+2028 and U+2029 for line ends.
		if r < ' ' && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r < 0xa0 || strings.ContainsRune("\u2028\u2029\ufeff\ufffe\uffff", r) {
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

func (d *decoder) defaults(o *object) Defaults {
	out := Defaults{Budget: builtinBudget(), Retry: builtinRetry(), PoisonAfter: defaultPoisonAfter, UnknownToolGrace: defaultUnknownToolGrace}
	if o == nil {
		return out
	}
	out.Owner = o.text("owner", "")
	out.Workflow = o.label("workflow")
	out.Actor = o.label("actor")
	out.PoisonAfter = int(o.whole("poison_after", defaultPoisonAfter))
	out.UnknownToolGrace = o.duration("unknown_tool_grace", defaultUnknownToolGrace, 0, 24*time.Hour)
	out.Retry = d.retry(o, out.Retry)
	given := d.budget(o.object("budget"))
	out.Budget = budget.Fill(given, out.Budget)
	out.MaxBudget = d.budget(o.object("max_budget"))
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

func (d *decoder) budget(o *object) *budget.Request {
	if o == nil {
		return nil
	}
	limit := func(key string) *int64 {
		if o.get(key) == nil {
			return nil
		}
		v := o.whole(key, 0)
		return &v
	}
	r := &budget.Request{
		MaxTurns: limit("max_turns"), MaxToolCalls: limit("max_tool_calls"), MaxAttemptsPerStep: limit("max_attempts_per_step"),
		MaxInputTokens: limit("max_input_tokens"), MaxOutputTokens: limit("max_output_tokens"),
		MaxEstimatedCostMinorUnits: limit("max_estimated_cost_minor_units"),
	}
	if o.get("max_elapsed") != nil {
		s := o.duration("max_elapsed", 0, time.Millisecond, 366*24*time.Hour).Seconds()
		r.MaxElapsedSeconds = &s
	}
	return r
}

// retry reads the policy at key retry over base: a key that is not given keeps base's value.
func (d *decoder) retry(in *object, base run.Retry) run.Retry {
	o := in.object("retry")
	if o == nil {
		return base
	}
	r := run.Retry{
		MaxAttempts:   int(o.whole("max_attempts", int64(base.MaxAttempts))),
		InitialDelay:  o.duration("initial_delay", base.InitialDelay, 0, 24*time.Hour),
		MaxDelay:      o.duration("max_delay", base.MaxDelay, 0, 24*time.Hour),
		Multiplier:    o.number("multiplier", base.Multiplier),
		Jitter:        o.number("jitter", base.Jitter),
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
	for _, p := range root.entries("tenants") {
		if o := d.object(p, "tenants."+p.key); o != nil {
			if out == nil {
				out = map[string]Tenant{}
			}
			out[p.key] = Tenant{Concurrency: int(o.whole("concurrency", 0)), Weight: int(o.whole("weight", 1))}
		}
	}
	return out
}

func (d *decoder) mcpServers(root *object, retry run.Retry) (map[string]connector.MCPServerSpec, []MCPImport) {
	var out map[string]connector.MCPServerSpec
	var imports []MCPImport
	for _, p := range root.entries("mcp_servers") {
		if out == nil {
			out = map[string]connector.MCPServerSpec{}
		}
		// Set at once: a tool that names a server with a mistake in it gets no second error.
		out[p.key] = connector.MCPServerSpec{}
		path := "mcp_servers." + printable(p.key)
		o := d.object(p, path)
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
		if s.URL = o.text("url", ""); strings.ContainsAny(s.URL, "{}") {
			d.fail(o.n.pair("url").value, "%s.url cannot hold {placeholders}: it is the server's, not a call's", path)
		} else if s.URL != "" {
			u := d.checkURL(o.n.pair("url").value, path+".url", s.URL)
			s.OAuth2, s.Secrets = d.oauth2(o), d.secretFiles(o, "url", "headers")
			s.TLS = d.tls(o, u == nil || u.Scheme == "https" || s.OAuth2 != nil && strings.HasPrefix(s.OAuth2.TokenURL, "https:"))
		}
		out[p.key] = s
		imports = append(imports, d.imports(o, p.key, retry)...)
	}
	return out, imports
}

// imports reads a list of patterns, each text or {match, …}.
func (d *decoder) imports(o *object, server string, retry run.Retry) (out []MCPImport) {
	for i, n := range o.items("import") {
		m := MCPImport{Server: server, Match: n.value, Effect: envelope.Write, Place: d.at(n.place), Timeout: defaultTimeout, Retry: retry}
		if item := d.object(&pair{place: n.place, value: n}, o.sub("import")+index(i)); item != nil {
			m.Match = item.text("match", "")
			m.Effect = envelope.Effect(item.text("effect", string(envelope.Write)))
			m.Prefix = item.text("prefix", "")
			m.Timeout = item.duration("timeout", defaultTimeout, time.Millisecond, durationMost)
			m.Retry = d.retry(item, retry)
			m.SafeDetails = item.textMap("safe_details", d.safeDetail)
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
