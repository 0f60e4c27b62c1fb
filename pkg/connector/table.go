package connector

import "github.com/agentrun/executor/pkg/envelope"

// byDefault is the default table of contract §6, before the body is looked at: either a failure, or success as far as the
// transport tells. Kinds without a status answer the same questions: an error flag reads like a match of error_schema, an
// exit code that is not 0 like an answer that says only that something went wrong.
func (c *classifier) byDefault(resp *Response) (reply envelope.Reply, success bool) {
	switch c.kind {
	case KindHTTP:
		return c.byStatus(resp.Status)
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

func (c *classifier) byStatus(status int) (reply envelope.Reply, success bool) {
	write := c.effect == envelope.Write
	switch {
	case status == 200 || status == 201 || status == 204:
		return envelope.Reply{}, true
	case status >= 200 && status < 300:
		// 202 says that nothing is done yet; of the others (partial, multi-status) nobody can tell what was done.
		if write {
			return c.fail(envelope.CodeOutcomeUnknown), false
		}
		return c.fail(envelope.CodeResultInvalid), false
	case status >= 300 && status < 400:
		if status == 307 || status == 308 {
			return neverRetried(), false // the far side asks for the whole request again, so it has done nothing
		}
		return c.failedOrUnknown(), false
	}
	switch status {
	case 400, 422:
		return c.fail(envelope.CodeUpstreamRejectedInput), false
	case 401, 403:
		return c.fail(envelope.CodeUpstreamDenied), false
	case 404, 410:
		return c.fail(envelope.CodeResourceNotFound), false
	case 409:
		return c.fail(envelope.CodeStateConflict), false
	case 412, 428:
		// RFC 9110 15.5.13: the version that was named is not the present one; RFC 6585 3: none was named. In both cases
		// nothing was done, and what helps is the present version.
		return c.fail(envelope.CodeVersionConflict), false
	case 429:
		return c.fail(envelope.CodeUpstreamRateLimited), false
	}
	switch {
	case status == 408 || status == 425 || (status >= 500 && status < 600):
		if write {
			return c.fail(envelope.CodeOutcomeUnknown), false
		}
		return c.fail(envelope.CodeUpstreamUnavailable), false
	case status >= 400 && status < 500:
		reply = c.fail(envelope.CodeUpstreamRejectedInput)
		reply.Row.Directive = envelope.Never
		return reply, false
	}
	return c.noReply(), false // no status of HTTP: a response that cannot be read
}
