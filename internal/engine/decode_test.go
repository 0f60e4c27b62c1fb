package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/strictjson"
)

// Objects that hold what a user or a tool says, and objects that are closed.
var (
	foreignData   = []string{"args", "asked", "result", "details"}
	closedObjects = []string{"budget", "spent", "row", "result_ref"}
)

// objects calls fn with every object of a record that is the record's own, and with its place.
func objects(v any, place string, fn func(place string, object map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if !slices.Contains(foreignData, k) {
				objects(v[k], place+"/"+k, fn)
			}
		}
		fn(place, v)
	case []any:
		for i, e := range v {
			objects(e, fmt.Sprintf("%s/%d", place, i), fn)
		}
	}
}

func parse(t *testing.T, data []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return v
}

func closed(place string) bool {
	return slices.Contains(closedObjects, place[strings.LastIndexByte(place, '/')+1:])
}

// full is a record with every field, and its bytes.
func full(t *testing.T) []byte {
	t.Helper()
	r, n := new(Run), 0
	fill(reflect.ValueOf(r).Elem(), &n)
	r.Schema = RecordSchema
	data, err := r.bytes()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A newer build may add members to any object of a record that is not closed: this one writes them again.
func TestMembersOfANewerBuildStay(t *testing.T) {
	record := parse(t, full(t))
	places := 0
	objects(record, "", func(place string, o map[string]any) {
		if !closed(place) {
			places++
			o["later_text"] = "<" + place + ">"
			o["later_object"] = map[string]any{"n": json.Number("12345678901234567890.10"), "list": []any{json.Number("1"), nil, "é"}}
		}
	})
	if places < 25 {
		t.Errorf("only %d objects were tried", places)
	}
	data, err := strictjson.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // what was written once is read and written again
		r, err := decodeForeign(data)
		if err != nil {
			t.Fatal(err)
		}
		if data, err = r.bytes(); err != nil {
			t.Fatal(err)
		}
		if got := parse(t, data); !reflect.DeepEqual(got, record) {
			t.Fatalf("lost or changed:\n%s", data)
		}
	}
}

// A member in a closed object says what must not be ignored: such a record is not touched.
func TestClosedObjects(t *testing.T) {
	seen := map[string]bool{}
	objects(parse(t, full(t)), "", func(place string, _ map[string]any) {
		if !closed(place) {
			return
		}
		record := parse(t, full(t))
		objects(record, "", func(at string, o map[string]any) {
			if at == place {
				o["later"] = 1
			}
		})
		data, err := strictjson.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(data); !errors.Is(err, ErrNewer) {
			t.Errorf("a member in %s: %v", place, err)
		}
		seen[place[strings.LastIndexByte(place, '/')+1:]] = true
	})
	if len(seen) != len(closedObjects) {
		t.Errorf("only %v were tried", seen)
	}
}

// What this build cannot understand is told apart from what is broken.
func TestRecordsOfANewerBuild(t *testing.T) {
	const good = `{"schema":"agentrun.record/v1","tenant":"acme","run_id":"r1","queue":"default","episode":1,"created_at":null,` +
		`"updated_at":null,"deadline":"2026-01-01T00:00:00.000Z","budget":{},"spent":{},"steps":[{"step":"a","tool":"t","digest":"d","state":"ready","proposal":1}]}`
	if _, err := Decode([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, from, to string
		newer          bool
	}{
		{"another schema", "record/v1", "record/v2", true},
		{"another schema in another form", `"schema":"agentrun.record/v1","tenant":"acme","run_id":"r1","queue":"default","episode":1`, `"schema":"agentrun.record/v2","tenant":"acme","run_id":"r1","queue":["default"],"episode":"1"`, true},
		{"another state", `"state":"ready"`, `"state":"paused"`, true},
		{"another effect", `"state":"ready"`, `"state":"ready","effect":"stream"`, true},
		{"another way to end", `"steps":`, `"end":{"outcome":"skipped","at":null},"steps":`, true},
		{"another cause", `"steps":`, `"decided":{"why":"quota","at":null},"steps":`, true},
		{"another outcome", `"steps":`, `"out":[{"n":1,"scope":"step","outcome":"partial","spent":{},"elapsed_ms":0,"at":null}],"steps":`, true},
		{"another scope", `"steps":`, `"out":[{"n":1,"scope":"job","outcome":"ok","spent":{},"elapsed_ms":0,"at":null}],"steps":`, true},
		{"no schema", `"schema":"agentrun.record/v1",`, ``, false},
		{"a number for a text", `"queue":"default"`, `"queue":7`, false},
		{"cut off", `]}`, ``, false},
		{"two records", `]}`, `]}{}`, false},
	} {
		data := strings.Replace(good, c.from, c.to, 1)
		if data == good {
			t.Fatalf("%s: nothing was replaced", c.what)
		}
		r, err := Decode([]byte(data))
		if err == nil || errors.Is(err, ErrNewer) != c.newer {
			t.Errorf("%s: %v, %v", c.what, r, err)
		}
	}
}

// A record of version 1 with every field. It was written once (by full) and is never written again: what this build does
// not know of it any more, or writes in another way, would be lost or misread between builds (docs/decisions/0007).
func TestEveryFieldOfVersion1(t *testing.T) {
	stored, err := os.ReadFile("testdata/v1/record.json")
	if err != nil {
		t.Fatal(err)
	}
	stored = bytes.TrimSpace(stored)
	r, err := decodeForeign(stored)
	if err != nil {
		t.Fatal(err)
	}
	if r.foreign {
		t.Error("this build does not know every member of a record of version 1")
	}
	if data, err := r.bytes(); err != nil || !bytes.Equal(data, stored) {
		t.Errorf("(%v) stored\n%s\nwritten\n%s", err, stored, data)
	}
}
