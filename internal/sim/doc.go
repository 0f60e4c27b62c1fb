// Package sim holds no code but tests: the real worker and reconciler run on in-memory seams inside a synctest bubble, where
// every seam call can crash its process, fail, land late or hang, and where a provider keeps a ledger that tells the truth.
//
//   - conform_test.go: the fakes and the real parts answer the same suites, so that the fakes do not lie;
//   - sweep_test.go: a crash at seam call k, for every k, then for pairs;
//   - world_test.go: seeded worlds of several executors and reconcilers (make sim SEED= N=);
//   - model_test.go: the protocol's model, explored state by state on the real core.
package sim
