// Package mcptool calls tools of MCP servers, over stdio and over streamable HTTP, with the official SDK.
//
// The SDK is built for agents in conversation. For calls that must not happen twice it is held on a short leash: its
// transports are wrapped (wire.go, http.go), so that it is known of each tools/call whether a byte of it left, so that
// the result is taken as the bytes that arrived, with every digit, and so that nothing is sent again: no redirect, no
// request without a reply, no second round for a server that asks for more input. Resuming an event stream asks for the
// rest of an answer; it never repeats the request.
//
// A session is made for the first call and kept. When it is lost (the server ended, crashed, or no longer knows it) the
// next call makes a new one; before that nothing of the call has left. The operation and the key travel in _meta as
// agentrun/operation_ref and agentrun/idempotency_key, the trace context as traceparent.
package mcptool
