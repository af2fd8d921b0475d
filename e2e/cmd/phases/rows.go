package main

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// A line of docs/rows.md: | row | what | `package` | tests |. The row of a line that has none is that of the line before.
var rowsLine = regexp.MustCompile("(?m)^\\| ([A-E]\\d+)? *\\|[^|]*\\| `([^`]+)` \\| ([^|]+) \\|$")

// checkRows holds docs/rows.md, which is written from the tests' source, against what ran: each test that it names must have said so
// with t.Attr and passed, and nothing else may have.
func checkRows(results []*result) *result {
	r := newResult("rows", nil)
	text, err := os.ReadFile("docs/rows.md")
	if err != nil {
		r.err = err
		return r
	}
	var wrong []string
	written, ran := written(string(text)), ran(results)
	for _, row := range slices.Sorted(maps.Keys(written)) {
		if !ran[row] {
			wrong = append(wrong, row+": docs/rows.md says that it is shown there; no such test ran and passed")
		}
	}
	for _, row := range slices.Sorted(maps.Keys(ran)) {
		if !written[row] {
			wrong = append(wrong, row+": it ran, and docs/rows.md does not have it")
		}
	}
	if len(wrong) > 0 {
		r.err = fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	return r
}

// written is what docs/rows.md says, as "row package test".
func written(text string) map[string]bool {
	all := map[string]bool{}
	row := ""
	for _, m := range rowsLine.FindAllStringSubmatch(text, -1) {
		if m[1] != "" {
			row = m[1]
		}
		for test := range strings.SplitSeq(m[3], ", ") {
			all[row+" "+m[2]+" "+strings.TrimSpace(test)] = true
		}
	}
	return all
}

// ran is what tests that passed have said, in the same form.
func ran(results []*result) map[string]bool {
	all := map[string]bool{}
	for _, r := range results {
		for n, rows := range r.rows {
			top, _, _ := strings.Cut(n.Test, "/")
			if !r.passed[name{n.Package, top}] || !r.passed[n] {
				continue
			}
			for _, row := range rows {
				all[row+" "+strings.TrimPrefix(n.Package, "floodgate.internal/")+" "+top] = true
			}
		}
	}
	return all
}
