package operator

import (
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/run"
)

// What the replies look like to those who call, for the schemas: the code builds these members from bytes it has already.

// LettersShape is LetterPage with its summaries.
type LettersShape struct {
	OK          bool                 `json:"ok"`
	DeadLetters []deadletter.Summary `json:"deadletters"`
	Total       int                  `json:"total"`
	After       string               `json:"after,omitempty"`
}

// LetterShape is LetterReply with its letter.
type LetterShape struct {
	OK         bool               `json:"ok"`
	DeadLetter *deadletter.Letter `json:"deadletter"`
}

// RunsShape is RunPage with its runs; their history is left out.
type RunsShape struct {
	OK    bool       `json:"ok"`
	Runs  []run.View `json:"runs"`
	After string     `json:"after,omitempty"`
}

// RefusalShape is the reply to a call that was refused.
type RefusalShape struct {
	OK      bool   `json:"ok"` // false
	Code    string `json:"code"`
	Message string `json:"message"`
}
