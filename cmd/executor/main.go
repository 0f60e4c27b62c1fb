// Command executor pulls run jobs from NATS JetStream and calls the tools that they name.
package main

import "github.com/agentrun/executor/pkg/executor"

func main() { executor.Main() }
