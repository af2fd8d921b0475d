// Package planted plants bugs into the real code, one at a time, and shows that each is caught.
//
// A bug is a file NAME.bug: fields, an empty line, and one or more edits:
//
//	Bug:    what is wrong, in a sentence
//	Test:   the one test that must fail (TestName or TestName/subtest; the package first where several have a test of that name)
//	Says:   words that its output must hold, so that it fails for the right reason
//	Day:    rabbitmq, redis-stream or confirm: how a real system is set up that lives through a hard day (see day)
//	Finds:  words that the auditor must say of the books after that day
//	Alone:  why the test may not run beside others; only for those that make Redis forget its scripts
//
//	--- stood
//	lines of production code as they are; they stand in one place of the tree, whatever the file and the indentation
//	--- stands
//	the lines that replace them
//
// Day and Finds, and Alone, may be left out. The test makes the edits in a copy of the tree, builds, runs, and undoes them.
// Production code knows nothing of it. The tests with servers write build/planted.md.
package planted
