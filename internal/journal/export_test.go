package journal

import (
	"github.com/agentrun/executor/internal/engine"
)

// EncodeForBenchmark encodes an entry as Write does.
func EncodeForBenchmark(e engine.Entry) { _, _, _ = encode([]engine.Entry{e}) }
