package engine

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/envelope"
)

// fill gives every field of v a value that is not its zero value, so that nothing is left out.
func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case json.RawMessage:
		v.SetBytes([]byte(`{"n":1.50,"t":"<&>"}`))
		return
	case *strictjson.Args:
		v.Set(reflect.ValueOf(strictjson.CheckedArgs([]byte(`{"n":1.50,"t":"<&>"}`))))
		return
	case envelope.Details:
		v.Set(reflect.ValueOf(envelope.Details{"field": "/a", "limit": json.Number("12345678901234567890")}))
		return
	case envelope.Time:
		v.SetInt(1_790_000_000_000 + int64(*n)*1_234_567)
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("<text> \"é\"\n" + strings.Repeat("x", *n%3))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.25)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Uint8:
		v.SetUint(7)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	default:
		panic("fill cannot fill a " + v.Type().String())
	}
}

// What is written by hand is what encoding/json writes: with every field, with none, and with one at a time.
func TestWrittenByHand(t *testing.T) {
	same := func(what string, r *Run) {
		t.Helper()
		want, err := strictjson.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.appendJSON(nil)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s (%v):\n%s\nwant\n%s", what, err, got, want)
		}
	}
	if !byHand {
		t.Errorf("encode.go does not know every field: Run has %d, Step %d, Owed %d, Event %d, Effect %d, JobRef %d, Published %d, End %d, Lease %d",
			fields[Run](), fields[Step](), fields[Owed](), fields[Event](), fields[Effect](), fields[JobRef](), fields[Published](), fields[End](), fields[Lease]())
	}
	n := 0
	full := new(Run)
	fill(reflect.ValueOf(full).Elem(), &n)
	same("every field", full)
	same("no field", &Run{})
	same("empty lists", &Run{Steps: []*Step{}, Owed: []Owed{}, History: []Event{}})
	for _, v := range []any{full, full.Steps[0], &full.Owed[0], &full.History[0], &full.Effects[0]} {
		of := reflect.ValueOf(v).Elem()
		for i := range of.NumField() {
			if !of.Type().Field(i).IsExported() {
				continue
			}
			r := new(Run)
			switch only := reflect.New(of.Type()); {
			case of.Type() == reflect.TypeFor[Run]():
				reflect.ValueOf(r).Elem().Field(i).Set(of.Field(i))
			default:
				only.Elem().Field(i).Set(of.Field(i))
				switch p := only.Interface().(type) {
				case *Step:
					r.Steps = []*Step{p}
				case *Owed:
					r.Owed = []Owed{*p}
				case *Event:
					r.History = []Event{*p}
				case *Effect:
					r.Effects = []Effect{*p}
				}
			}
			same(of.Type().Name()+"."+of.Type().Field(i).Name, r)
		}
	}
}

// plain is an outcome without its methods, which encoding/json writes.
type plain envelope.Outcome

// The same for outcomes.
func TestOutcomeWrittenByHand(t *testing.T) {
	n := 0
	full := new(envelope.Outcome)
	fill(reflect.ValueOf(full).Elem(), &n)
	for _, o := range []*envelope.Outcome{full, {}, {Envelope: &envelope.Envelope{}, Spent: &envelope.Spent{ElapsedSeconds: 1e-9}, CompletedEffects: []envelope.CompletedEffect{}}} {
		want, err := strictjson.Marshal((*plain)(o))
		if err != nil {
			t.Fatal(err)
		}
		got, err := o.Append(nil)
		if err != nil || string(got) != string(want) {
			t.Errorf("(%v)\n%s\nwant\n%s", err, got, want)
		}
	}
	of := reflect.ValueOf(full).Elem()
	for i := range of.NumField() {
		o := new(envelope.Outcome)
		reflect.ValueOf(o).Elem().Field(i).Set(of.Field(i))
		want, _ := strictjson.Marshal((*plain)(o))
		if got, err := o.Append(nil); err != nil || string(got) != string(want) {
			t.Errorf("%s (%v)\n%s\nwant\n%s", of.Type().Field(i).Name, err, got, want)
		}
	}
}

// What is no JSON must not get into a record.
func TestBrokenValueIsAnError(t *testing.T) {
	r := &Run{Steps: []*Step{{Name: "a", Result: json.RawMessage(`{"a":`)}}}
	if _, err := r.appendJSON(nil); err == nil {
		t.Error("written")
	}
}
