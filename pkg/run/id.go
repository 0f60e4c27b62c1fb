package run

import "github.com/agentrun/executor/pkg/envelope"

// Time is shorthand for the wire's time.
type Time = envelope.Time

// ID names a run: both parts are identifiers of contract §1.
type ID struct{ Tenant, Run string }

func (id ID) String() string { return id.Tenant + "/" + id.Run }
