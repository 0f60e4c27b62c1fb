package operator

import (
	"context"

	"github.com/agentrun/executor/internal/port"
)

// Feed is a watch whose reports of records and letters go to the index too, so that each stream is watched once. A watch
// that begins reports all from the first.
func (x *Index) Feed(w port.Watch) port.Watch { return fed{w, x} }

type fed struct {
	port.Watch
	index *Index
}

func (f fed) WatchRuns(ctx context.Context, fn func(port.Change)) error {
	f.index.Run(port.Change{Report: port.Reset})
	return f.Watch.WatchRuns(ctx, func(c port.Change) {
		f.index.Run(c)
		fn(c)
	})
}

func (f fed) WatchLetters(ctx context.Context, fn func(port.Letter)) error {
	f.index.Letter(port.Letter{Report: port.Reset})
	return f.Watch.WatchLetters(ctx, func(l port.Letter) {
		f.index.Letter(l)
		fn(l)
	})
}
