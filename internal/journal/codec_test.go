package journal

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/agentrun/executor/internal/engine"
	"github.com/agentrun/executor/pkg/envelope"
)

// fillValue sets every field below v to something that is not its zero value, so that a field that a later version of the
// entry has, and the codec does not, makes the round trip fail.
func fillValue(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillValue(t, v.Field(i), n)
		}
	case reflect.String:
		v.SetString(strings.Repeat("x", *n%40+1))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n) << 40)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(t, v.Elem(), n)
	case reflect.Slice: // raw JSON
		v.SetBytes([]byte(`{"n":12345678901234567890123}`))
	case reflect.Map: // details
		v.Set(reflect.ValueOf(envelope.Details{"field": "/a", "n": json.Number("12345678901234567890"), "b": true}))
	default:
		t.Fatalf("the codec's test does not know kind %s", v.Kind())
	}
}

func TestEveryFieldSurvives(t *testing.T) {
	var intent engine.Intent
	var effect engine.EffectFact
	n := 0
	fillValue(t, reflect.ValueOf(&intent).Elem(), &n)
	fillValue(t, reflect.ValueOf(&effect).Elem(), &n)
	effect.Reply.Seen = envelope.Seen{} // not kept: see encodeEffect

	gotIntent, err := decodeIntent(intent.Dispatch, encodeIntent(&intent))
	if err != nil || !reflect.DeepEqual(gotIntent, intent) {
		t.Errorf("intent: got %+v, %v\nwant %+v", gotIntent, err, intent)
	}
	b, err := encodeEffect(&effect)
	if err != nil {
		t.Fatal(err)
	}
	gotEffect, err := decodeEffect(effect.Dispatch, b)
	if err != nil || !reflect.DeepEqual(gotEffect, effect) {
		t.Errorf("effect: got %+v, %v\nwant %+v", gotEffect, err, effect)
	}
	if timeOf(b) != effect.At || timeOf(encodeIntent(&intent)) != intent.At {
		t.Error("the time is not where Sweep reads it")
	}
}

func TestEachFlagIsItsOwn(t *testing.T) {
	for _, r := range []envelope.Reply{{}, {OK: true}, {LookUp: true}, {NotSent: true}, {NoReply: true}, {Result: json.RawMessage{}}, {Ref: &envelope.ObjectRef{}}} {
		want := engine.EffectFact{Dispatch: "d", Reply: r}
		b, err := encodeEffect(&want)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeEffect("d", b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestKeys(t *testing.T) {
	v7 := uuid.Must(uuid.NewV7()).String()
	for _, tc := range []struct {
		id     string
		binary bool
	}{
		{v7, true},
		{strings.ToUpper(v7), false},
		{uuid.NewString(), false}, // version 4: in no order of time
		{"ff" + v7[2:], false},    // would be taken for another id's key
		{v7[:35], false},
		{v7 + "0", false},
		{strings.Replace(v7, "-", "_", 1), false},
		{v7[:35] + "g", false},
		{"d1", false},
		{"fifteen-letters", false}, // its key has 16 bytes
		{strings.Repeat("d", 255), false},
	} {
		key, err := keyOf(engine.DispatchID(tc.id))
		if err != nil {
			t.Errorf("%s: %v", tc.id, err)
			continue
		}
		if timeOrdered(key) != tc.binary {
			t.Errorf("%s: time ordered is %v", tc.id, timeOrdered(key))
		}
		if back, err := dispatchOf(key); err != nil || string(back) != tc.id {
			t.Errorf("%s came back as %s, %v", tc.id, back, err)
		}
	}
	for _, id := range []string{"", strings.Repeat("d", 256)} {
		if _, err := keyOf(engine.DispatchID(id)); err == nil {
			t.Errorf("an id of %d bytes was taken", len(id))
		}
	}
	for _, key := range [][]byte{nil, {otherID}, []byte("short"), make([]byte, 17)} {
		if d, err := dispatchOf(key); err == nil {
			t.Errorf("key %x was read as %s", key, d)
		}
	}
}

// FuzzDecode feeds the decoders what a damaged page could hold: they give an error or a value that means the same when
// it is written again.
func FuzzDecode(f *testing.F) {
	intent := engine.Intent{Dispatch: "d", Tenant: "acme", Args: json.RawMessage(`{"a":1}`), Attempt: 1, At: 7}
	effect, err := encodeEffect(&engine.EffectFact{Dispatch: "d", Reply: envelope.Reply{OK: true, Result: json.RawMessage(`null`), Details: envelope.Details{"a": json.Number("1")}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encodeIntent(&intent))
	f.Add(effect)
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		if i, err := decodeIntent("d", b); err == nil {
			again := encodeIntent(&i)
			if back, err := decodeIntent("d", again); err != nil || !reflect.DeepEqual(back, i) {
				t.Errorf("intent %x became %x: %v", b, again, err)
			}
		}
		if e, err := decodeEffect("d", b); err == nil {
			again, err := encodeEffect(&e)
			if err != nil {
				t.Fatal(err)
			}
			if back, err := decodeEffect("d", again); err != nil || !reflect.DeepEqual(back, e) {
				t.Errorf("effect %x became %x: %v", b, again, err)
			}
		}
		_, _ = open(tagIntent, nil, b)
		if d, err := dispatchOf(b); err == nil {
			if key, err := keyOf(d); err == nil && len(b) != 16 && !bytes.Equal(key, b) {
				t.Errorf("key %x became %x", b, key)
			}
		}
	})
}
