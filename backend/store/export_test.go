package store

// StatementsOf are the statements of one migration.
func StatementsOf(file string) []string {
	text, err := migrations.ReadFile("migrations/" + file)
	if err != nil {
		panic(err)
	}
	return statements(string(text))
}
