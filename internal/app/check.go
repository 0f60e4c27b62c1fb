package app

import (
	"io"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/pkg/connector/httptool"
)

// Check reads the config file as a process does at its start, compiles every tool and prints them as a table to w, with
// the warnings. What is wrong with the content comes as Faults, with the warnings in front.
func Check(w io.Writer, path string, lookup func(string) (string, bool)) error {
	http := httptool.New()
	defer http.Close()
	box, warnings, err := LoadTools(path, lookup, http)
	if err != nil {
		faults, ok := err.(Faults)
		if !ok {
			return err
		}
		lines := make(Faults, 0, len(warnings)+len(faults))
		for _, warning := range warnings {
			lines = append(lines, warning.String())
		}
		return append(lines, faults...)
	}
	return config.Describe(w, box.File)
}
