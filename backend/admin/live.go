package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"floodgate.internal/backend/adminapi"
	"floodgate.internal/backend/gateways"
	"floodgate.internal/backend/live"
	"floodgate.internal/backend/sale"
	"floodgate.internal/shared/operator"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/wire"
)

const (
	liveSales  = 50               // of a sample, the newest
	sampleTime = 4 * time.Second  // for one sample
	beatEvery  = 10 * time.Second // so that a reader, and a proxy between, knows that the stream lives
	beatTime   = 10 * time.Second // for the reader to take what was written
	silentFor  = 5 * time.Second  // without a report: then a gateway's rates are not known
)

// sampler makes the samples of the live view.
type sampler struct {
	*Admin
	hub  *live.Hub[adminapi.Live, adminapi.LivePoint]
	last map[string]counted // by gateway; the hub samples one at a time
}

// counted is what a gateway had counted, and the rates at which it did.
type counted struct {
	life              string
	at                time.Time
	presses, refusals map[string]int64
	pressed, refused  map[string]float64
}

func newSampler(a *Admin) *sampler {
	s := &sampler{Admin: a, last: map[string]counted{}}
	s.hub = live.New(s.sample)
	return s
}

// Sample keeps the last minutes for the console's charts, and tells whoever listens, until ctx is done.
func (a *Admin) Sample(ctx context.Context) error { return a.live.hub.Run(ctx) }

// sample asks Redis, MySQL and the broker what is. What does not answer is named, and does not keep the rest from being told.
func (s *sampler) sample(ctx context.Context) (adminapi.Live, adminapi.LivePoint) {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	v := adminapi.Live{At: wire.At(s.Clock.Now()), Errors: []string{}, Sales: []adminapi.Sale{}, Gateways: []adminapi.LiveGateway{}}
	p := adminapi.LivePoint{At: v.At, Depth: -1, OldestAgeMS: -1, Sales: []adminapi.SalePoint{}}
	failed := func(what string, err error) {
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			v.Errors = append(v.Errors, what+" cannot be read at the moment")
			s.Log.Debug("live: not read", "what", what, "error", err)
		}
	}
	reports, err := s.Gateways.List(ctx)
	if err != nil {
		failed("reports that other backends took", err)
	}
	s.flood(&v, reports)
	p.Presses = v.Presses
	queued := map[int64]int64{}
	if q, err := s.readQueue(ctx); err != nil {
		failed("what is queued", err)
	} else {
		v.Queue, p.Depth, p.OldestAgeMS = &q, q.Depth, q.OldestAgeMS
		for _, o := range q.Outboxes {
			queued[o.SaleID] = o.Depth
		}
	}
	list, err := s.newest(ctx)
	if err != nil {
		failed("the sales", err)
	}
	v.Sales = append(v.Sales, list...)
	for _, one := range list {
		if one.ClosedAt == nil && one.ArchivedAt == nil {
			p.Sales = append(p.Sales, adminapi.SalePoint{ID: one.ID, Sold: one.Sold, Locked: one.Locked, Queued: min(queued[one.ID], one.Available)})
		}
	}
	return v, p
}

func (s *sampler) newest(ctx context.Context) ([]adminapi.Sale, error) {
	ids, err := sale.Newest(ctx, s.DB, false, math.MaxInt64, liveSales)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	records, err := sale.Records(ctx, s.DB, ids...)
	if err != nil {
		return nil, err
	}
	list, err := s.Changes.Sales(ctx, s.DB, records...)
	slices.Reverse(list)
	return list, err
}

