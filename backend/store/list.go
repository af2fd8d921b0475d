package store

import "strings"

// Marks returns "?, ?, ?": the placeholders of n values.
func Marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

// Tuples returns "(?, ?), (?, ?)": the placeholders of n rows of width values each.
func Tuples(n, width int) string {
	return strings.TrimSuffix(strings.Repeat("("+Marks(width)+"), ", n), ", ")
}

// Anys returns a list as arguments of a statement.
func Anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}
