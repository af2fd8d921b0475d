package bench

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"floodgate.internal/e2e/stack"
	"floodgate.internal/shared/development"
	"floodgate.internal/shared/wire"
)

// The sales of the gateway's part.
const (
	openSale int64 = iota + 1
	goneSale       // sold out
	nextSale       // not started
	allSales = 16  // so many that the page of all is about 4 KB
)

func ordersPath(sale int64) string { return fmt.Sprintf("/v1/sales/%d/orders", sale) }

// anOrder is an order id of the open sale, another one for each i below lanes.
func anOrder(i int) string {
	return wire.NewOrderID(fmt.Sprintf("0190163d-8694-739b-aea5-966c26f8ad%02x", i), openSale)
}

func sampleSales() (sales []wire.Sale) {
	now := time.Now()
	for id := int64(1); id <= allSales; id++ {
		s := wire.Sale{ID: id, Kind: wire.Goods, Title: fmt.Sprintf("Noise-cancelling headphones, lot %d", id), Price: 4900, Currency: "EUR",
			StartsAt: wire.At(now.Add(-time.Hour)), EndsAt: wire.At(now.Add(24 * time.Hour)), State: wire.Open, PerUserLimit: 1, Now: wire.At(now)}
		switch id {
		case goneSale:
			s.State = wire.SoldOut
		case nextSale:
			s.State, s.StartsAt = wire.Upcoming, wire.At(now.Add(3*time.Hour))
		}
		sales = append(sales, s)
	}
	return sales
}

// gatewayConfig is one in which a user who has pressed once is over the limit, and no other limit is met.
const gatewayConfig = `development: true
listen: {public: %q, ops: %q%s}
backends: ["http://%s"]
signing_key: {id: %s, secret: %s}
identity:
  keys:
    - {kid: %s, alg: HS256, secret: %s, sign: true}
limits:
  order: {rate: 0.0001, burst: 1, max_keys: 1000000}
  read: {rate: 1000000, burst: 1000000, max_keys: 1000000}
  ip: {rate: 1000000, burst: 1000000, max_keys: 1000000}
  ip_users: {rate: 1000000, burst: 1000000, max_keys: 1000000}
log: {level: warn}
`

// gateway compares the gateway with a bare fasthttp server, a bare fasthttp proxy and nginx.
func (b *bench) gateway(ctx context.Context) (err error) {
	undo, err := b.split()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	stand := Peer{Kind: backend, Sales: sampleSales()}
	if _, err := b.peer(ctx, "backend-peer", &stand, b.start); err != nil {
		return err
	}
	gate, public, tokens, err := b.startGateway(ctx, "gateway", stand.Listen, "", "")
	if err != nil {
		return err
	}
	at := &crowd{addr: public}
	for _, token := range tokens { // each user's only one
		if a, err := at.ask(anOrderRequest(openSale, token, "the-first-press")); err != nil || a.StatusCode() != 202 {
			return fmt.Errorf("a first press: %v, %s", err, a)
		}
	}
	compared := gatewayComparisons(tokens)
	answers := Peer{Kind: bare, Answers: map[string]Answer{}}
	for _, c := range compared {
		a, err := at.ask(c.one)
		if err != nil || a.StatusCode() != c.status {
			return fmt.Errorf("%s: %v, %s", c.what, err, a)
		}
		answers.Answers[c.path] = answerOf(a)
	}
	plain, err := b.peer(ctx, "bare", &answers, b.startAlone)
	if err != nil {
		return err
	}
	pass := Peer{Kind: proxy, To: stand.Listen}
	passing, err := b.peer(ctx, "proxy", &pass, b.startAlone)
	if err != nil {
		return err
	}
	nginx, nginxAddr, err := b.startNginx(ctx, stand.Listen, answers.Answers)
	if err != nil {
		return err
	}
	for _, c := range compared {
		program := side{plain, answers.Listen, c.status, c.asked}
		if c.proxy {
			program = side{passing, pass.Listen, c.status, c.asked}
		}
		if err := b.compareGateway(ctx, c, side{gate, public, c.status, c.asked}, program, side{nginx, nginxAddr, c.status, nil}); err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
	}
	return nil
}

// gatewayComparison is one kind of request, and with whom the gateway is compared.
type gatewayComparison struct {
	what   string
	status int
	asked  func(n int) [][]byte
	one    []byte
	path   string
	proxy  bool    // compared with a proxy, not with a server that has the answer
	goal   float64 // against the plain program
	nginx  []rival
}

