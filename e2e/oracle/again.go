package oracle

import "net/http"

// AskAgain reports whether a shopper who got this status is to ask again: 0 for no answer, 408 where the request came in too slowly
// (a client that gets no processor), 429 and 503.
func AskAgain(status int) bool {
	return status == 0 || status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}
