package event

import (
	"encoding/base64"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"floodgate.internal/shared/conf"
	"floodgate.internal/shared/wire"
)

func whsec(n int) conf.Secret {
	return conf.Secret("whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", n))))
}

func TestCheck(t *testing.T) {
	good := Endpoint{Name: "shop-1", URL: "https://shop.example/hook?key=hunter2", Secret: whsec(32)}
	with := func(change func(*Endpoint)) Endpoint {
		e := good
		change(&e)
		return e
	}
	if errs := Check([]Endpoint{good, with(func(e *Endpoint) { e.Name, e.Types = "other", []Type{OrderPaid, SaleEnded} })}, false); len(errs) > 0 {
		t.Errorf("what is right: got %v", errs)
	}
	if errs := Check([]Endpoint{with(func(e *Endpoint) { e.URL = "http://127.0.0.1:8000/hook" })}, true); len(errs) > 0 {
		t.Errorf("in development: got %v", errs)
	}
	for name, c := range map[string]struct {
		list []Endpoint
		want string
	}{
		"no name":        {[]Endpoint{with(func(e *Endpoint) { e.Name = "" })}, "events.endpoints[0].name"},
		"a name":         {[]Endpoint{with(func(e *Endpoint) { e.Name = "Shop 1" })}, "events.endpoints[0].name"},
		"a name twice":   {[]Endpoint{good, good}, "events.endpoints[1].name"},
		"no URL":         {[]Endpoint{with(func(e *Endpoint) { e.URL = "" })}, "events.endpoints[0].url"},
		"no host":        {[]Endpoint{with(func(e *Endpoint) { e.URL = "https:///hunter2" })}, "events.endpoints[0].url"},
		"another scheme": {[]Endpoint{with(func(e *Endpoint) { e.URL = "ftp://shop.example/hunter2" })}, "events.endpoints[0].url"},
		"plain HTTP":     {[]Endpoint{with(func(e *Endpoint) { e.URL = "http://shop.example/hunter2" })}, "events.endpoints[0].url"},
		"a password":     {[]Endpoint{with(func(e *Endpoint) { e.URL = "https://me:hunter2@shop.example/" })}, "events.endpoints[0].url"},
		"a broken URL":   {[]Endpoint{with(func(e *Endpoint) { e.URL = "https://hunter2%zz/" })}, "events.endpoints[0].url"},
		"no secret":      {[]Endpoint{with(func(e *Endpoint) { e.Secret = "" })}, "events.endpoints[0].secret"},
		"no prefix":      {[]Endpoint{with(func(e *Endpoint) { e.Secret = conf.Secret(strings.TrimPrefix(whsec(32).Reveal(), "whsec_")) })}, "events.endpoints[0].secret"},
		"no base64":      {[]Endpoint{with(func(e *Endpoint) { e.Secret = "whsec_hunter2!hunter2!hunter2!hunter2!" })}, "events.endpoints[0].secret"},
		"23 bytes":       {[]Endpoint{with(func(e *Endpoint) { e.Secret = whsec(23) })}, "events.endpoints[0].secret"},
		"65 bytes":       {[]Endpoint{with(func(e *Endpoint) { e.Secret = whsec(65) })}, "events.endpoints[0].secret"},
		"a type":         {[]Endpoint{with(func(e *Endpoint) { e.Types = []Type{OrderPaid, "order.payed"} })}, "events.endpoints[0].types[1]"},
		"too many":       {make([]Endpoint, MaxEndpoints+1), "events.endpoints: 17"},
	} {
		got := errors.Join(Check(c.list, false)...)
		if got == nil || !strings.Contains(got.Error(), c.want) || strings.Contains(got.Error(), "hunter2") || strings.Contains(got.Error(), "kkkk") || strings.Contains(got.Error(), "a2tra2") {
			t.Errorf("%s: got %v, want %s named, and nothing secret", name, got, c.want)
		}
	}
}

// The page's examples are bodies as they are: what is decoded from one, strictly, is encoded as it stands there.
func TestTheExamplesOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Type]bool{}
	for _, part := range strings.Split(string(page), "```json\n")[1:] {
		body, _, _ := strings.Cut(part, "```")
		var head struct {
			Type Type `json:"type"`
		}
		if err := json.Unmarshal([]byte(body), &head); err != nil {
			t.Fatal(err)
		}
		seen[head.Type] = true
		e := envelope{Data: new(Order)}
		switch {
		case strings.HasPrefix(string(head.Type), "sale."):
			e.Data = new(Sale)
		case head.Type == RefundDue: // its data is package payment's; the test on servers holds it
			continue
		}
		if err := json.Unmarshal([]byte(body), &e, json.RejectUnknownMembers(true)); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if o, ok := e.Data.(*Order); ok && OrderEvent(wire.Order{OrderID: o.OrderID, Status: o.Status}, o.UID).Type != head.Type {
			t.Errorf("%s: an order with the status %s", head.Type, o.Status)
		}
		made, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(string(made)), ""); got != strings.Join(strings.Fields(body), "") {
			t.Errorf("the page has\n%s\nand it is\n%s", body, got)
		}
	}
	for _, what := range Types {
		if !seen[what] {
			t.Errorf("docs/events.md has no example of %s", what)
		}
	}
}
