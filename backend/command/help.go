package command

import (
	_ "embed"
	"strings"
)

//go:embed help.txt
var helpTexts string

// help is a command's section of help.txt. kong asks each command for it by its Help method.
func help(command string) string {
	_, text, ok := strings.Cut(helpTexts, "\n# "+command+"\n")
	if !ok {
		panic("BUG: help.txt says nothing of " + command)
	}
	text, _, _ = strings.Cut(text, "\n# ")
	return strings.TrimSpace(text)
}

func (saleCreate) Help() string        { return help("sale create") }
func (saleArchive) Help() string       { return help("sale archive") }
func (saleRestock) Help() string       { return help("sale restock") }
func (saleConcentration) Help() string { return help("sale concentration") }
func (couponCreate) Help() string      { return help("coupon create") }
func (Queue) Help() string             { return help("queue") }
func (Timeline) Help() string          { return help("timeline") }
func (AuditLog) Help() string          { return help("audit-log") }
func (ordersSearch) Help() string      { return help("orders search") }
func (ordersCancel) Help() string      { return help("orders cancel") }
func (ordersExport) Help() string      { return help("orders export") }
func (bansAdd) Help() string           { return help("bans add") }
func (revocationAdd) Help() string     { return help("revocation add") }
func (eligibleSet) Help() string       { return help("eligible set") }
func (listLetters) Help() string       { return help("dead-letters list") }
func (replayLetters) Help() string     { return help("dead-letters replay") }
func (Audit) Help() string             { return help("audit") }
func (Rebuild) Help() string           { return help("rebuild") }
func (Migrate) Help() string           { return help("migrate") }
func (Preflight) Help() string         { return help("preflight") }
func (Doctor) Help() string            { return help("doctor") }
func (Plan) Help() string              { return help("plan") }
