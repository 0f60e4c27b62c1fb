package deploy

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentrun/executor/internal/app"
)

// audit runs reconciler audit's reading as a user. Its context ends long after every wait of the test would.
func (n *natsServer) audit(t *testing.T, user string) (int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	report, err := app.Audit(ctx, app.Connection{NATS: n.as(user), Inbox: inbox(user)}, "reconciler audit")
	if err != nil {
		return 0, err
	}
	for _, f := range report.Found {
		t.Errorf("found: %s", f)
	}
	return report.Records, nil
}

// TestAuditWithTheShippedUsers: the auditor reads everything and is refused nothing; whoever may not audit is told at once
// which permission is missing.
func TestAuditWithTheShippedUsers(t *testing.T) {
	t.Parallel()
	n := startShipped(t)
	n.fleet(t, toolConfig(t))
	p := n.publisher(t, "publisher-acme")
	p.submit("ok", "get_invoice", "apply_credit")
	p.submit("denied", "apply_denied") // with a letter
	n.refuse.take()
	if records, err := n.audit(t, "auditor"); err != nil || records != 2 {
		t.Errorf("the auditor read %d records: %v", records, err)
	}
	for _, line := range n.refuse.take() {
		t.Errorf("the auditor was refused: %s", line)
	}
	for user, names := range map[string]string{
		"operator":       `Publish to "$JS.API.STREAM.INFO.AGENTRUN_RESULTS"`,
		"observer":       `Publish to "$JS.API.STREAM.INFO.AGENTRUN_RESULTS"`,
		"publisher-acme": `Publish to "$JS.API.STREAM.INFO.AGENTRUN_RESULTS"`,
		"executor":       `Publish to "$JS.API.CONSUMER.CREATE.AGENTRUN_RESULTS.`,
	} {
		began := time.Now()
		_, err := n.audit(t, user)
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(names)) {
			t.Errorf("the audit as %s ended with %v after %s, wanted it to name %s", user, err, time.Since(began), names)
		}
	}
}

// TestAuditWithoutStreams: an account without the fleet's streams is no place to wait in.
func TestAuditWithoutStreams(t *testing.T) {
	t.Parallel()
	n := startShipped(t)
	if _, err := n.audit(t, "auditor"); err == nil || !strings.Contains(err.Error(), "AGENTRUN_RESULTS") {
		t.Errorf("an audit without streams ended with %v", err)
	}
}
