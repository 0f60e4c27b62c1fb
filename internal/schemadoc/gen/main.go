// Command gen writes docs/codes.md and docs/schema from the code, or with -check says whether they are current.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/agentrun/executor/internal/schemadoc"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// run returns the exit code: 0, 1 for a failure or stale documents, 2 for bad usage.
func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("gen", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", ".", "the module's root")
	check := flags.Bool("check", false, "change nothing; exit 1 if a document is stale")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 2
	}
	work := schemadoc.Write
	if *check {
		work = schemadoc.Check
	}
	if err := work(*root); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}
