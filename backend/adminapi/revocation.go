package adminapi

import "floodgate.internal/backend/revocation"

// NewRevocation revokes the token with a jti, or a uid's tokens that were issued before a time (absent: now). It is answered with a
// revocation.Entry.
type NewRevocation struct {
	JTI    *string `json:"jti,omitzero"`
	UID    *string `json:"uid,omitzero"`
	Before *string `json:"before,omitzero"`
}

// OldRevocation takes a revocation back. It is answered with the revocation.Entry as it was.
type OldRevocation struct {
	JTI *string `json:"jti,omitzero"`
	UID *string `json:"uid,omitzero"`
}

// Revocations is a page of the revocations, newest first.
type Revocations struct {
	Revocations []revocation.Entry `json:"revocations"`
	Page
}
