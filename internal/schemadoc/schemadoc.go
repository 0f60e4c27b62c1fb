// Package schemadoc prints the documents that follow from the code: docs/codes.md from the table of codes, and a JSON
// Schema for every message that other programs read or write, and the one of the config file. What it prints is checked in;
// a test fails when it is stale.
package schemadoc

//go:generate go run ./gen -root ../..

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"

	"github.com/agentrun/executor/internal/config"
	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// ErrStale is what Check returns for files that no longer say what the code says.
var ErrStale = errors.New("generated documents are stale")

// message is one kind of message with a schema of its own.
type message struct {
	name   string // of the file, and in $id
	title  string
	schema string // the value of its field "schema"; "" if it has none
	value  any
	refine func(*jsonschema.Schema)
}

var messages = []message{
	{name: "job", title: "A job: steps for a run", schema: run.JobSchema, value: run.Job{}, refine: refineJob},
	{name: "envelope", title: "An envelope: what one tool call came to", value: envelope.Envelope{}, refine: refineEnvelope},
	{name: "outcome", title: "An outcome of a step or a run", schema: envelope.OutcomeSchema, value: envelope.Outcome{}, refine: refineOutcome},
	{name: "deadletter", title: "An open dead letter", schema: deadletter.Schema, value: deadletter.Letter{}},
	{name: "alert", title: "An alert", schema: deadletter.AlertSchema, value: deadletter.Alert{}},
	{name: "record", title: "A run record: for reading, never written by other programs", schema: engine.RecordSchema, value: engine.Run{}},
}

// File is one generated document; Path is relative to the module's root.
type File struct {
	Path string
	Data []byte
}

// Files makes every document from the source tree at root.
func Files(root string) ([]File, error) {
	src, err := readSources(root, "pkg/envelope", "pkg/budget", "pkg/deadletter", "pkg/run", "internal/engine")
	if err != nil {
		return nil, fmt.Errorf("schemadoc: %w", err)
	}
	files := []File{{Path: "docs/codes.md", Data: codes()}}
	for _, m := range messages {
		data, err := m.print(src)
		if err != nil {
			return nil, fmt.Errorf("schemadoc: %s: %w", m.name, err)
		}
		files = append(files, File{Path: "docs/schema/" + m.name + ".json", Data: data})
	}
	return append(files, File{Path: "docs/schema/config.json", Data: config.Schema()}), nil
}

// Write makes every document and writes it below root.
func Write(root string) error {
	files, err := Files(root)
	if err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(root, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("schemadoc: %w", err)
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			return fmt.Errorf("schemadoc: %w", err)
		}
	}
	return nil
}

// Check compares every document with what is below root. The error is ErrStale, with the names, where one differs.
func Check(root string) error {
	files, err := Files(root)
	if err != nil {
		return err
	}
	var stale []error
	for _, f := range files {
		old, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(f.Path)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("schemadoc: %w", err)
		}
		if !bytes.Equal(old, f.Data) {
			stale = append(stale, fmt.Errorf("%w: %s", ErrStale, f.Path))
		}
	}
	return errors.Join(stale...)
}

// print reflects the message's type into its schema. Fields that may be absent are the ones with omitempty or omitzero;
// further fields are allowed everywhere, because readers ignore what they do not know.
func (m message) print(src *sources) ([]byte, error) {
	r := &jsonschema.Reflector{
		Anonymous:                 true,
		AllowAdditionalProperties: true,
		ExpandedStruct:            true,
		Mapper:                    src.mapType,
		LookupComment:             src.comment,
		Namer:                     defName,
	}
	s := r.ReflectFromType(reflect.TypeOf(m.value))
	s.ID = jsonschema.ID("urn:agentrun:" + m.name + ":v1")
	s.Title = m.title
	if m.schema != "" {
		p, ok := s.Properties.Get("schema")
		if !ok {
			return nil, errors.New("no field schema")
		}
		p.Const = m.schema
	}
	if m.refine != nil {
		m.refine(s)
	}
	flat, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, flat, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return []byte(unescapeHTML.Replace(out.String())), nil
}

// unescapeHTML undoes what encoding/json does to comments for HTML.
var unescapeHTML = strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&")
