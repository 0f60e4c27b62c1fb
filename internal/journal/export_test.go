package journal

import "github.com/agentrun/executor/pkg/run"

// EncodeForBenchmark encodes an entry as Write does.
func EncodeForBenchmark(e run.Entry) { _, _, _ = encode([]run.Entry{e}) }
