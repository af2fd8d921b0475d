// Package planted plants bugs into the real code, one at a time, and shows that each is caught.
//
// A bug is a patch file with a head:
//
//	Bug:    what is wrong, in a sentence
//	Test:   the package and the one test that must fail (TestName or TestName/subtest)
//	Says:   words that its output must hold, so that it fails for the right reason
//	Day:    rabbitmq, redis-stream or confirm: how a real system is set up that lives through a hard day (see day)
//	Finds:  words that the auditor must say of the books after that day
//	Alone:  why the test may not run beside others; only for those that make Redis forget its scripts
//
// Day and Finds, and Alone, may be left out. The test applies each patch to a copy of the tree, builds, runs, and takes the
// patch out again. Production code knows nothing of it. The tests with servers write build/planted.md.
package planted
