package connector

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/agentrun/executor/pkg/envelope"
)

// statusRow is one line of the default table of HTTP statuses, with the source of what it says. Codes is empty for the
// rest of a class: what no other line names. A row without a code is success.
type statusRow struct {
	codes       []int
	class       int // the first digit of a rest
	read, write envelope.Row
	source      string
}

// statuses is the one table of HTTP statuses: http tools, MCP servers over HTTP and docs/tools.md have theirs from it. What
// it says of a write is what the RFC lets one be sure of: a status that is about the request alone proves that nothing was
// done; one that may come after half of the work proves nothing.
var statuses = func() []statusRow {
	is := func(c envelope.Code) envelope.Row { return envelope.RowFor(c, envelope.Read) }
	unknown := envelope.RowFor(envelope.CodeOutcomeUnknown, envelope.Write)
	never := neverRetried().Row
	never4xx := is(envelope.CodeUpstreamRejectedInput)
	never4xx.Directive = envelope.Never
	same := func(c envelope.Code, source string, codes ...int) statusRow {
		return statusRow{codes: codes, read: is(c), write: is(c), source: source}
	}
	return []statusRow{
		{codes: []int{200, 201, 204}, source: "RFC 9110 §15.3: done"},
		{class: 2, read: is(envelope.CodeResultInvalid), write: unknown, source: "RFC 9110 §15.3: 202 is accepted and not yet done; of the others nobody can tell what was"},
		{codes: []int{307, 308}, read: never, write: never, source: "RFC 9110 §15.4.8, §15.4.9: the whole request is wanted elsewhere, so it was not processed"},
		{class: 3, read: never, write: unknown, source: "RFC 9110 §15.4"},
		same(envelope.CodeUpstreamRejectedInput, "RFC 9110 §15.5.1, §15.5.21", 400, 422),
		same(envelope.CodeUpstreamDenied, "RFC 9110 §15.5.2, §15.5.4; a 403 that says when to come again is a rate limit; a 401 to credentials that can be [renewed](#a-401) is `CREDENTIALS_EXPIRED`, tried again", 401, 403),
		same(envelope.CodeResourceNotFound, "RFC 9110 §15.5.5, §15.5.11", 404, 410),
		same(envelope.CodeStateConflict, "RFC 9110 §15.5.10", 409),
		same(envelope.CodeVersionConflict, "RFC 9110 §15.5.13: the version that was named is not the present one; RFC 6585 §3: none was named", 412, 428),
		same(envelope.CodeResourceLocked, "RFC 4918 §11.3: somebody has it locked; later again", 423),
		same(envelope.CodeUpstreamUnavailable, "RFC 8470 §5.2: refused before it was processed; later again", 425),
		same(envelope.CodeUpstreamRateLimited, "RFC 6585 §4", 429),
		{
			codes: []int{408}, read: is(envelope.CodeUpstreamUnavailable), write: unknown,
			source: "RFC 9110 §15.5.9; servers and proxies also send it when what stands behind them is slow",
		},
		{class: 4, read: never4xx, write: never4xx, source: "RFC 9110 §15.5: the request itself is at fault"},
		{class: 5, read: is(envelope.CodeUpstreamUnavailable), write: unknown, source: "RFC 9110 §15.6: the server failed, and does not say how far it came"},
	}
}()

// statusOf finds a status's line; nil for what is no final status of HTTP.
func statusOf(status int) *statusRow {
	var rest *statusRow
	for i := range statuses {
		row := &statuses[i]
		for _, c := range row.codes {
			if c == status {
				return row
			}
		}
		if row.class != 0 && status/100 == row.class {
			rest = row
		}
	}
	return rest
}

// byStatus is the default table's word on an HTTP response: a failure, or success as far as the status tells.
func (c *classifier) byStatus(resp *Response) (reply envelope.Reply, success bool) {
	row := statusOf(resp.Status)
	if row == nil {
		return c.noReply(), false // a response that cannot be read
	}
	reply.Row = row.read
	if c.effect == envelope.Write {
		reply.Row = row.write
	}
	if resp.Status == 403 && c.limited(resp.Header) {
		reply.Row = envelope.RowFor(envelope.CodeUpstreamRateLimited, envelope.Read)
	}
	if resp.Status == 401 && resp.Renewal != nil {
		reply.Row = envelope.RowFor(envelope.CodeCredentialsExpired, envelope.Read)
	}
	return reply, reply.Row.Code == ""
}

// StatusTable prints the table as Markdown, as docs/tools.md has it.
func StatusTable() string {
	var b strings.Builder
	b.WriteString("| status | read | write | source |\n| --- | --- | --- | --- |\n")
	for i := range statuses {
		row := &statuses[i]
		write := statusWord(row.write)
		if row.write == row.read && row.read.Code != "" {
			write = "the same"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.name(), statusWord(row.read), write, row.source)
	}
	return b.String()
}

func (r *statusRow) name() string {
	if r.class != 0 {
		for i := range statuses {
			if len(statuses[i].codes) > 0 && statuses[i].codes[0]/100 == r.class {
				return fmt.Sprintf("other %dxx", r.class)
			}
		}
		return fmt.Sprintf("%dxx", r.class)
	}
	names := make([]string, len(r.codes))
	for i, c := range r.codes {
		names[i] = strconv.Itoa(c)
	}
	return strings.Join(names, ", ")
}

func statusWord(r envelope.Row) string {
	switch {
	case r.Code == "":
		return "ok"
	case r.Directive == envelope.AfterDelay:
		return "`" + string(r.Code) + "`, tried again"
	}
	return "`" + string(r.Code) + "`"
}