// flood fills in what the gateways report: rates since the report before.
func (s *sampler) flood(v *adminapi.Live, reports []gateways.Gateway) {
	v.Presses, v.Refusals = map[string]float64{}, map[string]float64{}
	uids, networks := map[string]wire.TopClient{}, map[string]wire.TopClient{}
	last := s.last
	s.last = map[string]counted{}
	for _, g := range reports {
		c := last[g.Name]
		switch {
		case c.life != g.Life: // the first report of this life: rates need two
			c = counted{life: g.Life, at: g.At.Time, presses: g.Presses, refusals: g.Refusals}
		case g.At.After(c.at):
			seconds := g.At.Sub(c.at).Seconds()
			c = counted{g.Life, g.At.Time, g.Presses, g.Refusals, rates(c.presses, g.Presses, seconds), rates(c.refusals, g.Refusals, seconds)}
		}
		s.last[g.Name] = c
		if v.At.Sub(g.HeardAt.Time) > silentFor {
			c.pressed, c.refused = nil, nil
		}
		addRates(v.Presses, c.pressed)
		addRates(v.Refusals, c.refused)
		addClients(uids, g.UIDs)
		addClients(networks, g.Networks)
		v.Gateways = append(v.Gateways, adminapi.LiveGateway{Name: g.Name, Version: g.Version, Generation: g.Generation, Hash: g.Hash, StartedAt: g.StartedAt,
			ReloadedAt: g.ReloadedAt, SilentMS: max(0, v.At.Sub(g.HeardAt.Time).Milliseconds()), FeedAgeMS: g.FeedAgeMS,
			Connections: g.Connections, MaxConnections: g.MaxConnections, Presses: c.pressed})
	}
	v.UIDs, v.Networks = busiest(uids), busiest(networks)
}

func rates(before, now map[string]int64, seconds float64) map[string]float64 {
	all := map[string]float64{}
	for name, n := range now {
		if n > before[name] {
			all[name] = math.Round(float64(n-before[name])/seconds*100) / 100
		}
	}
	return all
}

func addRates(sum, more map[string]float64) {
	for name, n := range more {
		sum[name] += n
	}
}

func addClients(sum map[string]wire.TopClient, more []wire.TopClient) {
	for _, c := range more {
		was := sum[c.Name]
		sum[c.Name] = wire.TopClient{Name: c.Name, Requests: was.Requests + c.Requests, Refused: was.Refused + c.Refused}
	}
}

func busiest(sum map[string]wire.TopClient) []wire.TopClient {
	list := slices.SortedFunc(maps.Values(sum), func(a, b wire.TopClient) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(a.Name, b.Name))
	})
	return append([]wire.TopClient{}, list[:min(len(list), wire.MaxTopClients)]...)
}

// follow is the live stream: server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). The first, "begin",
// has the history; each "sample" has what is. A stream that broke off begins anew. It ends with the process, and when the operator may
// not read any more.
func (a *Admin) follow(r *request) (*answer, error) {
	history, last, l, err := a.live.hub.Listen()
	if err != nil {
		p := problem.New(problem.Overloaded, err.Error())
		p.RetryAfter = 5 * time.Second
		return nil, p
	}
	host, _ := os.Hostname() // "" is as good as any
	begin := adminapi.LiveBegin{Backend: host, EveryMS: live.HistoryEvery.Milliseconds(), History: history, Last: last}
	if r.Method == http.MethodHead {
		a.live.hub.Leave(l)
	}
	stream := func(ctx context.Context, w http.ResponseWriter) error {
		defer a.live.hub.Leave(l)
		c := http.NewResponseController(w)
		_ = c.SetReadDeadline(time.Time{}) // else the listener's would end it; not every reader has one
		write := func(text string) bool {
			_ = c.SetWriteDeadline(time.Now().Add(beatTime))
			_, err := w.Write([]byte(text))
			return err == nil && c.Flush() == nil
		}
		if !write("retry: 2000\n" + sseEvent("begin", begin)) {
			return nil // the reader left
		}
		beat := time.NewTicker(beatEvery)
		defer beat.Stop()
		for {
			text := ":\n\n"
			select {
			case <-ctx.Done():
				return nil
			case s, ok := <-l.Samples:
				if !ok {
					return nil
				}
				text = sseEvent("sample", s)
			case <-beat.C:
			}
			if by, err := a.who(w, r.Request); err != nil || !by.Role.Covers(operator.Viewer) {
				write(sseEvent("end", struct{}{}))
				return nil
			}
			if !write(text) {
				return nil
			}
		}
	}
	return &answer{status: http.StatusOK, stream: stream, header: map[string]string{"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}}, nil
}

// sseEvent is a server-sent event; JSON has no line ends.
func sseEvent(name string, v any) string {
	body, err := json.Marshal(v)
	if err != nil {
		panic("BUG: an event that does not marshal: " + err.Error())
	}
	return fmt.Sprintf("event: %s\ndata: %s\n\n", name, body)
}
