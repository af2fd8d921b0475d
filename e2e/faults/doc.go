// Package faults kills the real system in every place and shows from outside that no promise is broken: at each
// failpoint once (see shared/failpoint), and at random under load. And it makes everything else go wrong for a while: the
// stores, the broker, the ways between them (see shared/netfault), clocks, clients. The tests with servers write
// build/faults.md, those of a soak build/soak.md.
package faults
