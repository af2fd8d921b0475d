package edge

// Drawn is which buckets requests of one operation draw on, besides the address's.
type Drawn struct {
	Rule   string // the rule of the user's buckets: order, payment or read; or ip, or webhook
	Global bool   // they draw on the bucket of all orders, too
	Lists  bool   // banned and eligible users count
}

// DrawnOn says which buckets a request of this method and canonical path draws on. false: on none.
func DrawnOn(method, path string) (Drawn, bool) {
	r, _ := match([]byte(path))
	op := map[string]*operation{"GET": r.get, "HEAD": r.get, "POST": r.post, "DELETE": r.delete}[method]
	if op == nil || op.limit == rules {
		return Drawn{}, false
	}
	d := Drawn{Rule: ruleNames[op.limit], Global: op.limit == ruleOrder}
	d.Lists = d.Global || op.name == "standby" && method == "POST"
	return d, true
}
