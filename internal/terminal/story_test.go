package terminal

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// What is printed can be typed as it stands: the replay of a run that a budget ended adds to it.
func TestThePrintedReplayAddsBudget(t *testing.T) {
	for _, c := range []struct {
		code envelope.Code
		want string
	}{
		{envelope.CodeToolCallsExhausted, `--letter acme/r/1 --add-budget '{"max_tool_calls":1}' --reason`},
		{envelope.CodeTimeExhausted, `--letter acme/r/1 --reason`},
	} {
		l := &deadletter.Letter{Summary: deadletter.Summary{
			ID: "acme/r/1", Tenant: "acme", RunID: "r", Code: c.code, AllowedActions: []deadletter.Action{deadletter.Replay},
			Budget: deadletter.BudgetOf(budget.Limits{MaxToolCalls: 2}), Spent: envelope.Spent{ToolCalls: 2}, RemainingSteps: []string{"b"},
		}}
		var b bytes.Buffer
		p := newPrinter(&b, false, env())
		p.Story(&run.View{Tenant: "acme", RunID: "r"}, l, time.Unix(0, 0), 100)
		if !strings.Contains(b.String(), c.want) {
			t.Errorf("%s: no %q in\n%s", c.code, c.want, b.String())
		}
	}
}
