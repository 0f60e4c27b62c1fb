// Command reconciler watches the run records: it settles what a lost executor left behind, wakes what is due and verifies
// what is unknown.
package main

import (
	"io"
	"log"

	"github.com/agentrun/executor/pkg/executor"
)

func main() {
	log.SetOutput(io.Discard) // what a library prints by itself may hold text of a tool's
	executor.Reconciler()
}
