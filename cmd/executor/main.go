// Command executor pulls run jobs from NATS JetStream and calls the tools that they name.
package main

import (
	"io"
	"log"

	"github.com/agentrun/executor/pkg/executor"
)

func main() {
	// What a library prints by itself may hold text of a tool's. Nothing here logs that way; an executor of your own may.
	log.SetOutput(io.Discard)
	executor.Main()
}
