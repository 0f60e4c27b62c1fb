package app

import (
	"math/rand/v2"
	"time"

	"github.com/agentrun/executor/internal/operator"
	"github.com/agentrun/executor/internal/record"
	"github.com/agentrun/executor/internal/streams"
)

// newIndex makes the operator calls' index of this process, which counts the open letters.
func newIndex(p *process, conn *streams.Conn) *operator.Index {
	return operator.NewIndex(p.observer, func() time.Time { return conn.Clock().Lower() })
}

// newOperator makes the operator calls of this process.
func newOperator(conn *streams.Conn, p *process, records *record.Records, tools *live, index *operator.Index, lines queues) *operator.Operator {
	return operator.New(operator.Config{
		Records: records, Streams: conn, Queues: lines, Tools: tools, Defaults: tools.defaults, Index: index,
		Random: rand.Float64, Observe: p.observer, Log: p.log,
	})
}
