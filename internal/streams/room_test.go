package streams

import "testing"

func TestLimitsOfReplicatedStreams(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{1, 2, 9, 10, 11, 19, 20, 21, 1000, 4_000_000} {
		for _, replicas := range []int{1, 3} {
			if got := ourLimit(serverLimit(n, replicas), replicas); got != n {
				t.Errorf("%d with %d replicas comes back as %d", n, replicas, got)
			}
		}
	}
}
