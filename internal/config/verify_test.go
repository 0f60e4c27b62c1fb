package config

import (
	"reflect"
	"testing"

	"github.com/agentrun/executor/pkg/connector"
	"github.com/agentrun/executor/pkg/envelope"
)

func TestVerifyOfAJob(t *testing.T) {
	for _, kind := range []string{"http: {url: 'https://h/{operation_ref}'}", "nats: {subject: s}", "mcp: {server: m, tool: look}", "command: {argv: [look]}"} {
		f, warnings, err := Parse("a.yaml", []byte(`
mcp_servers: {m: {command: [m]}}
tools:
  t:
    effect: write
    owner: o
    http: {url: "https://h/"}
    verify:
      `+kind+`
      committed: "body.state == 'done'"
      pending: "body.state == 'running'"
      failed:
        - {when: "body.state == 'failed'", code: JOB_DIED, category: conflict}
        - {when: "body.state == 'gone'", code: UPSTREAM_ERROR}
`), noEnvironment)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v %v", kind, err, warnings)
		}
		v := f.Tools[0].Verify
		want := []connector.Rule{
			{When: "body.state == 'failed'", Code: "JOB_DIED", Category: envelope.Conflict},
			{When: "body.state == 'gone'", Code: envelope.CodeUpstreamError},
		}
		if v.Pending != "body.state == 'running'" || !reflect.DeepEqual(v.Failed, want) {
			t.Errorf("%s: %+v", kind, v)
		}
	}
}
