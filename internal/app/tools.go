package app

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/pkg/connector"
)

// Faults are what is wrong with a config file's content, one line each: file:line:column: message. None holds a value
// that came from the environment.
type Faults []string

func (f Faults) Error() string { return strings.Join(f, "\n") }

// Toolbox is a config file, read, with every tool compiled.
type Toolbox struct {
	File     *config.File
	Registry *connector.Registry
}

// LoadTools reads the config file at path and compiles its tools with these kinds. What is wrong with the content comes
// as Faults, all of it; the warnings come in any case.
func LoadTools(path string, lookup func(string) (string, bool), kinds ...connector.Kind) (*Toolbox, []config.Warning, error) {
	file, warnings, err := config.Load(path, lookup)
	var wrong config.Errors
	if errors.As(err, &wrong) {
		return nil, warnings, Faults(strings.Split(wrong.Error(), "\n"))
	}
	if err != nil {
		return nil, warnings, err
	}
	tools := make([]*connector.Tool, 0, len(file.Tools))
	var faults Faults
	for _, spec := range file.Tools {
		tool, err := connector.Compile(spec, kinds...)
		var fault *connector.SpecError
		switch {
		case errors.As(err, &fault):
			faults = append(faults, file.Locate(spec.Name, fault))
		case err != nil:
			return nil, warnings, fmt.Errorf("tool %s: %w", spec.Name, err)
		default:
			tools = append(tools, tool)
		}
	}
	if len(faults) > 0 {
		return nil, warnings, faults
	}
	registry, err := connector.NewRegistry(tools...)
	if err != nil {
		return nil, warnings, err
	}
	return &Toolbox{File: file, Registry: registry}, warnings, nil
}

// JournalPath is the journal of an executor whose --data is dir.
func JournalPath(dir string) string { return filepath.Join(dir, "journal.db") }
