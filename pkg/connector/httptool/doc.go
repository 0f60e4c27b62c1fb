// Package httptool calls tools over HTTP/1.1. One call is one request on the wire: nothing here sends it again, redirects of
// writes are not followed, and no error text of the far side leaves the package.
//
// What is sent. {name} in the URL is the percent-encoded arg (a string, number or boolean, not empty), {operation_ref} or
// {idempotency_key}. The other args go to the query for GET, HEAD and DELETE (sorted by name, arrays and objects as
// compact JSON, null left out; an arg with the name of a parameter that the URL itself has is refused), and else to a JSON
// body, or where the spec's Body or Form puts them. Header values may hold the same placeholders; what an arg puts there is
// visible ASCII. A lookup's GET sends nothing but what its URL names: an arg that became a filter could make a write look absent.
// Writes carry the idempotency key and Agentrun-Operation-Ref, lookups the latter; every request carries traceparent.
//
// When it leaves. The caller's last check (lease and deadline) is asked when the connection stands, TLS included, by the
// goroutine whose next statement is the one write of the request. What stays between the check and the far side is that
// write's way through this machine. A call whose write has moved no byte is not sent, whatever the reason; from the first
// byte on, with TLS of what is below it, it is sent. Only a connection that died idle, before it took a byte, is replaced within a call.
//
// What is read. Status, headers up to 64 KiB, and the body up to the limit of the call. A body is asked for as it is; one that
// comes compressed all the same is decoded, and the limit holds for it as it came and as it is. TLS files are read when the tool
// is made, and so anew at every reload of the config.
package httptool
