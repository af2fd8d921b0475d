package wire

// RevocationsPath is the list of revoked tokens on a backend's internal listener:
// GET /internal/v1/revocations?since=&wait_ms=. It answers at once when it has something newer than since, else when something
// changes or wait_ms (at most MaxWait) has passed. Without since it answers with the whole list.
const RevocationsPath = "/internal/v1/revocations"

// Bounds of the list of revoked tokens.
const (
	MaxJTI         = 256 // bytes
	MaxRevocations = 100_000
)

// Revocations is one answer of the list. Versions are MySQL's, so every backend counts the same.
type Revocations struct {
	Version int64 `json:"version"`
	// Full says that Entries is the whole list; else it is what has changed.
	Full bool `json:"full"`
	// KeepMS is for how many milliseconds a revocation is kept, where nothing else was asked for. A gateway that accepts tokens
	// that live longer would take them again.
	KeepMS  int64        `json:"keep_ms"`
	Now     Time         `json:"now"`
	Entries []Revocation `json:"entries"`
}

// Revocation ends the token with a jti, or the tokens of a uid that were issued (iat) before a time. One without iat was.
type Revocation struct {
	JTI    string `json:"jti,omitempty"`
	UID    string `json:"uid,omitempty"`
	Before Time   `json:"before,omitzero"` // of a uid
	Until  Time   `json:"until"`           // from then on it is needless
	Gone   bool   `json:"gone,omitempty"`  // it was taken back
}

// ValidJTI reports whether s is 1 to 256 visible ASCII characters.
func ValidJTI(s string) bool {
	if len(s) == 0 || len(s) > MaxJTI {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
