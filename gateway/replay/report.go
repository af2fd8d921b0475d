package replay

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"floodgate.internal/shared/topk"
)

// Report is what a replay found. It is the output of --json.
type Report struct {
	Log        LogSeen   `json:"log"`
	From       time.Time `json:"from"` // arrival of the first request
	To         time.Time `json:"to"`
	OutOfOrder int       `json:"out_of_order"` // requests that were decided later than they came
	// Rules has each rule that refuses, or refused.
	Rules []Rule `json:"rules"`
	// NewlyRefused are refused by the limits, and were not before; NewlyAdmitted the other way round.
	NewlyRefused  int `json:"newly_refused"`
	NewlyAdmitted int `json:"newly_admitted"`
	// Unknown are those of NewlyAdmitted whose user is not in the log: what the user's limits would have said is not known.
	Unknown int `json:"unknown"`
	// Users and Networks are those with the most newly refused requests, Minutes those that had most of them.
	Users    []Client   `json:"users"`
	Networks []Client   `json:"networks"`
	Minutes  []Minute   `json:"minutes"`
	First    *time.Time `json:"first_newly_refused"`
	Last     *time.Time `json:"last_newly_refused"`
}

// Rule counts the refusals by one rule, as logged and by the limits that were replayed.
type Rule struct {
	Rule   string `json:"rule"`
	Before int    `json:"before"`
	After  int    `json:"after"`
}

// Client is a user or a network, and how many of its requests are newly refused, at least: of more than 1024 the count is not exact.
type Client struct {
	Name  string `json:"name"`
	Count uint64 `json:"newly_refused"`
}

// Minute counts requests that arrived in one minute.
type Minute struct {
	Minute       time.Time `json:"minute"`
	Requests     int       `json:"requests"`
	NewlyRefused int       `json:"newly_refused"`
}

const (
	tracked = 1024 // users, and networks
	shown   = 10
)

// counts is what a replay counts, in bounded memory.
type counts struct {
	report          Report
	before, after   map[string]int
	users, networks *topk.Sketch[string]
	minute          Minute
}

func newCounts() *counts {
	return &counts{before: map[string]int{}, after: map[string]int{}, users: topk.NewSketch[string](tracked), networks: topk.NewSketch[string](tracked)}
}

// add counts a request. Requests come in the order of their times.
func (c *counts) add(r *request, before, after string, known bool) {
	at := r.arrived.UTC()
	if c.report.From.IsZero() {
		c.report.From = at
	}
	c.report.To = at
	if minute := at.Truncate(time.Minute); !minute.Equal(c.minute.Minute) {
		c.endMinute()
		c.minute = Minute{Minute: minute}
	}
	c.minute.Requests++
	if before != "" {
		c.before[before]++
	}
	if after != "" {
		c.after[after]++
	}
	switch {
	case before == "" && after != "":
		c.report.NewlyRefused++
		c.minute.NewlyRefused++
		if c.report.First == nil {
			c.report.First = &at
		}
		c.report.Last = &at
		if r.UID != "" {
			c.users.Add(r.UID, 1)
		}
		if r.Network != "" {
			c.networks.Add(r.Network, 1)
		}
	case before != "" && after == "":
		c.report.NewlyAdmitted++
		if !known {
			c.report.Unknown++
		}
	}
}

// endMinute keeps the minute if it is one of the worst.
func (c *counts) endMinute() {
	if c.minute.NewlyRefused == 0 {
		return
	}
	worst := append(c.report.Minutes, c.minute)
	slices.SortStableFunc(worst, func(a, b Minute) int { return cmp.Compare(b.NewlyRefused, a.NewlyRefused) })
	c.report.Minutes = worst[:min(len(worst), shown)]
}

func (c *counts) finish(into *Report) {
	c.endMinute()
	log, late := into.Log, into.OutOfOrder
	*into = c.report
	into.Log, into.OutOfOrder = log, late
	into.Rules = []Rule{}
	for _, name := range limitRules {
		if c.before[name]+c.after[name] > 0 {
			into.Rules = append(into.Rules, Rule{name, c.before[name], c.after[name]})
		}
	}
	into.Users, into.Networks = worst(c.users), worst(c.networks)
	if into.Minutes == nil {
		into.Minutes = []Minute{}
	}
}

func worst(s *topk.Sketch[string]) []Client {
	list := []Client{}
	for e := range s.All() {
		list = append(list, Client{e.Key, e.Count - e.Over})
	}
	slices.SortFunc(list, func(a, b Client) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Name, b.Name))
	})
	return list[:min(len(list), shown)]
}

// Write writes the report for a person.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	stamp := func(at time.Time) string { return at.Format("2006-01-02 15:04:05.000Z") }
	fmt.Fprintf(t, "%d requests, %s to %s\n", r.Log.Requests, stamp(r.From), stamp(r.To))
	for _, x := range []struct {
		n    int
		what string
	}{
		{r.Log.Unreadable, "lines could not be read and were left out"},
		{r.Log.Gaps, "times the gateway dropped lines (log.access_max): there more would be refused than is said here"},
		{r.OutOfOrder, "requests came out of order and were decided late"},
	} {
		if x.n > 0 {
			fmt.Fprintf(t, "%d %s\n", x.n, x.what)
		}
	}
	fmt.Fprintf(t, "\nrefused by\tbefore\tafter\n")
	for _, rule := range r.Rules {
		fmt.Fprintf(t, "%s\t%d\t%d\n", rule.Rule, rule.Before, rule.After)
	}
	fmt.Fprintf(t, "\n%d would be refused that were not; %d would not be that were", r.NewlyRefused, r.NewlyAdmitted)
	if r.Unknown > 0 {
		fmt.Fprintf(t, " (%d of them were refused before their user was known: the user's limits may refuse them)", r.Unknown)
	}
	fmt.Fprintln(t)
	if r.First != nil {
		fmt.Fprintf(t, "the first at %s, the last at %s\n", stamp(*r.First), stamp(*r.Last))
	}
	for _, list := range []struct {
		name    string
		clients []Client
	}{{"user", r.Users}, {"network", r.Networks}} {
		if len(list.clients) > 0 {
			fmt.Fprintf(t, "\n%s\twould be refused\n", list.name)
		}
		for _, c := range list.clients {
			fmt.Fprintf(t, "%s\t%d\n", c.Name, c.Count)
		}
	}
	if len(r.Minutes) > 0 {
		fmt.Fprintf(t, "\nminute\trequests\twould be refused\n")
	}
	for _, m := range r.Minutes {
		fmt.Fprintf(t, "%s\t%d\t%d\n", m.Minute.Format("2006-01-02 15:04Z"), m.Requests, m.NewlyRefused)
	}
	t.Flush() // into memory: it does not fail
	_, err := io.WriteString(w, b.String())
	return err
}
