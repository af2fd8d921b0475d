package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/valyala/fasthttp"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/lua"
	"floodgate.internal/shared/ports"
	"floodgate.internal/shared/problem"
	"floodgate.internal/shared/signing"
	"floodgate.internal/shared/wire"
)

// Peer is a program that stands beside the gateway or the backend: it does what is compared, and nothing else.
type Peer struct {
	Listen string `json:"listen"`
	Kind   string `json:"kind"` // of the kinds below

	Answers map[string]Answer `json:"answers,omitempty"` // bare: by path
	To      string            `json:"to,omitempty"`      // proxy: the backend's address
	Sales   []wire.Sale       `json:"sales,omitempty"`   // backend
	Redis   string            `json:"redis,omitempty"`   // reserve: the address
	State   map[string]string `json:"state,omitempty"`   // reserve: a sale's state, as the backend has loaded it
}

// The kinds of peers.
const (
	bare    = "bare"    // a fasthttp server that answers from memory
	proxy   = "proxy"   // a fasthttp.HostClient that passes requests on
	backend = "backend" // a backend, as the gateway sees it, that does nothing
	reserve = "reserve" // a fasthttp server and one EVALSHA of sale_reserve.lua
)

// Answer is what bare says, byte for byte.
type Answer struct {
	Status      int         `json:"status"`
	ContentType string      `json:"content_type"`
	Fields      [][2]string `json:"fields"`
	Body        []byte      `json:"body"`
}

// answerOf is a's answer to be repeated.
func answerOf(a *fasthttp.Response) Answer {
	out := Answer{Status: a.StatusCode(), ContentType: string(a.Header.ContentType()), Body: append([]byte(nil), a.Body()...)}
	for name, value := range a.Header.All() {
		if n := string(name); n != "Content-Type" && n != "Content-Length" && n != "Date" {
			out.Fields = append(out.Fields, [2]string{n, string(value)})
		}
	}
	return out
}

// readyPath says that a peer serves.
const readyPath = "/ready"

// peer starts a peer, by start or startAlone. Its address is p.Listen.
func (b *bench) peer(ctx context.Context, name string, p *Peer, start func(context.Context, stack.Program) (*stack.Process, error)) (*stack.Process, error) {
	var err error
	if p.Listen, err = freeAddr(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, name+".json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	if file, err = filepath.Abs(file); err != nil {
		return nil, err
	}
	return start(ctx, stack.Program{Name: name, Path: b.Self, Args: []string{"peer", file}, Addrs: []string{p.Listen}, Ready: "http://" + p.Listen + readyPath})
}

func freeAddr() (string, error) {
	free, err := ports.Free(1)
	if err != nil {
		return "", err
	}
	return "127.0.0.1:" + strconv.Itoa(free[0]), nil
}

// Serve is the peer's process: it serves until it is killed.
func (p Peer) Serve() error {
	handler, err := p.handler()
	if err != nil {
		return err
	}
	server := &fasthttp.Server{ // as the gateway's
		Handler: func(ctx *fasthttp.RequestCtx) {
			if string(ctx.Path()) == readyPath {
				return
			}
			handler(ctx)
		},
		ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: time.Minute,
		NoDefaultServerHeader: true, NoDefaultContentType: true,
	}
	return server.ListenAndServe(p.Listen)
}

func (p Peer) handler() (fasthttp.RequestHandler, error) {
	switch p.Kind {
	case bare:
		return p.answer, nil
	case proxy:
		client := &fasthttp.HostClient{Addr: p.To, MaxConns: 4 * lanes}
		return func(ctx *fasthttp.RequestCtx) {
			if err := client.Do(&ctx.Request, &ctx.Response); err != nil {
				ctx.Error(err.Error(), http.StatusBadGateway)
			}
		}, nil
	case backend:
		return p.backend, nil
	case reserve:
		return p.reserves()
	}
	return nil, fmt.Errorf("peer: there is no kind %q", p.Kind)
}

func (p Peer) answer(ctx *fasthttp.RequestCtx) {
	a, ok := p.Answers[string(ctx.Path())]
	if !ok {
		ctx.Error("no answer", http.StatusNotFound)
		return
	}
	ctx.Response.SetStatusCode(a.Status)
	ctx.Response.Header.SetContentType(a.ContentType)
	for _, f := range a.Fields {
		ctx.Response.Header.Set(f[0], f[1])
	}
	ctx.Response.SetBodyRaw(a.Body)
}

