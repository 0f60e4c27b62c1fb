package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/agentrun/executor/pkg/connector"
)

var kinds = []string{"http", "nats", "mcp", "command"}

// kind reads the one connector of a tool or a verify. reads says which method an http without one has.
func (d *decoder) kind(o *object, f *File, reads bool) connector.KindSpec {
	var given []*pair
	for _, k := range kinds {
		if p := o.n.pair(k); p != nil {
			given = append(given, p)
		}
	}
	if len(given) == 0 && !o.n.partial && !slices.ContainsFunc(kinds, o.has) {
		d.failAt(o.at, "%s needs a connector: give one of http, nats, mcp and command", o.path)
	}
	if len(given) > 1 {
		slices.SortFunc(given, func(a, b *pair) int { return o.n.index[a.key] - o.n.index[b.key] })
		d.failAt(given[1].place, "%s has both %s and %s: keep one connector", o.path, given[0].key, given[1].key)
	}
	var s connector.KindSpec
	for _, p := range given {
		k := o.object(p.key)
		if k == nil {
			continue
		}
		switch p.key {
		case "http":
			s.HTTP = d.http(k, reads)
		case "nats":
			s.NATS = d.nats(k)
		case "mcp":
			s.MCP = d.mcp(k, f)
		case "command":
			s.Command = &connector.CommandSpec{Argv: k.argv("argv"), Env: k.environment("env"), ProcessSpec: k.process()}
		}
	}
	return s
}

func (d *decoder) http(o *object, reads bool) *connector.HTTPSpec {
	method := "POST"
	if reads {
		method = "GET"
	}
	h := &connector.HTTPSpec{
		Method:            o.text("method", method),
		Headers:           o.headers("headers"),
		Body:              o.template("body"),
		Form:              o.template("form"),
		IdempotencyHeader: o.text("idempotency_header", defaultIdempotencyHeader),
		ProxyFromEnv:      o.boolean("proxy_from_env"),
		MaxConnsPerHost:   int(o.whole("max_conns_per_host", 0)),
	}
	if q := o.n.pair("form"); q != nil && o.n.pair("body") != nil {
		d.failAt(q.place, "%s has both body and form: keep body for JSON or form for application/x-www-form-urlencoded", o.path)
	}
	d.contentType(o, h)
	if q := o.n.pair("headers"); q != nil {
		q.value.each(func(n *node) { d.noPlaceholderFromOutside(n, o.path+".headers") })
		for _, e := range q.value.pairs {
			if strings.EqualFold(e.key, h.IdempotencyHeader) {
				d.failAt(e.place, "%s.headers.%s is set by the runtime: remove it, or name another idempotency_header", o.path, printable(e.key))
			}
		}
	}
	secure := d.httpURL(o, h)
	h.OAuth2 = d.oauth2(o)
	h.Secrets = d.secretFiles(o, "url", "headers", "body", "form")
	h.TLS = d.tls(o, secure || h.OAuth2 != nil && strings.HasPrefix(h.OAuth2.TokenURL, "https:"))
	return h
}

var (
	placeholder = regexp.MustCompile(`\{([^{}]*)\}`)
	// A placeholder's name: what httptool fills in.
	placeholderName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)
)

// httpURL checks a URL with {name} placeholders and reports whether it may use TLS.
func (d *decoder) httpURL(o *object, h *connector.HTTPSpec) bool {
	p := o.get("url")
	if h.URL = o.text("url", ""); p == nil || h.URL == "" {
		return true
	}
	n, path := p.value, o.sub("url")
	if slices.ContainsFunc(n.substituted, func(s string) bool { return strings.ContainsAny(s, "{}") }) {
		d.fail(n, "%s: the value of an environment variable or file in it holds { or }, which would be a placeholder: percent-encode it there", path)
		return true
	}
	for _, m := range placeholder.FindAllStringSubmatch(h.URL, -1) {
		if !placeholderName.MatchString(m[1]) {
			d.fail(n, "%s has a placeholder that is no name: write {name} with an argument's name, operation_ref or idempotency_key", path)
			return true
		}
	}
	plain := placeholder.ReplaceAllString(h.URL, "x")
	if strings.ContainsAny(plain, "{}") {
		d.fail(n, "%s has a { or } without its other half: a placeholder is {name}", path)
		return true
	}
	_, authority, _ := strings.Cut(h.URL, "://")
	if i := strings.IndexAny(authority, "/?#"); i >= 0 {
		authority = authority[:i]
	}
	if strings.Contains(authority, "{") {
		d.fail(n, "%s: a placeholder cannot stand in the host: the caller would choose who gets the request and its credentials; use ${NAME}, or one tool per host", path)
		return true
	}
	u := d.checkURL(n, path, plain)
	return u == nil || u.Scheme == "https"
}

