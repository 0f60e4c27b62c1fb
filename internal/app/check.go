package app

import (
	"fmt"
	"strings"

	"github.com/agentrun/executor/internal/config"
)

// Check reads the config file as a process does at its start and compiles every tool. It returns the table of tools,
// ready to print, and the warnings; what is wrong with the content comes as config.Errors.
func Check(path string, lookup func(string) (string, bool)) (tools string, warnings []string, err error) {
	file, found, err := config.Load(path, lookup)
	for _, w := range found {
		warnings = append(warnings, w.String())
	}
	if err != nil {
		return "", warnings, err
	}
	var b strings.Builder
	for _, name := range toolNames(file) {
		fmt.Fprintln(&b, name)
	}
	return b.String(), warnings, nil
}