// backend answers what a gateway asks: the feed, which never changes; the page of all sales; an order's status; a press.
func (p Peer) backend(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.SetBytesV(signing.HeaderNonce, ctx.Request.Header.Peek(signing.HeaderNonce))
	path := string(ctx.Path())
	switch {
	case path == wire.HealthPath:
	case path == wire.FeedPath:
		if ctx.QueryArgs().Has("since") {
			time.Sleep(time.Second) // there are no news
		}
		sendJSON(ctx, wire.Feed{Instance: "bench", Version: 1, Full: !ctx.QueryArgs().Has("since"), Now: wire.At(time.Now()), Sales: p.Sales})
	case path == wire.RevocationsPath:
		if ctx.QueryArgs().Has("since") {
			time.Sleep(time.Second) // there are no news
		}
		sendJSON(ctx, wire.Revocations{Full: !ctx.QueryArgs().Has("since"), KeepMS: time.Hour.Milliseconds() * 24 * 3650, Now: wire.At(time.Now())})
	case path == "/v1/sales":
		ctx.Response.Header.Set("ETag", `W/"1"`)
		sendJSON(ctx, wire.SaleList{Sales: p.Sales})
	case strings.HasPrefix(path, "/v1/orders/"):
		at := wire.At(time.Now())
		sendJSON(ctx, wire.Order{OrderID: strings.TrimPrefix(path, "/v1/orders/"), SaleID: openSale, Quantity: 1, Amount: 4900, Status: wire.PendingPayment, CreatedAt: at, PayBefore: &at})
	case path == ordersPath(openSale):
		ctx.SetStatusCode(http.StatusAccepted)
		sendJSON(ctx, wire.Accepted{OrderID: anOrder(0), Status: wire.Queued, StatusURL: wire.OrderPath(anOrder(0))})
	case path == ordersPath(goneSale):
		problem.New(problem.SoldOut, "Everything is sold.").WriteTo(ctx, "")
	default:
		ctx.SetStatusCode(http.StatusNoContent) // records of refusals
	}
}

func sendJSON(ctx *fasthttp.RequestCtx, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(b)
}

// benchPrefix is put before the keys of sales that only a peer knows.
const benchPrefix = "bench:"

// saleKeys are the keys of sale_reserve.lua.
func saleKeys(prefix string, sale int64) (keys []string) {
	for _, name := range []string{"state", "orders", "buyers", "idem", "outbox"} {
		keys = append(keys, fmt.Sprintf("%s{sale:%d}:%s", prefix, sale, name))
	}
	return keys
}

// script calls sale_reserve.lua on a copy of a sale, of which nobody else knows.
type script struct {
	client rueidis.Client
	keys   []string
	epoch  string
}

// newScript makes the copy. What an earlier one has left is deleted.
func newScript(ctx context.Context, addr string, state map[string]string) (*script, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, DisableRetry: true, ForceSingleClient: true})
	if err != nil {
		return nil, err
	}
	s := &script{client: client, keys: saleKeys(benchPrefix, 1), epoch: state["epoch"]}
	set := client.B().Hset().Key(s.keys[0]).FieldValue()
	for name, value := range state {
		set = set.FieldValue(name, value)
	}
	for _, r := range client.DoMulti(ctx, client.B().Del().Key(s.keys...).Build(), set.Build(), client.B().ScriptLoad().Script(lua.SaleReserve.Source).Build()) {
		if err := r.Error(); err != nil {
			client.Close()
			return nil, err
		}
	}
	return s, nil
}

// reserve decides one order, and returns its id.
func (s *script) reserve(ctx context.Context, uid, key string) (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	order := wire.NewOrderID(id.String(), 1)
	answer, err := s.client.Do(ctx, s.client.B().Evalsha().Sha1(lua.SaleReserve.SHA).Numkeys(int64(len(s.keys))).Key(s.keys...).
		Arg(s.epoch, uid, "1", order, key, "", "", "20").Build()).ToArray()
	if err != nil {
		return "", err
	}
	if word, err := answer[0].ToString(); err != nil || lua.Answer(word) != lua.Reserved {
		return "", fmt.Errorf("sale_reserve.lua: %s, %v", word, err)
	}
	return order, nil
}

func (s *script) close(ctx context.Context) {
	_ = s.client.Do(ctx, s.client.B().Del().Key(s.keys...).Build()).Error() // a server that is thrown away
	s.client.Close()
}

// reserves takes a press as it comes, from anybody.
func (p Peer) reserves() (fasthttp.RequestHandler, error) {
	s, err := newScript(context.Background(), p.Redis, p.State)
	if err != nil {
		return nil, err
	}
	return func(ctx *fasthttp.RequestCtx) {
		order, err := s.reserve(context.Background(), string(ctx.Request.Header.Peek(signing.HeaderUID)), string(ctx.Request.Header.Peek("Idempotency-Key")))
		if err != nil {
			ctx.Error(err.Error(), http.StatusInternalServerError)
			return
		}
		ctx.SetStatusCode(http.StatusAccepted)
		ctx.Response.Header.Set("Location", wire.OrderPath(order))
		sendJSON(ctx, wire.Accepted{OrderID: order, Status: wire.Queued, StatusURL: wire.OrderPath(order)})
	}, nil
}
