package bench

import (
	"bytes"
	"context"
	_ "embed"
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
listen: {public: %q, ops: %q}
backends: ["http://%s"]
signing_key: {id: %s, secret: %s}
identity:
  keys:
    - {kid: %s, alg: HS256, secret: %s, sign: true}
limits:
  order: {rate: 0.0001, burst: 1, max_keys: 1000000}
  read: {rate: 1000000, burst: 1000000, max_keys: 1000000}
  ip: {rate: 1000000, burst: 1000000, max_keys: 1000000}
log: {level: warn}
`

// gateway compares the gateway with a bare fasthttp server, a bare fasthttp proxy and nginx.
func (b *bench) gateway(ctx context.Context) error {
	stand := Peer{Kind: backend, Sales: sampleSales()}
	if _, err := b.peer(ctx, "backend-peer", &stand); err != nil {
		return err
	}
	gate, public, tokens, err := b.startGateway(ctx, stand.Listen)
	if err != nil {
		return err
	}
	order := func(sale int64, token, key string) []byte {
		return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nIdempotency-Key: %s\r\nContent-Length: 14\r\n\r\n{\"quantity\":1}",
			ordersPath(sale), token, key)
	}
	get := func(path, token string) []byte {
		authorization := ""
		if token != "" {
			authorization = "Authorization: Bearer " + token + "\r\n"
		}
		return []byte("GET " + path + " HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\n" + authorization + "\r\n")
	}
	var presses, statuses [][]byte
	for i, token := range tokens {
		presses = append(presses, order(openSale, token, "the-second-press"))
		statuses = append(statuses, get(wire.OrderPath(anOrder(i)), token))
	}
	at := &crowd{addr: public}
	for _, token := range tokens { // each user's only one
		if a, err := at.ask(order(openSale, token, "the-first-press")); err != nil || a.StatusCode() != 202 {
			return fmt.Errorf("a first press: %v, %s", err, a)
		}
	}
	compared := []struct {
		row    Row
		kind   string
		status int
		nginx  float64 // the goal against nginx; 0: none; -1: not compared
		asked  func(n int) [][]byte
		one    []byte
		path   string
	}{
		{Row{What: "an order refused as sold out", Goal: 1.25, AtMost: true}, bare, 409, 0.8, nil, order(goneSale, tokens[0], "a-key"), ordersPath(goneSale)},
		{Row{What: "an order refused before the start", Goal: 1.25, AtMost: true}, bare, 403, -1, nil, order(nextSale, tokens[0], "a-key"), ordersPath(nextSale)},
		{Row{What: "an order refused by the user's limit", Goal: 1.25, AtMost: true}, bare, 429, 0.8, always(presses...), presses[0], ordersPath(openSale)},
		{Row{What: "a page of 4 KB out of the cache", Goal: 1.1, AtMost: true}, bare, 200, 1, nil, get("/v1/sales", ""), "/v1/sales"},
		{Row{What: "an order's status, passed on to the backend", Goal: 1.1, AtMost: true}, proxy, 200, 0, always(statuses...), statuses[0], ""},
	}
	answers := Peer{Kind: bare, Answers: map[string]Answer{}}
	for _, c := range compared {
		a, err := at.ask(c.one)
		if err != nil || a.StatusCode() != c.status {
			return fmt.Errorf("%s: %v, %s", c.row.What, err, a)
		}
		answers.Answers[c.path] = answerOf(a)
	}
	plain, err := b.peer(ctx, "bare", &answers)
	if err != nil {
		return err
	}
	pass := Peer{Kind: proxy, To: stand.Listen}
	passing, err := b.peer(ctx, "proxy", &pass)
	if err != nil {
		return err
	}
	nginx, nginxAddr, err := b.startNginx(ctx, stand.Listen, answers.Answers[ordersPath(goneSale)].Body, answers.Answers[ordersPath(openSale)].Body)
	if err != nil {
		return err
	}
	for _, c := range compared {
		if c.asked == nil {
			c.asked = always(c.one)
		}
		sides := []side{{gate, public, c.status, c.asked}, {plain, answers.Listen, c.status, c.asked}}
		c.row.Against = "a bare fasthttp server with the same bytes"
		if c.kind == proxy {
			sides[1] = side{passing, pass.Listen, c.status, c.asked}
			c.row.Against = "a bare fasthttp proxy"
		}
		if c.nginx >= 0 {
			sides = append(sides, side{nginx, nginxAddr, c.status, c.asked})
		}
		if c.status == 429 {
			if err := spend(nginxAddr, presses); err != nil {
				return err
			}
		}
		costs, err := b.cpuOfEach(ctx, b.Size, sides...)
		if err != nil {
			return fmt.Errorf("%s: %w", c.row.What, err)
		}
		c.row.Unit = "µs of CPU a request"
		b.add(c.row, costs[0], costs[1])
		if c.nginx >= 0 {
			c.row.Against, c.row.Goal = "nginx", c.nginx
			b.add(c.row, costs[0], costs[2])
		}
	}
	return nil
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

func (b *bench) startGateway(ctx context.Context, to string) (p *stack.Process, public string, tokens []string, err error) {
	if public, err = freeAddr(); err != nil {
		return nil, "", nil, err
	}
	ops, err := freeAddr()
	if err != nil {
		return nil, "", nil, err
	}
	config, err := filepath.Abs(filepath.Join(b.dir, "gateway.yaml"))
	if err != nil {
		return nil, "", nil, err
	}
	binary, err := filepath.Abs(filepath.Join(b.Bin, "gateway"))
	if err != nil {
		return nil, "", nil, err
	}
	text := fmt.Sprintf(gatewayConfig, public, ops, to, development.SigningKeyID, development.SigningSecret, development.LoginKeyID, development.LoginSecret)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, "", nil, err
	}
	minted, err := exec.CommandContext(ctx, binary, "token", "-config", config, "-uid", "1-"+strconv.Itoa(lanes)).Output()
	if err != nil {
		return nil, "", nil, fmt.Errorf("gateway token: %w", err)
	}
	p, err = b.start(ctx, stack.Program{Name: "gateway", Path: binary, Args: []string{"-config", config}, Addrs: []string{public, ops}, Ready: "http://" + ops + "/-/ready"})
	return p, public, strings.Fields(string(minted)), err
}

//go:embed nginx.conf
var nginxText string

var nginxConf = template.Must(template.New("nginx.conf").Parse(nginxText))

// startNginx starts nginx, which refuses with the bodies that the gateway refuses with.
func (b *bench) startNginx(ctx context.Context, to string, gone, limited []byte) (*stack.Process, string, error) {
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
	if err := nginxConf.Execute(&text, map[string]any{"Modules": stack.NginxModules, "Dir": dir, "GoneSale": goneSale, "Backend": to, "Listen": listen,
		"OpenPath": ordersPath(openSale), "Gone": string(gone), "Limited": string(limited)}); err != nil {
		return nil, "", err
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, text.Bytes(), 0o600); err != nil {
		return nil, "", err
	}
	p, err := b.start(ctx, stack.Program{Name: "nginx", Path: stack.Nginx(), Args: []string{"-p", dir, "-c", config}, Addrs: []string{listen}, Ready: "http://" + listen + readyPath})
	return p, listen, err
}
