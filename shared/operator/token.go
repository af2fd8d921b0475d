package operator

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"

	"floodgate.internal/shared/cli"
	"floodgate.internal/shared/conf"
)

// prefix begins every token of Mint, so that tools which search texts for secrets know one.
const prefix = "fgop_"

var mintedForm = regexp.MustCompile(`^` + prefix + `[A-Za-z0-9_-]{43}$`)

// minted reports whether a token has the form of those of Mint: 256 bits, which nobody guesses.
func minted(token string) bool { return mintedForm.MatchString(token) }

// Mint makes a token of 256 random bits, and its SHA-256 in hex.
func Mint() (token, hash string) {
	var b [32]byte
	rand.Read(b[:]) // it never fails
	token = prefix + base64.RawURLEncoding.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}

// TokenCommand is the command "operator-token" of both binaries.
type TokenCommand struct {
	Name string `required:"" placeholder:"NAME" help:"Whose token it will be, as the audit log will say."`
	Role string `required:"" placeholder:"ROLE" help:"viewer, operator or admin."`
}

// Write mints a token and writes it with its line for the configuration. Neither is kept anywhere.
func (c TokenCommand) Write(w io.Writer) error {
	token, hash := Mint()
	e := Entry{Name: c.Name, Role: Role(c.Role), TokenSHA256: conf.Secret(hash)}
	if errs := Check([]Entry{e}, "", ""); len(errs) > 0 {
		return cli.Usage("--name %q --role %q: a name is 1 to 64 of [A-Za-z0-9._-], and not admin, ops or timer; a role is viewer, operator or admin", c.Name, c.Role)
	}
	_, err := fmt.Fprintf(w, `The token, for %s alone. It is shown this once:
%s

The line for operators: in the configuration:
  - {name: %s, role: %s, token_sha256: "%s"}
`, c.Name, token, c.Name, c.Role, hash)
	return err
}
