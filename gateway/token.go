package gateway

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/gateway/identity"
	"floodgate.internal/shared/cli"
)

type tokenCommand struct {
	Config string `required:"" placeholder:"FILE" help:"The configuration file."`
	UID    string `required:"" name:"uid" placeholder:"N|A-B" help:"The user, or a range of numbers: a token a line, in order."`
}

// maxTokens bounds a range of -uid.
const maxTokens = 10_000_000

func (c tokenCommand) run(stdout io.Writer) error {
	config, _, err := Load(c.Config)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	return mint(config, c.UID, time.Now(), stdout)
}

// uidRange reads "A-B" as numbers; anything else is one uid.
func uidRange(s string) (from, to uint64, ok bool) {
	a, b, ok := strings.Cut(s, "-")
	if !ok {
		return 0, 0, false
	}
	from, err1 := strconv.ParseUint(a, 10, 64)
	to, err2 := strconv.ParseUint(b, 10, 64)
	return from, to, err1 == nil && err2 == nil
}

// mint writes a test token for each uid of which.
func mint(c Config, which string, now time.Time, stdout io.Writer) error {
	signer, ok := identity.NewSigner(c.Identity.Keys, c.Identity.rules())
	if !ok {
		return cli.Usage("identity.keys: none has sign: true, so no token can be minted")
	}
	uids := []string{which}
	if from, to, ok := uidRange(which); ok {
		if to < from || to-from >= maxTokens {
			return cli.Usage("-uid %s: must be A-B with A at most B, and at most %d of them", which, maxTokens)
		}
		uids = uids[:0]
		for n := from; n <= to; n++ {
			uids = append(uids, strconv.FormatUint(n, 10))
		}
	}
	w := bufio.NewWriter(stdout)
	for _, uid := range uids {
		token, _, err := signer.Mint(uid, now, 24*time.Hour)
		if err != nil {
			return &cli.UsageError{Err: err}
		}
		fmt.Fprintln(w, token)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	return nil
}
