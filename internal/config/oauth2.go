package config

import (
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentrun/executor/pkg/connector"
)

const defaultTokenTimeout = 10 * time.Second

// ownParams are what the grant itself sends.
var ownParams = []string{"grant_type", "client_id", "client_secret", "scope"}

// oauth2 reads the client credentials of a tool, or of an MCP server.
func (d *decoder) oauth2(in *object) *connector.OAuth2Spec {
	o := in.object("oauth2")
	if o == nil {
		return nil
	}
	s := &connector.OAuth2Spec{
		TokenURL: o.text("token_url", ""), ClientID: o.text("client_id", ""), ClientSecret: o.text("client_secret", ""),
		Scopes: o.texts("scopes", nil),
		Params: o.textMap("endpoint_params", func(p *pair, path string) {
			if slices.Contains(ownParams, p.key) {
				d.failAt(p.place, "%s is sent by the runtime: remove it", path)
			}
		}),
		AuthStyle: o.text("auth_style", "header"),
		Timeout:   o.duration("timeout", defaultTokenTimeout, time.Millisecond, time.Minute),
	}
	if audience := o.text("audience", ""); audience != "" {
		if s.Params["audience"] != "" {
			d.failAt(o.n.pair("audience").place, "%s has audience, and so has its endpoint_params: keep one", o.path)
		}
		if s.Params == nil {
			s.Params = map[string]string{}
		}
		s.Params["audience"] = audience
	}
	s.Secrets = d.secretFiles(o, "token_url", "client_id", "client_secret", "endpoint_params")
	d.tokenURL(o, s.TokenURL)
	if q := in.n.pair("headers"); q != nil {
		for _, e := range q.value.pairs {
			if strings.EqualFold(e.key, "Authorization") {
				d.failAt(e.place, "%s.headers.%s is set by oauth2: remove one of the two", in.path, printable(e.key))
			}
		}
	}
	return s
}

func (d *decoder) tokenURL(o *object, s string) {
	q := o.n.pair("token_url")
	if q == nil || s == "" {
		return
	}
	if strings.ContainsAny(s, "{}") {
		d.fail(q.value, "%s.token_url cannot hold {placeholders}: no call may choose who gets the secret", o.path)
		return
	}
	u := d.checkURL(q.value, o.path+".token_url", s)
	if u != nil && u.Scheme == "http" && !loopback(u) {
		d.warn(q.place, "%s.token_url is http://: the secret and the tokens travel in the clear", o.path)
	}
}

func loopback(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
