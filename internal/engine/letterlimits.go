package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"

	"github.com/agentrun/executor/internal/strictjson"
	"github.com/agentrun/executor/pkg/budget"
	"github.com/agentrun/executor/pkg/deadletter"
	"github.com/agentrun/executor/pkg/envelope"
	"github.com/agentrun/executor/pkg/run"
)

// letterID is the id of the letter that an episode of a run ended with.
func letterID(id run.ID, episode int) string {
	return id.String() + "/" + strconv.Itoa(episode)
}

// InvalidRunID is the run_id of a job whose subject names no run: "invalid-" and the first 16 hex digits of the SHA-256
// of the bytes of the subject followed at once, with nothing between, by those of the payload.
func InvalidRunID(subject string, payload []byte) string {
	h := sha256.New()
	h.Write([]byte(subject))
	h.Write(payload)
	return "invalid-" + hex.EncodeToString(h.Sum(nil))[:16]
}

// budgetOf writes limits in the form of a job: every limit is named, the elapsed time in seconds.
func budgetOf(l budget.Limits) budget.Request {
	seconds := float64(l.MaxElapsedMillis) / 1000
	return budget.Request{
		MaxTurns: &l.MaxTurns, MaxToolCalls: &l.MaxToolCalls, MaxAttemptsPerStep: &l.MaxAttemptsPerStep,
		MaxElapsedSeconds: &seconds, MaxInputTokens: &l.MaxInputTokens, MaxOutputTokens: &l.MaxOutputTokens,
		MaxEstimatedCostMinorUnits: &l.MaxEstimatedCostMinorUnits,
	}
}

// trimLetter brings a letter to its limits: of the attempts the last MaxAttempts stay; the request and the args of the open
// steps are kept while they fit MaxArgsBytes together and the letter fits most bytes, at most MaxBytes (as strictjson.Marshal writes it), the
// request first, then in the order of Open; one that does not fit is replaced by its digest. Lists that are nil become
// empty. Open is copied before it is changed. Where most is so small that the attempts alone do not fit, older ones go too.
func trimLetter(l *deadletter.Letter, most int) {
	l.Attempts = l.Attempts[max(0, len(l.Attempts)-deadletter.MaxAttempts):]
	fillLists(l)
	l.Open = slices.Clone(l.Open)
	rest := sizeWithoutArgs(l)
	for ; rest > most && len(l.Attempts) > 1; rest = sizeWithoutArgs(l) {
		l.Attempts = l.Attempts[len(l.Attempts)/2:]
	}
	left := min(deadletter.MaxArgsBytes, most-rest)
	if len(l.Request) > left {
		l.ArgsDigest, l.ArgsOmitted, l.Request = strictjson.ArgsDigest(l.Tool, l.Request), true, nil
	}
	left -= len(l.Request)
	for i := range l.Open {
		o := &l.Open[i]
		if len(o.Args) > left {
			if o.ArgsDigest == "" {
				o.ArgsDigest = strictjson.ArgsDigest(o.Tool, o.Args)
			}
			o.Args, o.ArgsOmitted = nil, true
		}
		left -= len(o.Args)
	}
}

// fillLists makes lists of what readers expect as lists.
func fillLists(l *deadletter.Letter) {
	if l.Attempts == nil {
		l.Attempts = []deadletter.Attempt{}
	}
	if l.CompletedEffects == nil {
		l.CompletedEffects = []envelope.CompletedEffect{}
	}
	if l.RemainingSteps == nil {
		l.RemainingSteps = []string{}
	}
	if l.Open == nil {
		l.Open = []deadletter.Open{}
	}
	if l.AllowedActions == nil {
		l.AllowedActions = []deadletter.Action{}
	}
}

// sizeWithoutArgs is what the letter takes if all its args are replaced by digests.
func sizeWithoutArgs(l *deadletter.Letter) int {
	const digest = len(`"args_digest":"",`) + 2*sha256.Size + len(`"args_omitted":true,`)
	rest := *l
	rest.Request = nil
	rest.Open = slices.Clone(l.Open)
	size := digest
	for i := range rest.Open {
		rest.Open[i].Args = nil
		size += digest + len(`"args":,`)
	}
	data, err := strictjson.Marshal(&rest)
	if err != nil {
		panic("engine: a letter without args: " + err.Error()) // what is left holds no raw JSON and always encodes
	}
	return size + len(`"request":,`) + len(data)
}

// Summarize makes the letter's summary for a list. The args of open steps stay with the letter, like its request: a page of
// summaries has to fit one reply.
func Summarize(l *deadletter.Letter) deadletter.Summary {
	s := l.Summary
	s.Open = slices.Clone(l.Open)
	for i := range s.Open {
		if s.Open[i].Args != nil {
			s.Open[i].Args, s.Open[i].ArgsOmitted = nil, true
		}
	}
	return s
}
