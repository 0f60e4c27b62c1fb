package connector

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/envelope"
)

const farDate = "Tue, 01 Dec 2026 09:00:00 GMT" // 1796115600

// limitedBy is a 4xx or 5xx with such headers, "name: value" each.
func limitedBy(code int, lines ...string) Response {
	resp := status(code, `{"message":"no"}`)
	resp.Header = map[string][]string{}
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		resp.Header[name] = append(resp.Header[name], value)
	}
	return resp
}

// Rate limits as APIs say them, told by headers: what a refusal comes to, and how long it waits. Times are by the far
// side's own Date, which here is years away from this machine's clock.
func TestRateLimitsInHeaders(t *testing.T) {
	date := "date: " + farDate
	for _, c := range []struct {
		name string
		resp Response
		code envelope.Code
		wait time.Duration
	}{
		{"github, primary", limitedBy(403, date, "x-ratelimit-remaining: 0", "x-ratelimit-reset: 1796115660"), envelope.CodeUpstreamRateLimited, time.Minute},
		{"github, secondary", limitedBy(403, date, "x-ratelimit-remaining: 4999", "x-ratelimit-reset: 1796115660", "retry-after: 30"), envelope.CodeUpstreamRateLimited, 30 * time.Second},
		{"github, a denial", limitedBy(403, date, "x-ratelimit-remaining: 4999", "x-ratelimit-reset: 1796115660"), envelope.CodeUpstreamDenied, 0},
		{"a denial whose allowance is many zeroes", limitedBy(403, "x-ratelimit-remaining: 00"), envelope.CodeUpstreamDenied, 0},
		{"two allowances", limitedBy(403, "x-ratelimit-remaining: 0", "x-ratelimit-remaining: 9"), envelope.CodeUpstreamDenied, 0},
		{"401 is no rate limit", limitedBy(401, "x-ratelimit-remaining: 0", "retry-after: 5"), envelope.CodeUpstreamDenied, 0},
		{"used up, nobody says until when", limitedBy(403, "x-ratelimit-remaining: 0"), envelope.CodeUpstreamRateLimited, 0},
		{"the reset has passed", limitedBy(403, date, "x-ratelimit-remaining: 0", "x-ratelimit-reset: 1796115000"), envelope.CodeUpstreamRateLimited, 0},
		{"a reset in seconds", limitedBy(429, "x-ratelimit-remaining: 0", "x-ratelimit-reset: 90"), envelope.CodeUpstreamRateLimited, 90 * time.Second},
		{"a reset in milliseconds", limitedBy(429, date, "x-rate-limit-remaining: 0", "x-rate-limit-reset: 1796115601500"), envelope.CodeUpstreamRateLimited, 1500 * time.Millisecond},
		{"jira", limitedBy(429, date, "x-ratelimit-remaining: 0", "x-ratelimit-reset: 2026-12-01T09:00:20Z"), envelope.CodeUpstreamRateLimited, 20 * time.Second},
		{"what is left is no reason to wait", limitedBy(429, "x-ratelimit-remaining: 7", "x-ratelimit-reset: 90"), envelope.CodeUpstreamRateLimited, 0},
		{"Retry-After comes first", limitedBy(429, "retry-after: 5", "ratelimit: \"a\";r=0;t=50", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 90"), envelope.CodeUpstreamRateLimited, 5 * time.Second},
		{"draft 11", limitedBy(429, `ratelimit: "default";r=0;t=30`), envelope.CodeUpstreamRateLimited, 30 * time.Second},
		{"draft 11, some are left", limitedBy(429, `ratelimit: "hour";r=0;t=1200;pk=:Zm9v:, "day";r=500;t=40000`), envelope.CodeUpstreamRateLimited, 20 * time.Minute},
		{"draft 11, two are used up", limitedBy(403, `ratelimit: "burst, really";r=0;t=2`, `ratelimit: "day";t=60;r=0`), envelope.CodeUpstreamRateLimited, time.Minute},
		{"draft 11, by the policy's window", limitedBy(429, `ratelimit: "hour";r=0`, `ratelimit-policy: "burst";q=10;w=1,"hour";q=100;w=3600`), envelope.CodeUpstreamRateLimited, time.Hour},
		{"draft 11, a policy alone says nothing", limitedBy(429, `ratelimit-policy: "hour";q=100;w=3600`), envelope.CodeUpstreamRateLimited, 0},
		{"draft 8, names as tokens", limitedBy(429, `ratelimit: default;r=0;t=9`), envelope.CodeUpstreamRateLimited, 9 * time.Second},
		{"draft 7", limitedBy(429, `ratelimit: limit=5, remaining=0, reset=42`), envelope.CodeUpstreamRateLimited, 42 * time.Second},
		{"draft 6", limitedBy(429, `ratelimit-remaining: 0`, `ratelimit-reset: 8`), envelope.CodeUpstreamRateLimited, 8 * time.Second},
		{"no structured field", limitedBy(403, `ratelimit: "default;r=0;t=9`), envelope.CodeUpstreamDenied, 0},
		{"no whole number", limitedBy(403, `ratelimit: "default";r=0.0;t=9`), envelope.CodeUpstreamDenied, 0},
		{"a negative time", limitedBy(429, `ratelimit: "default";r=0;t=-9`), envelope.CodeUpstreamRateLimited, 0},
		{"an endless time", limitedBy(429, `ratelimit: "default";r=0;t=999999999999999`), envelope.CodeUpstreamRateLimited, retryAfterMax},
		{"locked", limitedBy(423, "retry-after: 3"), envelope.CodeResourceLocked, 3 * time.Second},
		{"too early", limitedBy(425, "retry-after: 3"), envelope.CodeUpstreamUnavailable, 3 * time.Second},
	} {
		for _, effect := range []envelope.Effect{envelope.Read, envelope.Write} {
			got := classified(t, KindHTTP, effect, c.resp, nil)
			if got.OK || got.Row.Code != c.code || got.Row.CommitState != envelope.NotCommitted || time.Duration(got.RetryAfter)*time.Millisecond != c.wait {
				t.Errorf("%s, %s: %s %s, %d ms; wanted %s, %s", c.name, effect, got.Row.Code, got.Row.CommitState, got.RetryAfter, c.code, c.wait)
			}
		}
	}
	// An MCP server over HTTP is read by the same table.
	got := classified(t, KindMCP, envelope.Write, limitedBy(403, date, "x-ratelimit-remaining: 0", "x-ratelimit-reset: 1796115660"), nil)
	if got.Row.Code != envelope.CodeUpstreamRateLimited || got.RetryAfter != 60_000 {
		t.Errorf("mcp: %+v", got)
	}
}

// A rule names the field that says when to come again.
func TestRetryAfterOfARule(t *testing.T) {
	for _, c := range []struct {
		source, body string
		want         time.Duration
	}{
		{"body.wait", `{"wait":30}`, 30 * time.Second},
		{"body.wait", `{"wait":0.0015}`, 2 * time.Millisecond},
		{"body.wait", `{"wait":"30"}`, 30 * time.Second},
		{"double(body.wait) / 1000.0", `{"wait":1500}`, 1500 * time.Millisecond},
		{"body.wait", `{"wait":1796115630}`, 30 * time.Second},
		{"body.wait", `{"wait":1796115630.25}`, 30250 * time.Millisecond},
		{"body.wait", `{"wait":1796115630000}`, 30 * time.Second},
		{"body.wait", `{"wait":"2026-12-01T10:00:30+01:00"}`, 30 * time.Second},
		{"body.wait", `{"wait":"Tue, 01 Dec 2026 09:00:30 GMT"}`, 30 * time.Second},
		{"timestamp(body.wait)", `{"wait":"2026-12-01T09:00:30Z"}`, 30 * time.Second},
		{"duration(body.wait)", `{"wait":"1m30s"}`, 90 * time.Second},
		{"headers['x-wait']", `{}`, 12 * time.Second},
		{"body.wait", `{"wait":1e300}`, retryAfterMax},
		{"body.wait", `{"wait":0}`, 0},
		{"body.wait", `{"wait":1700000000}`, 0}, // long ago
		// What cannot be read leaves it to Retry-After.
		{"body.wait", `{}`, 7 * time.Second},
		{"body.wait", `{"wait":-3}`, 7 * time.Second},
		{"body.wait", `{"wait":"soon"}`, 7 * time.Second},
		{"body.wait", `{"wait":""}`, 7 * time.Second},
		{"body.wait", `{"wait":"0x10"}`, 7 * time.Second},
		{"body.wait", `{"wait":"+Inf"}`, 7 * time.Second},
		{"body.wait", `{"wait":[30]}`, 7 * time.Second},
		{"duration(body.wait)", `{"wait":"-5s"}`, 7 * time.Second},
	} {
		resp := status(200, c.body)
		resp.Header = map[string][]string{"date": {farDate}, "x-wait": {"12"}, "retry-after": {"7"}}
		got := classified(t, KindHTTP, envelope.Write, resp, withRules(Rule{When: "true", Code: envelope.CodeUpstreamRateLimited, RetryAfter: c.source}))
		if got.Row.Code != envelope.CodeUpstreamRateLimited || time.Duration(got.RetryAfter)*time.Millisecond != c.want {
			t.Errorf("%s of %s: %s, %d ms, wanted %s", c.source, c.body, got.Row.Code, got.RetryAfter, c.want)
		}
	}
	for _, r := range []Rule{
		{When: "true", Code: envelope.CodeStateConflict, RetryAfter: "body.wait"},
		{When: "true", Code: "OWN_CODE", Category: envelope.Dependency, CommitState: envelope.Unknown, RetryAfter: "body.wait"},
		{When: "true", Code: "DONE_ALREADY", CommitState: envelope.Committed, RetryAfter: "body.wait"},
		{When: "true", Code: envelope.CodeUpstreamRateLimited, RetryAfter: "status == 429"},
		{When: "true", Code: envelope.CodeUpstreamRateLimited, RetryAfter: "[1]"},
		{When: "true", Code: envelope.CodeUpstreamRateLimited, RetryAfter: "bodi.wait"},
	} {
		spec := Spec{Name: "tool", Effect: envelope.Write, Kind: kindSpec(KindHTTP), Errors: []Rule{r}}
		_, err := Compile(spec, &stub{name: KindHTTP})
		var at *SpecError
		if !errors.As(err, &at) || len(at.Path) != 3 || at.Path[2] != "retry_after" {
			t.Errorf("%+v: %v", r, err)
		}
	}
}
