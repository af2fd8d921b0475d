package backend

import (
	"testing"

	"github.com/alecthomas/kong"

	"floodgate.internal/shared/cli/clitest"
	"floodgate.internal/shared/version"
)

func TestEveryCommandIsCompletedAndDescribed(t *testing.T) {
	k, err := kong.New(new(grammar), kong.Vars{"version": version.This().Line("backend")})
	if err != nil {
		t.Fatal(err)
	}
	clitest.Described(t, k.Model, Run)
}
