package fair

import "slices"

// Queue holds what waits, in the order of its arrival within each tenant. Not safe for concurrent use.
type Queue[T comparable] struct {
	shares *Shares
	lanes  map[string][]T
	n      int
}

// NewQueue makes an empty queue whose turns are those of shares.
func NewQueue[T comparable](shares *Shares) *Queue[T] {
	return &Queue[T]{shares: shares, lanes: map[string][]T{}}
}

// Len is how many wait.
func (q *Queue[T]) Len() int { return q.n }

// Push puts v behind the tenant's others.
func (q *Queue[T]) Push(tenant string, v T) {
	q.lanes[tenant] = append(q.lanes[tenant], v)
	q.n++
}

// First is the tenant whose turn it is; ok is false if none waits whose cap is not reached.
func (q *Queue[T]) First() (tenant string, ok bool) {
	if q.n == 0 {
		return "", false
	}
	return q.shares.First(func(yield func(string) bool) {
		for tenant := range q.lanes {
			if !yield(tenant) {
				return
			}
		}
	})
}

// Pop removes the tenant's oldest; it must have one.
func (q *Queue[T]) Pop(tenant string) T {
	lane := q.lanes[tenant]
	v := lane[0]
	q.put(tenant, lane[1:])
	return v
}

// Remove takes v out again; false if it does not wait.
func (q *Queue[T]) Remove(tenant string, v T) bool {
	lane := q.lanes[tenant]
	i := slices.Index(lane, v)
	if i < 0 {
		return false
	}
	q.put(tenant, slices.Delete(lane, i, i+1))
	return true
}

func (q *Queue[T]) put(tenant string, lane []T) {
	q.n--
	if len(lane) == 0 {
		delete(q.lanes, tenant)
		return
	}
	q.lanes[tenant] = lane
}
