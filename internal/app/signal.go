package app

import (
	"os"
	"os/signal"
)

// OnSignal sends a message for each such signal that the process gets; one that comes while another waits is one with it.
func OnSignal(s os.Signal) <-chan struct{} {
	signals, out := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(signals, s)
	go func() {
		for range signals {
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out
}
