package operator

import "testing"

// A misspelt key in a filter must not settle every letter of the tenant; elsewhere unknown keys are ignored.
func TestMisspeltFilterIsRefused(t *testing.T) {
	type request struct {
		Filter *Filter `json:"filter"`
		By     string  `json:"by"`
	}
	for text, ok := range map[string]bool{
		`{"filter":{"owner":"o","reason_code":"r","tool":"t"},"by":"a"}`: true,
		`{"filter":{},"by":"a","newer":"field"}`:                         true,
		`{"filter":{"reasoncode":"r"},"by":"a"}`:                         false,
		`{"filter":{"owner":"o","Tool":"t"},"by":"a"}`:                   false,
	} {
		if err := decode([]byte(text), &request{}); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}
