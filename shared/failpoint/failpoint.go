// Package failpoint marks the places at which a test may kill the process. In a binary that is built without the tag
// failpoint every mark is an empty function that the compiler inlines away: neither code nor a name is left of it.
//
// With the tag, FLOODGATE_FAILPOINT names the point at which the process sends itself SIGKILL: "relay.before-confirm", or
// "relay.before-confirm#3" for the third time that it comes there.
package failpoint
