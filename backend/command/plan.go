package command

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"floodgate.internal/backend/plan"
	"floodgate.internal/shared/cli"
)

// Plan is the command "plan".
type Plan struct {
	Shoppers int64   `required:"" help:"How many shoppers come." placeholder:"N"`
	Stock    int64   `required:"" help:"How many units there are, one for each buyer." placeholder:"N"`
	Seconds  float64 `required:"" help:"Within how many seconds they come." placeholder:"N"`
	Output
}

// Run prints the plan. It reads no configuration, and asks nobody.
func (c *Plan) Run(env *Env) error {
	const most = 1_000_000_000
	if c.Shoppers < 1 || c.Shoppers > most || c.Stock < 1 || c.Stock > most || !(c.Seconds >= 1) || c.Seconds > 86400 {
		return cli.Usage("--shoppers and --stock: from 1 to %d; --seconds: from 1 to 86400", most)
	}
	figures := plan.Sale{Shoppers: c.Shoppers, Stock: c.Stock, Seconds: c.Seconds}.Plan()
	return c.print(env.Stdout, map[string]any{"source": plan.Measured.Source, "figures": figures}, func(w *bytes.Buffer) {
		for _, f := range figures {
			fmt.Fprintf(w, "%s  %s\n  %s\n", f.Name, strings.TrimSpace(strconv.FormatFloat(f.Value, 'f', -1, 64)+" "+f.Unit), f.Because)
		}
		fmt.Fprintf(w, "\nmeasured: %s. Other machines differ: rehearse on yours (make rehearse)\n", plan.Measured.Source)
	})
}
