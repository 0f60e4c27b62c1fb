package connector

import "strings"

// Warnings says what is legal in a spec and probably not meant (contract §1: executor check).
func Warnings(s *Spec) []*SpecError {
	v := s.Verify
	if v == nil || namesOperation(v) {
		return nil
	}
	return []*SpecError{{
		Path:    []any{"verify"},
		Message: "uses neither operation_ref nor idempotency_key: it cannot tell this operation from another",
	}}
}

// namesOperation reports whether a lookup depends on the operation. The kinds other than http carry both names with every
// request; what the far side does with them is its own business.
func namesOperation(v *VerifySpec) bool {
	h := v.Kind.HTTP
	if h == nil {
		return true
	}
	for _, name := range []string{"operation_ref", "idempotency_key"} {
		for _, text := range []string{h.URL, v.Committed, v.NotCommitted, v.Result} {
			if strings.Contains(text, name) {
				return true
			}
		}
	}
	return false
}
