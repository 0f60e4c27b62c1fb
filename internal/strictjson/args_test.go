package strictjson

import (
	"encoding/json"
	"reflect"
	"testing"
)

// What was learnt of args once is not found out again: the values are one map, and the digest is kept.
func TestArgsLearnOnce(t *testing.T) {
	a, err := ParseArgs([]byte(` { "b" : [1.50] , "a" : 2 } `), Bounds{MaxDepth: 2})
	if err != nil {
		t.Fatal(err)
	}
	if string(a.Text()) != `{"b":[1.50],"a":2}` || a.Depth() != 2 {
		t.Errorf("%s, depth %d", a.Text(), a.Depth())
	}
	first, ok := a.Values()
	again, _ := a.Values()
	if want := map[string]any{"b": []any{json.Number("1.50")}, "a": json.Number("2")}; !ok || !reflect.DeepEqual(first, want) {
		t.Errorf("%v, %v", first, ok)
	}
	if reflect.ValueOf(first).Pointer() != reflect.ValueOf(again).Pointer() {
		t.Error("they were decoded twice")
	}
	if n := testing.AllocsPerRun(10, func() { a.Sum("t") }); n != 0 {
		t.Errorf("the sum of the same tool again: %v allocations", n)
	}
	if a.Digest("t") == a.Digest("u") || a.Digest("t") != ArgsDigest("t", json.RawMessage(`{"a":2,"b":[1.50]}`)) {
		t.Error("the digest is not that of tool and args")
	}
}

func TestArgsRefuse(t *testing.T) {
	if _, err := ParseArgs([]byte(`{"a":1,"a":2}`), Bounds{}); err == nil {
		t.Error("a doubled key was taken")
	}
	for _, text := range []string{`[1]`, `7`, `{"n":1e1001}`} {
		if a, err := ParseArgs([]byte(text), Bounds{}); err != nil {
			t.Error(text, err)
		} else if _, ok := a.Values(); ok {
			t.Errorf("%s has values", text)
		}
	}
	var absent *Args
	if v, ok := absent.Values(); !ok || len(v) != 0 || absent.Text() != nil {
		t.Error("args that are not there are no empty object")
	}
}

// A record keeps args as they are, also those that nobody would accept today.
func TestArgsInARecord(t *testing.T) {
	for text, sound := range map[string]bool{`{"a":1.0}`: true, `{"a":"\ud800"}`: false} {
		var a Args
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			t.Fatal(err)
		}
		if _, ok := a.Values(); ok != sound {
			t.Errorf("%s: values %v", text, ok)
		}
		if got, err := Marshal(&a); err != nil || string(got) != text {
			t.Errorf("%s became %s, %v", text, got, err)
		}
		a.Sum("t")
	}
}
