// Package operator knows the people and programs that may use the operators' listeners of both binaries: their names, their roles
// and the hashes of their tokens, as the configuration lists them.
//
// A token is kept as its plain SHA-256. A slow password hash is for secrets that people choose. A token of Mint has 256 random bits,
// and nobody finds those from the hash.
package operator

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/wire"
)

// Role is what an operator may do. Each role may do what the one before it may.
type Role string

// The roles.
const (
	Anybody  Role = "" // of a route that takes no token
	Viewer   Role = "viewer"
	Operates Role = "operator"
	Admin    Role = "admin"
)

// Roles are those that an operator can have, the least first.
var Roles = []Role{Viewer, Operates, Admin}

// Covers reports whether the role may do what needs another. Who has no role may do what Anybody may.
func (r Role) Covers(need Role) bool {
	return need == Anybody || slices.Contains(Roles, need) && slices.Index(Roles, r) >= slices.Index(Roles, need)
}

// Entry is an operator in a configuration file.
type Entry struct {
	Name        string      `yaml:"name"`
	Role        Role        `yaml:"role" enum:"viewer,operator,admin"`
	TokenSHA256 conf.Secret `yaml:"token_sha256"`
}

// MaxEntries bounds the operators of a file.
const MaxEntries = 256

// reserved are names that stand in the audit log for somebody else: the operators of admin_token and ops_token, and the timer.
var reserved = []string{"admin", "ops", "timer"}

// Check returns what is wrong with the operators of a file; each error is one of conf.Wrong. token is the value of tokenField.
func Check(entries []Entry, tokenField string, token conf.Secret) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, conf.Wrong(format, args...)) }
	if n := len(entries); n > MaxEntries {
		wrong("operators: %d of them, there must be at most %d", n, MaxEntries)
		return errs
	}
	names, hashes := map[string]bool{}, map[[sha256.Size]byte]string{sha256.Sum256(nil): ""}
	if token != "" {
		hashes[sha256.Sum256([]byte(token.Reveal()))] = tokenField
	}
	for i, e := range entries {
		switch name := strings.ToLower(e.Name); {
		case !wire.ValidUID(e.Name):
			wrong("operators[%d].name: %q must be 1 to %d of [A-Za-z0-9._-]", i, e.Name, wire.MaxUID)
		case slices.Contains(reserved, name):
			wrong("operators[%d].name: %q stands for another in the audit log: choose a name that is none of %s", i, e.Name, strings.Join(reserved, ", "))
		case names[name]:
			wrong("operators[%d].name: %q is there twice", i, e.Name)
		default:
			names[name] = true
		}
		if !slices.Contains(Roles, e.Role) {
			wrong("operators[%d].role: %q must be viewer, operator or admin", i, string(e.Role))
		}
		hash, ok := e.hash()
		other, twice := hashes[hash]
		switch {
		case !ok:
			wrong("operators[%d].token_sha256: it must be the 64 hex digits of a token's SHA-256: the command operator-token makes both", i)
		case twice && other == "":
			wrong("operators[%d].token_sha256: it is the hash of an empty token: the command operator-token makes a good one", i)
		case twice:
			wrong("operators[%d].token_sha256: it is the hash of another's token, see %s: each operator needs a token of their own", i, other)
		default:
			hashes[hash] = fmt.Sprintf("operators[%d]", i)
		}
	}
	return errs
}

func (e Entry) hash() (hash [sha256.Size]byte, ok bool) {
	b, err := hex.DecodeString(e.TokenSHA256.Reveal())
	return hash, err == nil && copy(hash[:], b) == len(hash) && len(b) == len(hash)
}

// Operator is one of a List.
type Operator struct {
	Name string
	Role Role
	// Hash is the SHA-256 of the operator's token.
	Hash [sha256.Size]byte
}

// String is the operator for logs: anna (viewer).
func (o Operator) String() string {
	if o.Role == Anybody {
		return o.Name
	}
	return fmt.Sprintf("%s (%s)", o.Name, o.Role)
}

// List is the operators of a process. It does not change.
type List struct {
	byHash map[[sha256.Size]byte]Operator
	byName map[string]Operator
}

// NewList makes a list of entries in which Check finds nothing wrong, and, where token is not empty, an operator of this name with
// the role admin.
func NewList(name string, token conf.Secret, entries []Entry) *List {
	l := &List{map[[sha256.Size]byte]Operator{}, map[string]Operator{}}
	add := func(o Operator) { l.byHash[o.Hash], l.byName[o.Name] = o, o }
	if token != "" {
		add(Operator{name, Admin, sha256.Sum256([]byte(token.Reveal()))})
	}
	for _, e := range entries {
		hash, ok := e.hash()
		if !ok {
			panic("BUG: operators that were not checked")
		}
		add(Operator{e.Name, e.Role, hash})
	}
	return l
}

// Empty reports whether there is nobody on the list.
func (l *List) Empty() bool { return len(l.byHash) == 0 }

// Find returns whose token it is. It looks the token up by its hash: how long that takes tells nothing of any token.
func (l *List) Find(token string) (Operator, bool) {
	if token == "" {
		return Operator{}, false
	}
	o, ok := l.byHash[sha256.Sum256([]byte(token))]
	return o, ok
}

// Named returns the operator of a name.
func (l *List) Named(name string) (Operator, bool) {
	o, ok := l.byName[name]
	return o, ok
}

// Diff says what changes from l to next, a line for each operator, sorted. No line holds a hash.
func (l *List) Diff(next *List) []string {
	var lines []string
	for name, was := range l.byName {
		is, ok := next.byName[name]
		switch {
		case !ok:
			lines = append(lines, was.String()+" is gone")
		case was.Role != is.Role:
			lines = append(lines, fmt.Sprintf("%s becomes %s", was, is.Role))
		}
		if ok && was.Hash != is.Hash {
			lines = append(lines, name+" has another token")
		}
	}
	for _, name := range slices.Collect(maps.Keys(next.byName)) {
		if _, ok := l.byName[name]; !ok {
			lines = append(lines, next.byName[name].String()+" is new")
		}
	}
	slices.Sort(lines)
	return lines
}
