// Package fieldcases has no code of its own: its tests are faults that people met with systems of this kind, each rebuilt
// with real NATS servers, real journals and a provider that keeps its own ledger. docs/field-cases.md lists them.
//
// Sizes are scaled to a test's time; FIELDCASES_FULL=1 runs them as they were reported.
package fieldcases
