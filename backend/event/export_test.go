package event

import "time"

// What tests of this package's neighbours may turn.
const (
	AtOnce = atOnce
	Lease  = lease
)

// Pauses are those between tries.
var Pauses = pauses

// Poll makes a Sender look for what is due this often.
func (s *Sender) Poll(every time.Duration) *Sender {
	s.poll = every
	return s
}
