package audit

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"floodgate.internal/backend/queued"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

func orderID(n int) string {
	return wire.NewOrderID(fmt.Sprintf("01890000-0000-7000-8000-%012d", n), 7)
}

func TestForgedAnswersAreFound(t *testing.T) {
	ann, bob, cyd, dan, eve := orderID(1), orderID(2), orderID(3), orderID(4), orderID(5)
	// ann and bob have orders in MySQL, cyd's is queued, dan's was rejected for want of stock, eve's is queued for too long.
	h := func() (*Answered, holding) {
		r := &Answered{Rejected: map[string]int{}}
		return r, holding{r: r, sale: 7, now: now, bound: bound,
			orders: map[string]order{
				ann: {uid: "ann", key: "ka", status: wire.Paid}, bob: {uid: "bob", status: wire.Cancelled},
				dan: {uid: "dan", status: wire.Rejected, reason: "out_of_stock"},
			},
			outbox: map[string]queued.Entry{
				cyd: {ID: cyd, UID: "cyd", Key: "kc", At: now.UnixMilli() - 1000},
				eve: {ID: eve, UID: "eve", At: now.UnixMilli() - bound.Milliseconds() - 1},
				ann: {ID: ann, UID: "ann", At: 1}, // settled, and not retired yet
			}}
	}
	yes := func(uid, key, id string) Answer { return Answer{UID: uid, Sale: 7, Key: key, Status: 202, OrderID: id} }
	no := func(uid, key string, status int, code problem.Code) Answer {
		return Answer{UID: uid, Sale: 7, Key: key, Status: status, Code: code}
	}
	for name, c := range map[string]struct {
		log  []Answer
		want []string // "line equation order"
	}{
		"all true":                             {[]Answer{yes("ann", "ka", ann), yes("ann", "ka", ann), yes("bob", "", bob), yes("cyd", "kc", cyd), no("fay", "", 409, problem.SoldOut)}, nil},
		"a retry after a refusal":              {[]Answer{no("ann", "ka", 429, problem.RateLimited), yes("ann", "ka", ann)}, nil},
		"an unknown outcome":                   {[]Answer{no("ann", "ka", 0, ""), no("ann", "", 409, problem.SoldOut), no("cyd", "kc", 503, problem.OutcomeUnknown)}, nil},
		"told by ALREADY_ORDERED":              {[]Answer{{UID: "ann", Sale: 7, Status: 409, Code: problem.AlreadyOrdered, OrderID: ann, Key: "other"}}, nil},
		"a promise that is nowhere":            {[]Answer{yes("ann", "", ann), yes("fay", "", orderID(9))}, []string{"2 " + eqPromise + " " + orderID(9)}},
		"a promise that waits too long":        {[]Answer{yes("eve", "", eve)}, []string{"1 " + eqPromise + " " + eve}},
		"a promise without stock":              {[]Answer{yes("dan", "", dan)}, []string{"1 " + eqWant + " " + dan}},
		"another's order":                      {[]Answer{yes("fay", "", ann), yes("gus", "", cyd)}, []string{"1 " + eqOwner + " " + ann, "2 " + eqOwner + " " + cyd}},
		"one order for two":                    {[]Answer{yes("ann", "", ann), yes("fay", "", ann)}, []string{"2 " + eqOwner + " " + ann}},
		"two orders under one key":             {[]Answer{yes("ann", "ka", ann), yes("ann", "ka", orderID(8))}, []string{"2 " + eqKey + " " + orderID(8), "2 " + eqPromise + " " + orderID(8)}},
		"an order of another sale":             {[]Answer{yes("ann", "", strings.TrimSuffix(ann, "7")+"8")}, []string{"1 " + eqNamed + " " + strings.TrimSuffix(ann, "7") + "8"}},
		"no order id":                          {[]Answer{yes("ann", "", "")}, []string{"1 " + eqNamed + " "}},
		"a refusal whose key has an order":     {[]Answer{no("fay", "", 409, problem.SoldOut), no("ann", "ka", 409, problem.SoldOut)}, []string{"2 " + eqRefusal + " " + ann}},
		"a refusal whose buyer has an order":   {[]Answer{no("bob", "", 409, problem.SoldOut), no("bob", "", 429, problem.RateLimited)}, []string{"1 " + eqRefusal + " " + bob}},
		"a refusal whose order is queued":      {[]Answer{no("cyd", "kc", 503, problem.Overloaded)}, []string{"1 " + eqRefusal + " " + cyd}},
		"more orders than unknown outcomes":    {[]Answer{no("ann", "", 500, ""), no("ann", "", 409, problem.SoldOut), no("bob", "", 409, problem.SoldOut)}, []string{"3 " + eqRefusal + " " + bob}},
		"ALREADY_ORDERED with another's order": {[]Answer{{UID: "fay", Sale: 7, Status: 409, Code: problem.AlreadyOrdered, OrderID: ann}}, []string{"1 " + eqOwner + " " + ann}},
	} {
		t.Run(name, func(t *testing.T) {
			r, h := h()
			for i := range c.log {
				c.log[i].Line = i + 1
			}
			h.hold(c.log)
			var got []string
			for _, f := range r.Findings {
				got = append(got, fmt.Sprintf("%d %s %s", f.Line, f.Equation, f.OrderID))
				if f.Detail == "" || f.Fix == "" {
					t.Errorf("%+v says too little", f)
				}
			}
			slices.Sort(got)
			if slices.Sort(c.want); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestALogIsReadLineByLine(t *testing.T) {
	got, err := ReadAnswers(strings.NewReader("\n" + `{"uid":"a","sale":7,"key":"k","status":202,"order_id":"o","x":1}` + "\n\n" + `{"uid":"b","sale_id":8,"idempotency_key":"l","status":0}`))
	want := []Answer{{UID: "a", Sale: 7, Key: "k", Status: 202, OrderID: "o", Line: 2}, {UID: "b", Sale: 8, Key: "l", Line: 4}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for text, part := range map[string]string{"{}": "line 1: it needs", `{"uid":"a","sale":1}` + "\nx": "line 2: ", strings.Repeat("x", maxLine+1): "line 1: "} {
		if _, err := ReadAnswers(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q in it", err, part)
		}
	}
}

// A log that is read has a line for each answer, which names its buyer and its sale.
func FuzzReadAnswers(f *testing.F) {
	f.Add([]byte("{\"uid\":\"7\",\"sale\":1,\"status\":202,\"order_id\":\"x\"}\n\n{\"uid\":\"8\",\"sale_id\":1,\"status\":0,\"idempotency_key\":\"k\"}"))
	f.Add([]byte("{}\n[]\n"))
	f.Fuzz(func(t *testing.T, log []byte) {
		all, err := ReadAnswers(bytes.NewReader(log))
		if err != nil {
			if all != nil {
				t.Errorf("refused with %v, and read %+v", err, all)
			}
			return
		}
		last := 0
		for _, a := range all {
			if a.UID == "" || a.Sale < 1 || a.Line <= last || a.Line > bytes.Count(log, []byte("\n"))+1 {
				t.Errorf("took %+v", a)
			}
			last = a.Line
		}
	})
}
