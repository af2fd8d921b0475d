package eligibility

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"floodgate.internal/backend/store"
)

// Bans is the list of banned uids; every other list is a sale's, and has its id.
const Bans = 0

// Bounds of the lists. An api process holds every list that counts in memory, at about 40 bytes a uid.
const (
	MaxChunk = 800       // uids in one change
	MaxList  = 1_000_000 // uids in one list
	MaxAll   = 4_000_000 // uids in all lists that count
)

// State is a list without its uids.
type State struct {
	Active  bool  `json:"active"` // of a sale: only these may buy; else anybody may
	Size    int64 `json:"size"`
	Version int64 `json:"version"` // counts changes

	generation int64
}

// Changed is what a change did.
type Changed struct {
	State
	Added   []string `json:"added"`
	Removed []string `json:"removed"`
}

var (
	// ErrInactive: the sale has no list: anybody may buy.
	ErrInactive = errors.New("the sale has no list")
	// ErrFull: the list, or all lists together, would become too large. The error is a *FullError.
	ErrFull = errors.New("the list is full")
)

// FullError says which bound a change would break. It matches ErrFull.
type FullError struct {
	Bound, Would int64
	All          bool // the bound of all lists together
}

func (e *FullError) Error() string {
	if e.All {
		return fmt.Sprintf("all lists together would have %d uids, they may have %d: lift those of sales that are over, or archive these", e.Would, e.Bound)
	}
	return fmt.Sprintf("the list would have %d uids, it may have %d", e.Would, e.Bound)
}

// Is makes a FullError match ErrFull.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// Change puts uids on a list and takes uids off it, at most MaxChunk together, none of them in both. before is the list
// as it was. Uids that are on it already, or not on it, do not count. If none is left nothing has changed. ErrInactive,
// ErrFull.
func Change(ctx context.Context, tx *sql.Tx, list int64, at time.Time, add, remove []string) (before State, done Changed, err error) {
	if before, err = lock(ctx, tx, list, at); err != nil {
		return before, done, err
	}
	if !before.Active {
		return before, done, ErrInactive
	}
	listed, err := among(ctx, tx, list, before.generation, append(slices.Clone(add), remove...))
	if err != nil {
		return before, done, err
	}
	done = Changed{State: before, Added: []string{}, Removed: []string{}}
	for _, uid := range unique(add) {
		if !listed[uid] {
			done.Added = append(done.Added, uid)
		}
	}
	for _, uid := range unique(remove) {
		if listed[uid] {
			done.Removed = append(done.Removed, uid)
		}
	}
	if len(done.Added)+len(done.Removed) == 0 {
		return before, done, nil
	}
	done.Version++
	done.Size += int64(len(done.Added) - len(done.Removed))
	return before, done, write(ctx, tx, list, at, before, &done)
}

// Replace makes uids, at most MaxChunk, the whole list of a sale. From then on only they may buy. Change adds more.
// ErrFull.
func Replace(ctx context.Context, tx *sql.Tx, list int64, at time.Time, uids []string) (before State, done Changed, err error) {
	if before, err = lock(ctx, tx, list, at); err != nil {
		return before, done, err
	}
	done = Changed{State: State{Active: true, Version: before.Version + 1, generation: before.generation + 1}, Added: unique(uids), Removed: []string{}}
	done.Size = int64(len(done.Added))
	return before, done, write(ctx, tx, list, at, before, &done)
}

// Lift ends a sale's list: anybody may buy. Lifting it again changes nothing.
func Lift(ctx context.Context, tx *sql.Tx, list int64, at time.Time) (before State, done Changed, err error) {
	if before, err = lock(ctx, tx, list, at); err != nil || !before.Active {
		return before, Changed{State: before, Added: []string{}, Removed: []string{}}, err
	}
	done = Changed{State: State{Version: before.Version + 1, generation: before.generation + 1}, Added: []string{}, Removed: []string{}}
	return before, done, write(ctx, tx, list, at, before, &done)
}

