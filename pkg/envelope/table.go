package envelope

// Code names what a call came to. A tool's config may add codes of its own.
type Code string

// The codes of contract §6.
const (
	CodeJobInvalid              Code = "JOB_INVALID"
	CodeUnknownTool             Code = "UNKNOWN_TOOL"
	CodeInvalidArgument         Code = "INVALID_ARGUMENT"
	CodeReferenceUnresolved     Code = "REFERENCE_UNRESOLVED"
	CodeUpstreamRejectedInput   Code = "UPSTREAM_REJECTED_INPUT"
	CodeResourceNotFound        Code = "RESOURCE_NOT_FOUND"
	CodeIdenticalRetry          Code = "IDENTICAL_RETRY"
	CodeNotAuthorized           Code = "NOT_AUTHORIZED"
	CodeUpstreamDenied          Code = "UPSTREAM_DENIED"
	CodeMissingApproval         Code = "MISSING_APPROVAL"
	CodeStepConflict            Code = "STEP_CONFLICT"
	CodeRunClosed               Code = "RUN_CLOSED"
	CodeStateConflict           Code = "STATE_CONFLICT"
	CodeVersionConflict         Code = "VERSION_CONFLICT"
	CodeResourceLocked          Code = "RESOURCE_LOCKED"
	CodeUpstreamRateLimited     Code = "UPSTREAM_RATE_LIMITED"
	CodeCredentialsExpired      Code = "CREDENTIALS_EXPIRED"
	CodeUpstreamUnavailable     Code = "UPSTREAM_UNAVAILABLE"
	CodeUpstreamTimeout         Code = "UPSTREAM_TIMEOUT"
	CodeUpstreamError           Code = "UPSTREAM_ERROR"
	CodeOutcomeUnknown          Code = "OUTCOME_UNKNOWN"
	CodeOperationPending        Code = "OPERATION_PENDING"
	CodeVerifiedAbsent          Code = "VERIFIED_ABSENT"
	CodeOutcomeDisputed         Code = "OUTCOME_DISPUTED"
	CodeVerificationUnavailable Code = "VERIFICATION_UNAVAILABLE"
	CodeResultInvalid           Code = "RESULT_INVALID"
	CodeResultTooLarge          Code = "RESULT_TOO_LARGE"
	CodeWorkerLost              Code = "WORKER_LOST"
	CodePoisonJob               Code = "POISON_JOB"
	CodeInternalError           Code = "INTERNAL_ERROR"
	CodeAttemptsExhausted       Code = "ATTEMPTS_EXHAUSTED"
	CodeTurnsExhausted          Code = "TURNS_EXHAUSTED"
	CodeToolCallsExhausted      Code = "TOOL_CALLS_EXHAUSTED"
	CodeTimeExhausted           Code = "TIME_EXHAUSTED"
	CodeInputTokensExhausted    Code = "INPUT_TOKENS_EXHAUSTED"
	CodeOutputTokensExhausted   Code = "OUTPUT_TOKENS_EXHAUSTED"
	CodeCostExhausted           Code = "COST_EXHAUSTED"
	CodeCancelled               Code = "CANCELLED"
)

type entry struct {
	Row
	agent, user, operator string
}

