// Package httptool calls tools over HTTP/1.1. One call is one request on the wire: nothing here or in net/http below sends
// it again, redirects of writes are not followed, and no error text of the far side leaves the package.
//
// What is sent. {name} in the URL is the percent-encoded arg (a string, number or boolean, not empty), {operation_ref} or
// {idempotency_key}. The other args go to the query for GET, HEAD and DELETE (sorted by name, arrays and objects as
// compact JSON, null left out; an arg with the name of a parameter that the URL itself has is refused), and else to a JSON
// body. A lookup's GET sends nothing but what its URL names: an arg that became a filter could make a write look absent.
// Writes carry the idempotency key and Agentrun-Operation-Ref, lookups the latter; every request carries traceparent.
package httptool