// End makes the list of an archived sale count no more. Its uids stay in MySQL.
func End(ctx context.Context, tx *sql.Tx, list int64) error {
	if _, err := tx.ExecContext(ctx, `UPDATE uid_lists SET active = FALSE WHERE list_id = ?`, list); err != nil {
		return fmt.Errorf("end list %d: %w", list, err)
	}
	return nil
}

// lock reads a list, which it creates if it is missing. It keeps every list from being changed until the transaction
// ends, so the bound of all of them is exact.
func lock(ctx context.Context, tx *sql.Tx, list int64, at time.Time) (s State, err error) {
	for _, id := range []int64{Bans, list} {
		if _, err := tx.ExecContext(ctx, `INSERT INTO uid_lists (list_id, generation, version, size, active, changed_at) VALUES (?, 1, 0, 0, ?, ?)
			ON DUPLICATE KEY UPDATE list_id = list_id`, id, id == Bans, at); err != nil {
			return s, fmt.Errorf("list %d: %w", id, err)
		}
		s = State{}
		if err := tx.QueryRowContext(ctx, `SELECT generation, version, size, active FROM uid_lists WHERE list_id = ? FOR UPDATE`, id).
			Scan(&s.generation, &s.Version, &s.Size, &s.Active); err != nil {
			return s, fmt.Errorf("list %d: %w", id, err)
		}
	}
	return s, nil
}