// table is the one table of codes: every document and schema about codes is printed from it. A row is a read's; what
// differs for a write once it was dispatched is in RowFor.
var table = []entry{
	{
		Row{CodeJobInvalid, Validation, "invalid_job", NotCommitted, Never, CorrectInput, Fatal},
		"The job could not be accepted. Correct it and publish it again.", "The request could not be read.", "The job was refused before anything was done.",
	},
	{
		Row{CodeUnknownTool, Validation, "unknown_tool", NotCommitted, Never, CorrectInput, Fatal},
		"There is no tool of this name. Choose a tool that is configured.", "This request needs something that is not available.", "The config has no tool of this name.",
	},
	{
		Row{CodeInvalidArgument, Validation, "invalid_input", NotCommitted, AfterInputFix, CorrectInput, Fatal},
		"The arguments do not fit the tool. Correct them and propose the step again.", "Some details of the request need to be corrected.", "The arguments failed the input schema; nothing was sent.",
	},
	{
		Row{CodeReferenceUnresolved, Validation, "unresolved_reference", NotCommitted, AfterInputFix, CorrectInput, Fatal},
		"A reference to an earlier result leads nowhere. Correct it and propose the step again.", "Some details of the request need to be corrected.", "A $from reference had no value when the turn of the step came; nothing was sent.",
	},
	{
		Row{CodeUpstreamRejectedInput, Validation, "provider_rejected_input", NotCommitted, AfterInputFix, CorrectInput, Fatal},
		"The provider refused the arguments. Correct them and propose the step again.", "Some details of the request need to be corrected.", "The provider rejected the input; nothing was done.",
	},
	{
		Row{CodeResourceNotFound, Validation, "resource_not_found", NotCommitted, AfterInputFix, CorrectInput, Fatal},
		"What the arguments name does not exist. Correct them and propose the step again.", "What was asked for could not be found.", "The provider does not know the resource; nothing was done.",
	},
	{
		Row{CodeIdenticalRetry, Validation, "identical_retry", NotCommitted, Never, CorrectInput, Fatal},
		"The same arguments were refused before. Change them before trying again.", "The request was already answered.", "An unchanged proposal after a refusal; nothing was sent.",
	},
	{
		Row{CodeNotAuthorized, Authorization, "not_authorized", NotCommitted, Never, Escalate, Fatal},
		"This tenant or actor may not use this tool. Do not try again.", "This request is not permitted.", "The tool's allow list does not have this tenant and actor.",
	},
	{
		Row{CodeUpstreamDenied, Authorization, "provider_denied", NotCommitted, Never, Escalate, Fatal},
		"The provider denied access. Do not try again.", "This request is not permitted at the moment.", "The provider denied access with the configured credentials.",
	},
	{
		Row{CodeMissingApproval, Authorization, "approval_required", NotCommitted, Never, RequestApproval, NeedsHuman},
		"A person must approve this step before it is done.", "This request waits for an approval.", "The step needs an approval of exactly these arguments.",
	},
	{
		Row{CodeStepConflict, Conflict, "step_conflict", NotCommitted, Never, Escalate, Fatal},
		"A step of this name exists with other arguments. Use another step name.", "The request conflicts with an earlier one.", "A known step was proposed with other arguments in a state that allows none.",
	},
	{
		Row{CodeRunClosed, Conflict, "run_closed", NotCommitted, Never, Escalate, Fatal},
		"The run has ended. Start a new one or ask an operator for a replay.", "This request was already closed.", "A job came for a run that has ended.",
	},
	{
		Row{CodeStateConflict, Conflict, "state_conflict", NotCommitted, Never, Escalate, Fatal},
		"The state of the resource does not allow this. Read it again before deciding.", "The request conflicts with the current state.", "The provider reports a conflict; nothing was done.",
	},
	{
		Row{CodeVersionConflict, Conflict, "version_conflict", NotCommitted, Never, Escalate, Fatal},
		"The resource has changed in the meantime. Read it again before deciding.", "The request conflicts with a newer version.", "The provider reports a version conflict; nothing was done.",
	},
	{
		Row{CodeResourceLocked, Dependency, "resource_locked", NotCommitted, AfterDelay, WaitAndRetry, Retryable},
		"Somebody else has the resource locked. The runtime tries again by itself.", "This takes a little longer than usual.", "The provider has the resource locked for somebody else; nothing was done.",
	},
	{
		Row{CodeUpstreamRateLimited, Dependency, "provider_rate_limited", NotCommitted, AfterDelay, WaitAndRetry, Retryable},
		"The provider limits the rate. The runtime tries again by itself.", "This takes a little longer than usual.", "The provider limits the rate; nothing was done.",
	},
	{
		Row{CodeCredentialsExpired, Dependency, "credentials_expired", NotCommitted, AfterDelay, WaitAndRetry, Retryable},
		"The credentials for the provider have expired. The runtime renews them and tries again by itself.", "This takes a little longer than usual.", "The provider refused the credentials, which are renewed; nothing was done.",
	},
	{
		Row{CodeUpstreamUnavailable, Dependency, "provider_unavailable", NotCommitted, AfterDelay, WaitAndRetry, Retryable},
		"The provider is not available. The runtime tries again by itself.", "This takes a little longer than usual.", "The provider was not available; nothing was done.",
	},
	{
		Row{CodeUpstreamTimeout, Dependency, "provider_timeout", NotCommitted, AfterDelay, WaitAndRetry, Retryable},
		"The provider did not answer in time. The runtime tries again by itself.", "This takes a little longer than usual.", "The provider did not answer a read in time.",
	},
	{
		Row{CodeUpstreamError, Dependency, "provider_error", NotCommitted, AfterDelay, WaitAndRetry, Retryable},
		"The provider answered with an error.", "The request could not be completed at the moment.", "The provider answered with an error; nothing was done.",
	},
	{
		Row{CodeOutcomeUnknown, Dependency, "external_outcome_unknown", Unknown, Never, VerifyOperation, UnknownNow},
		"The write may have completed. Verify operation_ref before any new write.", "The request is being checked before anything is sent again.", "A write may have happened; it is looked up before anything is sent again.",
	},
	{
		Row{CodeOperationPending, Dependency, "operation_pending", Unknown, Never, VerifyOperation, UnknownNow},
		"The provider has accepted the write and is not through with it. Verify operation_ref before any new write.", "The request is being worked on.", "The lookup found the operation under way; it is looked up again.",
	},
	{
		Row{CodeVerifiedAbsent, Dependency, "verified_absent", NotCommitted, AfterDelay, WaitAndRetry, Retryable},
		"The lookup proved that nothing was done. The runtime tries again by itself.", "This takes a little longer than usual.", "The lookup proved the write absent; the next attempt is due.",
	},
	{
		Row{CodeOutcomeDisputed, Dependency, "external_outcome_disputed", Unknown, Never, Escalate, NeedsHuman},
		"What is known about this write contradicts itself. Do not repeat it.", "The request is being checked by a person.", "Evidence about this write contradicts itself; a person must establish what happened.",
	},
	{
		Row{CodeVerificationUnavailable, Dependency, "external_outcome_unknown", Unknown, Never, Escalate, NeedsHuman},
		"The write may have completed and could not be verified. Do not repeat it.", "The request is being checked by a person.", "The write may have happened and no lookup could establish it; a person must.",
	},
	{
		Row{CodeResultInvalid, Dependency, "invalid_result", NotCommitted, Never, Escalate, Fatal},
		"The provider's result does not fit its schema.", "The request could not be completed as expected.", "The result failed the output schema.",
	},
	{
		Row{CodeResultTooLarge, Dependency, "result_too_large", NotCommitted, Never, Escalate, Fatal},
		"The provider's result is too large.", "The request could not be completed as expected.", "The result is larger than the tool allows.",
	},
	{
		Row{CodeWorkerLost, Internal, "worker_lost", NotCommitted, AfterDelay, WaitAndRetry, Retryable},
		"The worker was lost during the call. The runtime goes on by itself.", "This takes a little longer than usual.", "The lease ended without a result.",
	},
	{
		Row{CodePoisonJob, Internal, "poison_job", NotCommitted, Never, Escalate, NeedsHuman},
		"This step lost its worker again and again. A person must look at it.", "The request is being looked at by a person.", "Every worker that took this step was lost.",
	},
	{
		Row{CodeInternalError, Internal, "internal_error", NotCommitted, Never, Escalate, NeedsHuman},
		"The runtime failed. A person must look at it.", "Something went wrong on our side.", "An internal error; see the logs of the worker.",
	},
	{
		Row{CodeAttemptsExhausted, Dependency, "attempt_budget_exhausted", NotCommitted, Never, Escalate, NeedsHuman},
		"Every attempt failed. A person must look at it.", "The request could not be completed and is being looked at.", "The attempts are used up; last_code has the last failure.",
	},
	{
		Row{CodeTurnsExhausted, Authorization, "turn_budget_exhausted", NotCommitted, Never, Escalate, NeedsHuman},
		"The run has used up its turns.", "The request could not be completed within its limits.", "The turn budget ended the run.",
	},
	{
		Row{CodeToolCallsExhausted, Authorization, "tool_call_budget_exhausted", NotCommitted, Never, Escalate, NeedsHuman},
		"The run has used up its tool calls.", "The request could not be completed within its limits.", "The tool call budget ended the run.",
	},
	{
		Row{CodeTimeExhausted, Authorization, "elapsed_budget_exhausted", NotCommitted, Never, Escalate, NeedsHuman},
		"The run has used up its time.", "The request could not be completed in time.", "The deadline or the elapsed time budget ended the run.",
	},
	{
		Row{CodeInputTokensExhausted, Authorization, "input_token_budget_exhausted", NotCommitted, Never, Escalate, NeedsHuman},
		"The run has used up its input tokens.", "The request could not be completed within its limits.", "The input token budget ended the run.",
	},
	{
		Row{CodeOutputTokensExhausted, Authorization, "output_token_budget_exhausted", NotCommitted, Never, Escalate, NeedsHuman},
		"The run has used up its output tokens.", "The request could not be completed within its limits.", "The output token budget ended the run.",
	},
	{
		Row{CodeCostExhausted, Authorization, "cost_budget_exhausted", NotCommitted, Never, Escalate, NeedsHuman},
		"The run has used up its cost budget.", "The request could not be completed within its limits.", "The cost budget ended the run.",
	},
	{
		Row{CodeCancelled, Conflict, "cancelled", NotCommitted, Never, Escalate, Cancelled},
		"The run was cancelled. Nothing more is done.", "The request was cancelled.", "The run was cancelled on request.",
	},
}
