//go:build !linux

package journal

// forgetMapped is of Linux: elsewhere the system decides when mapped pages go.
func (j *Journal) forgetMapped() error { return nil }