// write writes a change. A new generation begins empty: Prune deletes what the older ones had.
func write(ctx context.Context, tx *sql.Tx, list int64, at time.Time, before State, c *Changed) error {
	if c.Size > MaxList && c.Size > before.Size {
		return &FullError{Bound: MaxList, Would: c.Size}
	}
	if _, err := tx.ExecContext(ctx, `UPDATE uid_lists SET generation = ?, version = ?, size = ?, active = ?, changed_at = ? WHERE list_id = ?`,
		c.generation, c.Version, c.Size, c.Active, at, list); err != nil {
		return fmt.Errorf("list %d: %w", list, err)
	}
	if c.Size > before.Size || c.Active && !before.Active {
		heads, err := heads(ctx, tx)
		if err != nil {
			return err
		}
		var all int64
		for _, h := range heads {
			all += h.Size
		}
		if all > MaxAll {
			return &FullError{Bound: MaxAll, Would: all, All: true}
		}
	}
	var rows []string
	var args []any
	for i, uids := range [][]string{c.Added, c.Removed} {
		for _, uid := range uids {
			rows = append(rows, "(?, ?, ?, ?, ?)")
			args = append(args, list, c.generation, uid, i == 0, c.Version)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO uid_list_members (list_id, generation, uid, listed, version) VALUES `+strings.Join(rows, ", ")+
		` ON DUPLICATE KEY UPDATE listed = VALUES(listed), version = VALUES(version)`, args...); err != nil {
		return fmt.Errorf("members of list %d: %w", list, err)
	}
	return nil
}

// unique is the uids, each once, in order.
func unique(uids []string) []string {
	out := slices.Sorted(slices.Values(uids))
	if out == nil {
		out = []string{}
	}
	return slices.Compact(out)
}

// heads are the lists that count.
func heads(ctx context.Context, q store.Querier) (map[int64]State, error) {
	all := map[int64]State{}
	err := each(ctx, q, func(rows *sql.Rows) error {
		var id int64
		var s State
		err := rows.Scan(&id, &s.generation, &s.Version, &s.Size, &s.Active)
		all[id] = s
		return err
	}, `SELECT list_id, generation, version, size, active FROM uid_lists WHERE active`)
	return all, err
}

// among says which of the uids are on a list.
func among(ctx context.Context, q store.Querier, list, generation int64, uids []string) (map[string]bool, error) {
	listed := map[string]bool{}
	if len(uids) == 0 {
		return listed, nil
	}
	args := []any{list, generation}
	for _, uid := range uids {
		args = append(args, uid)
	}
	err := each(ctx, q, func(rows *sql.Rows) error {
		var uid string
		err := rows.Scan(&uid)
		listed[uid] = true
		return err
	}, `SELECT uid FROM uid_list_members WHERE list_id = ? AND generation = ? AND listed AND uid IN (`+store.Marks(len(uids))+`)`, args...)
	return listed, err
}

func each(ctx context.Context, q store.Querier, row func(*sql.Rows) error, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	if err := store.Each(ctx, q, row, query, args...); err != nil {
		return fmt.Errorf("lists of uids: %w", err)
	}
	return nil
}

// Page is a list with at most limit of its uids, those after a uid ("" for the first), ascending. A list that was never
// made is empty, and of a sale not active.
func Page(ctx context.Context, db *sql.DB, list int64, after string, limit int64) (s State, uids []string, err error) {
	if s, err = read(ctx, db, list); err != nil {
		return s, nil, err
	}
	uids = []string{}
	err = each(ctx, db, func(rows *sql.Rows) error {
		var uid string
		err := rows.Scan(&uid)
		uids = append(uids, uid)
		return err
	}, `SELECT uid FROM uid_list_members WHERE list_id = ? AND generation = ? AND uid > ? AND listed ORDER BY uid LIMIT ?`, list, s.generation, after, limit)
	return s, uids, err
}

// Has reports whether a uid is on a list.
func Has(ctx context.Context, db *sql.DB, list int64, uid string) (s State, has bool, err error) {
	if s, err = read(ctx, db, list); err != nil {
		return s, false, err
	}
	listed, err := among(ctx, db, list, s.generation, []string{uid})
	return s, listed[uid], err
}

// Among returns which of the uids, at most MaxChunk, may not buy in a sale, as MySQL has it now. It is for rare decisions
// about a few.
func Among(ctx context.Context, q store.Querier, sale int64, uids []string) (map[string]Refusal, error) {
	refused := map[string]Refusal{}
	if len(uids) == 0 {
		return refused, nil
	}
	for _, list := range []int64{sale, Bans} { // a ban is stronger
		s, err := read(ctx, q, list)
		if err != nil {
			return nil, err
		}
		if !s.Active {
			continue
		}
		listed, err := among(ctx, q, list, s.generation, uids)
		if err != nil {
			return nil, err
		}
		for _, uid := range uids {
			switch {
			case list == Bans && listed[uid]:
				refused[uid] = Banned
			case list != Bans && !listed[uid]:
				refused[uid] = NotListed
			}
		}
	}
	return refused, nil
}

func read(ctx context.Context, q store.Querier, list int64) (s State, err error) {
	s.Active = list == Bans
	err = each(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&s.generation, &s.Version, &s.Size, &s.Active) },
		`SELECT generation, version, size, active FROM uid_lists WHERE list_id = ?`, list)
	return s, err
}

// pruneOnce bounds one pass of Prune.
const pruneOnce = 1000

// Prune deletes members of generations that were replaced, at most pruneOnce of each list, and returns how many: call
// again at once until that is 0. Any number may run at once.
func Prune(ctx context.Context, db *sql.DB) (n int, err error) {
	present := map[int64]int64{}
	if err := each(ctx, db, func(rows *sql.Rows) error {
		var list, generation int64
		err := rows.Scan(&list, &generation)
		if generation > 1 {
			present[list] = generation
		}
		return err
	}, `SELECT list_id, generation FROM uid_lists`); err != nil {
		return 0, err
	}
	for list, generation := range present {
		r, err := db.ExecContext(ctx, fmt.Sprintf(`DELETE FROM uid_list_members WHERE list_id = ? AND generation < ? LIMIT %d`, pruneOnce), list, generation)
		if err != nil {
			return n, fmt.Errorf("prune list %d: %w", list, err)
		}
		gone, err := r.RowsAffected()
		if err != nil {
			return n, fmt.Errorf("prune list %d: %w", list, err)
		}
		n += int(gone)
	}
	return n, nil
}
