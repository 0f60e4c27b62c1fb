package app

import (
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

// JournalPath is the journal of an executor whose --data is dir.
func JournalPath(dir string) string { return filepath.Join(dir, "journal.db") }
