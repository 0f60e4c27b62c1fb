package connector

// Listing is what a tool looks like to those who choose among tools: nothing in it decides anything. A gateway shows it.
type Listing struct {
	Title       string
	Description string
	// What is said of the tool beside its effect; nil where nothing is. They can make a tool look stricter than its effect
	// does, never looser.
	Destructive, Idempotent, OpenWorld *bool
	// Alone: a call without a key never joins one that is in flight.
	Alone bool

	InputSchema, OutputSchema any // as the spec has them; nil if there is none
}
