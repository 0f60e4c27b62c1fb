package mcptool

import "testing"

// What servers and gateways have been seen to say of a session that they do not know, and what is another matter.
func TestWordsOfALostSession(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"Bad Request: No valid session ID provided":                         true, // MCP's SDK for TypeScript, example servers
		"Bad Request: No valid session ID or not an initialize request":     true,
		"Bad Request: no valid session ID provided (send initialize first)": true,
		"Bad Request: Server not initialized":                               true, // its transport
		"Bad Request: Mcp-Session-Id header is required":                    true,
		"Session not found": true, // its transport, and Kotlin's
		"Session not found: 5eeee047-3200-47c4-aa9b-6dfba1c71a9b": true,
		"Session 5eeee047-3200-47c4-aa9b-6dfba1c71a9b not found":  true,
		"session not found":                        true, // Go's
		"Not Found: Unknown Mcp-Session-Id header": true,
		"Not Found: Invalid or expired session ID": true, // Python's
		"Unauthorized: Session not found":          true, // Rust's, before it was 404
		"Session has expired":                      true,
		"Session does not exist":                   true,
		"Session not found or expired":             true,
		"Server not initialized":                   true,
		"Invalid session ID":                       true,
		"Missing session ID":                       true,
		"SessionNotFound":                          true,
		"":                                         false,
		"ok":                                       false,
		"Session found":                            false,
		"Session terminated":                       false, // perhaps while it was at it
		"Connection closed":                        false,
		"Internal error":                           false,
		"no money":                                 false,
		"Checkout session not found":               false, // a tool's own
		"The customer's session expired":           false,
		"Credit given, but the session expired":    false,
		"Invalid sessions table":                   false,
		"No session fee was charged":               false,
		"No session found":                         true,
		"Sessions not found":                       false,
		"Server not initialized_yet":               false,
	} {
		if got := (&dispatch{words: text}).refusesSession(); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
