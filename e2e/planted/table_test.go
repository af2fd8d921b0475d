package planted

import (
	"fmt"
	"strings"
	"time"
)

// row is the beginning of a bug's line of the table: all but what was said.
func (b bug) row() string {
	return fmt.Sprintf("| [%s](../e2e/planted/%[1]s.bug) | %s | %s", b.name, b.what, strings.ReplaceAll(b.test, "_", `\_`))
}

// caught is what became of a bug.
type caught struct {
	said  string // the test's line
	found string // the auditor's, "" where it was not asked
}

// table tells of all bugs that were tried; by says where it comes from.
func table(by string, all []bug, results map[string]caught, took time.Duration) string {
	var s strings.Builder
	days := 0
	for _, b := range all {
		if b.day != "" {
			days++
		}
	}
	fmt.Fprintf(&s, `# Who watches the watcher

%s

Each of these bugs is put into a copy of the real code and must be caught by the named test. %d of them also run in a real system (gateway, backend,
Redis, MariaDB, RabbitMQ) through a hard day, and the auditor, built without the bug, must find them. The same tests, and the same days, pass without the bugs. What was said is a line
of the real output. Where the auditor was not asked, something else keeps the books in order all the same (the outbox repeats what a relay or the
broker loses, MySQL's keys and checks refuse what the code lets through), or it takes a rarer day than these.

| bug | what is wrong | caught by | what it said | what the auditor found |
|---|---|---|---|---|
`, by, days)
	cell := func(text string) string {
		if text == "" {
			return ""
		}
		if r := []rune(text); len(r) > 200 {
			text = string(r[:200]) + " ..."
		}
		return "`" + strings.NewReplacer("|", `\|`, "`", "'").Replace(text) + "`"
	}
	for _, b := range all {
		c, tried := results[b.name]
		if !tried {
			c.said = "NOT CAUGHT"
		}
		fmt.Fprintf(&s, "%s | %s | %s |\n", b.row(), cell(c.said), cell(c.found))
	}
	fmt.Fprintf(&s, "\n%d of %d bugs caught in %s.\n", len(results), len(all), took.Round(time.Second))
	return s.String()
}
