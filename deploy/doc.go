// Package deploy holds the files that deploy Floodgate, and the tests that hold them. It is a module of its own, outside the workspace:
// nothing else is to be built with Kubernetes' types.
package deploy
