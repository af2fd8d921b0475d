package preflight

import (
	"fmt"
	"time"

	"floodgate.internal/shared/wire"
)

// Rehearsal is what came of a rehearsal (`make rehearse`), as it stands in its file.
type Rehearsal struct {
	At       wire.Time `json:"at"` // its sale's start
	Version  string    `json:"version"`
	Shoppers int64     `json:"shoppers"`
	Stock    int64     `json:"stock"`
	Seconds  float64   `json:"seconds"` // of the sale
	Presses  int64     `json:"presses"`
	Faults   int64     `json:"faults"` // kills meanwhile
	Good     bool      `json:"good"`   // every promise was kept, and every equation holds
}

// Check holds the rehearsal against a sale of so many units, for which so many shoppers are expected; 0: that is not known.
func (r Rehearsal) Check(stock, shoppers int64, now time.Time) Check {
	c := Check{Name: "rehearsal", Want: fmt.Sprintf("every promise kept, for at least %d units", stock), OK: r.Good && r.Stock >= stock && r.Shoppers >= shoppers}
	if shoppers > 0 {
		c.Want += fmt.Sprintf(" and %d shoppers", shoppers)
	}
	kept := "every promise was kept"
	if !r.Good {
		kept = "NOT every promise was kept"
	}
	c.Value = fmt.Sprintf("%s: %d shoppers pressed %d times for %d units within %.0f s, %d kills; %v ago, %s", kept, r.Shoppers, r.Presses, r.Stock, r.Seconds, r.Faults,
		now.Sub(r.At.Time).Round(time.Hour), r.Version)
	if !c.OK {
		c.Do = fmt.Sprintf("rehearse: make rehearse SHOPPERS=%d STOCK=%d", max(shoppers, r.Shoppers), max(stock, r.Stock))
	}
	return c
}