func gatewayComparisons(tokens []string) []gatewayComparison {
	var presses, statuses [][]byte
	for i, token := range tokens {
		presses = append(presses, anOrderRequest(openSale, token, "the-second-press"))
		statuses = append(statuses, aRead(wire.OrderPath(anOrder(i)), token))
	}
	gone, next, page := anOrderRequest(goneSale, tokens[0], "a-key"), anOrderRequest(nextSale, tokens[0], "a-key"), aRead("/v1/sales", "")
	return []gatewayComparison{
		{what: "an order refused as sold out", status: 409, asked: always(gone), one: gone, path: ordersPath(goneSale), goal: 1,
			nginx: []rival{{"nginx with Lua and a shared dict", "", Row{Goal: 0.9, Limit: AtMost, EachRun: true}, noToken}}},
		{what: "an order refused before the start", status: 403, asked: always(next), one: next, path: ordersPath(nextSale), goal: 1,
			nginx: []rival{{"nginx with Lua and a shared dict", "", Row{Goal: 0.9, Limit: AtMost, EachRun: true}, noToken}}},
		{what: "an order refused by the user's limit", status: 429, asked: always(presses...), one: presses[0], path: ordersPath(openSale), goal: 1,
			nginx: []rival{
				{"nginx's limit_req, the token verified by Lua", verifiedPath, Row{Goal: 1, Limit: AtMost}, "each remembers tokens that it has verified; nginx discards the body"},
				{"nginx's limit_req, the token not verified", "", Row{Goal: 1.2, Limit: AtMost}, "the gateway verifies the token, nginx takes it as a key; nginx discards the body"},
			}},
		{what: "a page of 4 KB out of the cache", status: 200, asked: always(page), one: page, path: "/v1/sales", goal: 1.1,
			nginx: []rival{{"nginx's proxy_cache", "", Row{Goal: 1, Limit: Below}, "nginx's cache is files"}}},
		{what: "an order's status, passed on to the backend", status: 200, asked: always(statuses...), one: statuses[0], proxy: true, goal: 1.2,
			nginx: []rival{{"nginx's proxy_pass", "", Row{}, "the gateway verifies the token, signs the request, applies its limits and checks the answer's nonce"}}},
	}
}

// anOrderRequest is the request of a press.
func anOrderRequest(sale int64, token, key string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nIdempotency-Key: %s\r\nContent-Length: 14\r\n\r\n{\"quantity\":1}",
		ordersPath(sale), token, key)
}

// aRead is the request of a page, for nobody where there is no token.
func aRead(path, token string) []byte {
	authorization := ""
	if token != "" {
		authorization = "Authorization: Bearer " + token + "\r\n"
	}
	return []byte("GET " + path + " HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\n" + authorization + "\r\n")
}

// compareGateway measures what one kind of request costs the gateway, the plain program and nginx's ways to do the same.
func (b *bench) compareGateway(ctx context.Context, c gatewayComparison, gate, plain, nginx side) error {
	sides := []side{gate, plain}
	rows := []Row{{Against: "a bare fasthttp server with the same bytes", Goal: c.goal, Limit: AtMost, Unequal: "the bare server decides nothing"}}
	if c.proxy {
		rows[0].Against, rows[0].Unequal = "a bare fasthttp proxy (HostClient)", "the gateway verifies the token, signs the request, applies its limits and checks the answer's nonce"
	}
	for _, n := range c.nginx {
		its := nginx
		its.requests = c.asked
		if n.path != "" {
			its.requests = func(count int) [][]byte { return at2(c.asked(count), c.path, n.path) }
		}
		sides = append(sides, its)
		if c.status == 429 {
			if err := spend(its.addr, its.requests(lanes)); err != nil {
				return err
			}
		}
		unequal, err := answerSizes(n.unequal, gate.addr, c.one, its.addr, its.requests(1)[0])
		if err != nil {
			return err
		}
		n.row.Against, n.row.Unequal = n.against, unequal
		rows = append(rows, n.row)
	}
	costs, load, err := b.cpuOfEach(ctx, b.Size, sides...)
	if err != nil {
		return err
	}
	for i, row := range rows {
		row.What, row.Unit, row.Load = c.what, "µs of CPU a request", load
		b.add(row, costs[0], costs[1+i])
	}
	return nil
}

