package client

// InFlight is how many messages wait for Next at most.
const InFlight = inFlight

// Waiting is how many messages wait for Next.
func (w *Watch) Waiting() int { return len(w.messages) }
