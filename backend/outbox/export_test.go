package outbox

import "context"

// ForgetLooks is how many looks see no new beat of a reader until it is forgotten.
const ForgetLooks = forgetLooks

// Beat is one beat and one look.
func (r *Reader) Beat(ctx context.Context) error { return r.beat(ctx) }
