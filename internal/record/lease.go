package record

import (
	"strconv"
	"strings"
	"time"

	"github.com/agentrun/executor/internal/engine"
)

// Lease is a lease as a record's header shows it.
type Lease struct {
	Holder, ID string
	Renewal    int
	Length     time.Duration
}

// LeaseHeader writes a lease as holder/id/renewal/milliseconds; "" for none.
func LeaseHeader(l *engine.Lease) string {
	if l == nil {
		return ""
	}
	return l.Holder + "/" + l.ID + "/" + strconv.Itoa(l.Renewal) + "/" + strconv.FormatInt(int64(l.Seconds*1000), 10)
}

// ParseLease reads a lease header; ok is false for none or for one that cannot be read.
func ParseLease(s string) (l Lease, ok bool) {
	part := strings.Split(s, "/")
	if len(part) != 4 {
		return Lease{}, false
	}
	renewal, err1 := strconv.Atoi(part[2])
	ms, err2 := strconv.ParseInt(part[3], 10, 64)
	if err1 != nil || err2 != nil || ms < 0 {
		return Lease{}, false
	}
	return Lease{Holder: part[0], ID: part[1], Renewal: renewal, Length: time.Duration(ms) * time.Millisecond}, true
}
