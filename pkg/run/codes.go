package run

// Codes with which an operator's call is refused (contract §9).
const (
	BadRequest = "BAD_REQUEST"
	NotAllowed = "NOT_ALLOWED"
	NotFound   = "NOT_FOUND"
	Conflict   = "CONFLICT"
	Claimed    = "CLAIMED"
)
