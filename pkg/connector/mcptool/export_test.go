package mcptool

import (
	"time"

	"github.com/agentrun/executor/pkg/connector"
)

// NewImpatient is New for tests, with other times for the start of a session.
func NewImpatient(servers map[string]connector.MCPServerSpec, probe, behind, connect time.Duration, listens bool) *Kind {
	return newKind(servers, patience{probe: probe, behind: behind, connect: connect}, listens)
}