// rival is a way of nginx to do the same.
type rival struct {
	against string
	path    string // asked instead; "" for the same
	row     Row
	unequal string
}

// noToken is so of both: what the sale's state refuses needs no user.
const noToken = "neither verifies the token; nginx discards the body, the gateway reads it"

// verifiedPath is where nginx verifies the token before it limits.
const verifiedPath = "/verified"

// at2 is the same requests for another path.
func at2(requests [][]byte, path, other string) (out [][]byte) {
	for _, r := range requests {
		out = append(out, bytes.Replace(r, []byte(path), []byte(other), 1))
	}
	return out
}

// answerSizes adds how long the two answers are, heads included.
func answerSizes(unequal, ours string, request []byte, theirs string, same []byte) (string, error) {
	var sizes [2]int
	for i, side := range []struct {
		addr string
		one  []byte
	}{{ours, request}, {theirs, same}} {
		a, err := (&crowd{addr: side.addr}).ask(side.one)
		if err != nil {
			return "", err
		}
		sizes[i] = len(a.Header.Header()) + len(a.Body())
	}
	return fmt.Sprintf("%s; nginx's answer has %d bytes, the gateway's %d", unequal, sizes[1], sizes[0]), nil
}

// spend takes what nginx lets each user have.
func spend(addr string, presses [][]byte) error {
	at := &crowd{addr: addr}
	for _, p := range presses {
		if _, err := at.ask(p); err != nil {
			return err
		}
	}
	return nil
}

// startGateway starts a gateway with more settings, of its listeners and others.
func (b *bench) startGateway(ctx context.Context, name, to, listen, more string) (p *stack.Process, public string, tokens []string, err error) {
	if public, err = freeAddr(); err != nil {
		return nil, "", nil, err
	}
	ops, err := freeAddr()
	if err != nil {
		return nil, "", nil, err
	}
	config, err := filepath.Abs(filepath.Join(b.dir, name+".yaml"))
	if err != nil {
		return nil, "", nil, err
	}
	binary, err := filepath.Abs(filepath.Join(b.Bin, "gateway"))
	if err != nil {
		return nil, "", nil, err
	}
	text := fmt.Sprintf(gatewayConfig, public, ops, listen, to, development.SigningKeyID, development.SigningSecret, development.LoginKeyID, development.LoginSecret) + more
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, "", nil, err
	}
	minted, err := exec.CommandContext(ctx, binary, "token", "-config", config, "-uid", "1-"+strconv.Itoa(lanes)).Output()
	if err != nil {
		return nil, "", nil, fmt.Errorf("gateway token: %w", err)
	}
	p, err = b.startAlone(ctx, stack.Program{Name: name, Path: binary, Args: []string{"-config", config}, Addrs: []string{public, ops}, Ready: "http://" + ops + "/-/ready"})
	return p, public, strings.Fields(string(minted)), err
}

//go:embed nginx.conf
var nginxText string

var nginxConf = template.Must(template.New("nginx.conf").Parse(nginxText))

// startNginx starts nginx, one worker, which refuses with the bodies that the gateway refuses with.
func (b *bench) startNginx(ctx context.Context, to string, answers map[string]Answer) (*stack.Process, string, error) {
	if err := stack.Install(ctx, b.Progress, b.Log, stack.ForBench); err != nil {
		return nil, "", err
	}
	listen, err := freeAddr()
	if err != nil {
		return nil, "", err
	}
	dir, err := filepath.Abs(b.dir)
	if err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(filepath.Join(dir, "nginx"), 0o755); err != nil {
		return nil, "", err
	}
	var text bytes.Buffer
	body := func(sale int64) string { return string(answers[ordersPath(sale)].Body) }
	if err := nginxConf.Execute(&text, map[string]any{"Modules": stack.NginxModules, "Dir": dir, "Backend": to, "Listen": listen,
		"OpenPath": ordersPath(openSale), "VerifiedPath": verifiedPath, "Secret": development.LoginSecret,
		"GoneSale": goneSale, "Gone": body(goneSale), "NextSale": nextSale, "Next": body(nextSale), "Limited": body(openSale)}); err != nil {
		return nil, "", err
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, text.Bytes(), 0o600); err != nil {
		return nil, "", err
	}
	p, err := b.startAlone(ctx, stack.Program{Name: "nginx", Path: stack.Nginx(), Args: []string{"-p", dir, "-c", config}, Addrs: []string{listen}, Ready: "http://" + listen + readyPath})
	return p, listen, err
}
