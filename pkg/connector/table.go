package connector

import "github.com/agentrun/executor/pkg/envelope"

// byDefault is the default table of contract §6, before the body is looked at: either a failure, or success as far as the
// transport tells. Kinds without a status answer the same questions: an error flag reads like a match of error_schema, an
// exit code that is not 0 like an answer that says only that something went wrong.
func (c *classifier) byDefault(resp *Response) (reply envelope.Reply, success bool) {
	switch c.kind {
	case KindHTTP:
		return c.byStatus(resp)
	case KindCommand:
		if resp.ExitCode != 0 {
			if c.effect == envelope.Write {
				return c.fail(envelope.CodeOutcomeUnknown), false
			}
			return c.fail(envelope.CodeUpstreamError), false
		}
	default:
		if resp.IsError {
			return c.failedOrUnknown(), false
		}
	}
	return envelope.Reply{}, true
}