func (d *decoder) tls(in *object, secure bool) *connector.TLSSpec {
	o := in.object("tls")
	if o == nil {
		return nil
	}
	if !secure {
		d.failAt(o.at, "%s has no effect on http://: use https:// or remove tls", o.path)
	}
	if o.has("cert") != o.has("key") {
		d.failAt(o.at, "%s needs cert and key together: a client certificate is both files", o.path)
	}
	out := &connector.TLSSpec{
		CA: o.text("ca", ""), Cert: o.text("cert", ""), Key: o.text("key", ""), ServerName: o.text("server_name", ""),
	}
	for _, path := range []string{out.CA, out.Cert, out.Key} {
		if path != "" && d.files != nil {
			d.files.at(path) // noted, so that a change is seen; whether it holds what it must is for who compiles the tool
		}
	}
	return out
}

// streams are the subjects that the runtime's streams and hints live on: a request there is stored, not answered.
var streams = []string{"jobs", "results", "runs", "wakes", "deadletters", "alerts", "hint"}

func (d *decoder) nats(o *object) *connector.NATSSpec {
	s := o.text("subject", "")
	if problem := subjectProblem(s); s != "" && problem != "" {
		d.fail(o.n.pair("subject").value, "%s.subject %s", o.path, problem)
	}
	return &connector.NATSSpec{Subject: s}
}

func subjectProblem(s string) string {
	tokens := strings.Split(s, ".")
	switch {
	case len(s) > 255:
		return "is longer than 255 bytes"
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f && r < 0xa0 }):
		return "has a space or a control character: use letters, digits, - and _, separated by ."
	case strings.ContainsAny(s, "*>"):
		return "has a wildcard: a request goes to one subject"
	case strings.ContainsAny(s, "{}"):
		return "has a placeholder: a request goes to one subject, the args travel in the message"
	case slices.Contains(tokens, ""):
		return "has an empty part: remove the . too many"
	case strings.HasPrefix(s, "$"):
		return "begins with $, which is the NATS server's own: name a service's subject"
	case tokens[0] == "agentrun" && len(tokens) > 1 && slices.Contains(streams, tokens[1]):
		return "is one of the runtime's own: name a service's subject"
	}
	return ""
}

func (d *decoder) mcp(o *object, f *File) *connector.MCPSpec {
	m := &connector.MCPSpec{Server: o.text("server", ""), Tool: o.text("tool", "")}
	if q := o.get("server"); q != nil && m.Server != "" {
		if _, ok := f.MCPServers[m.Server]; !ok {
			d.fail(q.value, "%s.server: mcp_servers has no %s: define it there, or correct the name", o.path, quote(q.value.text))
		}
	}
	return m
}

// headers reads HTTP headers. Values are secrets as often as not, so no message shows one.
func (o *object) headers(key string) map[string]string {
	first := map[string]string{}
	return o.textMap(key, func(p *pair, path string) {
		lower := strings.ToLower(p.key)
		switch {
		case first[lower] != "":
			o.d.failAt(p.place, "%s is the same header as %s: keep one", path, first[lower])
		case slices.Contains([]string{"agentrun-operation-ref", "content-length", "transfer-encoding", "connection", "host", "traceparent"}, lower):
			o.d.failAt(p.place, "%s is set by the runtime: remove it", path)
		}
		first[lower] = printable(p.key)
	})
}

func fromEnvironment(n *node) string {
	if len(n.substituted) > 0 {
		return ", which is partly from the environment or a file"
	}
	return ""
}
