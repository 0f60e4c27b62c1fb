package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/agentrun/executor/pkg/run"
)

// TraceID is the id of the run's one trace, see TraceID.
func (r *Run) TraceID() string { return TraceID(run.ID{Tenant: r.Tenant, Run: r.RunID}, r.Trace) }

// TraceID is the id of a run's trace, 32 hex digits: that of the W3C traceparent of its first job or, where there is no
// valid one, the first 16 bytes of SHA-256 over "<tenant>/<run_id>". So every process that works on a run names the same
// trace without having to tell the others.
func TraceID(id run.ID, traceparent string) string {
	if trace, ok := traceIDOf(traceparent); ok {
		return trace
	}
	sum := sha256.Sum256([]byte(id.Tenant + "/" + id.Run))
	return hex.EncodeToString(sum[:16])
}

// traceIDOf takes version-traceid-parentid-flags apart.
func traceIDOf(traceparent string) (string, bool) {
	part := strings.Split(traceparent, "-")
	if len(part) < 4 || part[0] == "ff" || part[0] == "00" && len(part) != 4 {
		return "", false
	}
	for i, size := range [4]int{2, 32, 16, 2} {
		if len(part[i]) != size || strings.Trim(part[i], "0123456789abcdef") != "" {
			return "", false
		}
	}
	return part[1], strings.Trim(part[1], "0") != "" && strings.Trim(part[2], "0") != ""
}
