package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"

	"floodgate.internal/e2e/stack"
)

var (
	//go:embed visit_nginx.conf
	visitNginx string
	//go:embed visit_haproxy.cfg
	visitHAProxy string
)

// visited is a program that is visited, without TLS and with it.
type visited struct {
	name       string
	plain, tls door
}

// door is where a process serves.
type door struct {
	process *stack.Process
	addr    string
}

// visits compares whole visits: connect, shake hands, the page, three orders refused as sold out, gone.
func (b *bench) visits(ctx context.Context) (err error) {
	undo, err := b.split()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	stand := Peer{Kind: backend, Sales: sampleSales()}
	if _, err := b.peer(ctx, "visit-backend-peer", &stand, b.start); err != nil {
		return err
	}
	files, err := b.certificate()
	if err != nil {
		return err
	}
	ours, request, err := b.visitGateways(ctx, stand.Listen, files)
	if err != nil {
		return err
	}
	gone, err := (&crowd{addr: ours.plain.addr}).ask(request[1])
	if err != nil || gone.StatusCode() != 409 {
		return fmt.Errorf("an order of a sale that is sold out: %w, %s", err, gone)
	}
	nginx, err := b.visitNginx(ctx, stand.Listen, files, gone.Body())
	if err != nil {
		return err
	}
	haproxy, err := b.visitHAProxy(ctx, stand.Listen, files, gone.Body())
	if err != nil {
		return err
	}
	all := []visited{ours, nginx, haproxy}
	plain := func(v visited) door { return v.plain }
	secure := func(v visited) door { return v.tls }
	for _, how := range []struct {
		what string
		goal float64
		door func(visited) door
		dial func(addr string) func() (net.Conn, error)
	}{
		{"a visit without TLS: connect, page, three refused orders", 1, plain, func(addr string) func() (net.Conn, error) {
			return func() (net.Conn, error) { return net.Dial("tcp", addr) }
		}},
		{"a visit with a full TLS 1.3 handshake", 1.3, secure, func(addr string) func() (net.Conn, error) {
			return shake(addr, files.pool, false)
		}},
		{"a visit with a resumed TLS 1.3 session", 1.3, secure, func(addr string) func() (net.Conn, error) {
			return shake(addr, files.pool, true)
		}},
	} {
		var doors []door
		for _, v := range all {
			doors = append(doors, how.door(v))
		}
		costs, load, err := b.costOfVisits(ctx, max(b.Size/10, lanes), doors, request, how.dial)
		if err != nil {
			return fmt.Errorf("%s: %w", how.what, err)
		}
		for i, rival := range all[1:] {
			b.add(Row{What: how.what, Against: rival.name, Goal: how.goal, Limit: AtMost, Unit: "µs of CPU a visit", Load: load,
				Unequal: "no token is verified: what is sold out needs no user"}, costs[0], costs[i+1])
		}
	}
	return nil
}

// costOfVisits makes n visits a round at each door in turn, and returns what one cost each in each round, and load, what one cost this
// process, in microseconds of CPU time. The first round is not counted.
func (b *bench) costOfVisits(ctx context.Context, n int, doors []door, request [2][]byte, dial func(addr string) func() (net.Conn, error)) (costs [][]float64, load float64, err error) {
	costs = make([][]float64, len(doors))
	dials := make([][lanes]func() (net.Conn, error), len(doors))
	for i, d := range doors {
		for lane := range lanes {
			dials[i][lane] = dial(d.addr)
		}
	}
	var spent time.Duration
	for round := range b.Rounds + 1 {
		for i, d := range doors {
			theirs, mine, err := used(d.process.PID(), func() error {
				var g errgroup.Group
				for lane := range lanes {
					g.Go(func() error {
						for visit := lane; visit < n && ctx.Err() == nil; visit += lanes {
							if err := visitOnce(dials[i][lane], request); err != nil {
								return err
							}
						}
						return ctx.Err()
					})
				}
				return g.Wait()
			})
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %w", d.process.Name(), err)
			}
			if round > 0 {
				spent += mine
				costs[i] = append(costs[i], float64(theirs.Nanoseconds())/float64(n)/1000)
			}
		}
	}
	return costs, float64(spent.Nanoseconds()) / float64(b.Rounds*len(doors)*n) / 1000, nil
}

// used is the CPU time of a process and of this one while do runs.
func used(pid int, do func() error) (theirs, mine time.Duration, err error) {
	before, err1 := cpuOf(pid)
	mineBefore, err2 := cpuOf(os.Getpid())
	if err := errors.Join(err1, err2, do()); err != nil {
		return 0, 0, err
	}
	mineAfter, err1 := cpuOf(os.Getpid())
	after, err2 := cpuOf(pid)
	return after - before, mineAfter - mineBefore, errors.Join(err1, err2)
}

// visitOnce connects, asks for the page once and orders three times.
func visitOnce(dial func() (net.Conn, error), request [2][]byte) error {
	conn, err := dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	var answer fasthttp.Response
	for i, want := range []int{200, 409, 409, 409} {
		if _, err := conn.Write(request[min(i, 1)]); err != nil {
			return err
		}
		if err := answer.Read(in); err != nil {
			return err
		}
		if answer.StatusCode() != want {
			return fmt.Errorf("answered %d, not %d: %.300s", answer.StatusCode(), want, answer.Body())
		}
	}
	return nil
}

// shake connects with TLS 1.3 and X25519, which all of them know. Where it resumes, every connection but the first resumes the session of the one before.
func shake(addr string, roots *x509.CertPool, resumes bool) func() (net.Conn, error) {
	config := &tls.Config{RootCAs: roots, ServerName: "shop.example", MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.X25519}}
	if resumes {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	}
	first := true
	return func() (net.Conn, error) {
		conn, err := tls.Dial("tcp", addr, config)
		if err != nil {
			return nil, err
		}
		if resumed := conn.ConnectionState().DidResume; resumed != (resumes && !first) {
			conn.Close()
			return nil, fmt.Errorf("the session is resumed: %v", resumed)
		}
		first = false
		return conn, nil
	}
}

// visitGateways starts a gateway without TLS and one with it, and returns the requests of a visit.
func (b *bench) visitGateways(ctx context.Context, to string, f certificateFiles) (v visited, request [2][]byte, err error) {
	v.name = "the gateway"
	var tokens []string
	if v.plain.process, v.plain.addr, tokens, err = b.startGateway(ctx, "visit-gateway", to, "", ""); err != nil {
		return v, request, err
	}
	secure := fmt.Sprintf(", tls: {certificates: [{certificate: %q, key: %q}]}", f.certificate, f.key)
	if v.tls.process, v.tls.addr, _, err = b.startGateway(ctx, "visit-gateway-tls", to, secure, ""); err != nil {
		return v, request, err
	}
	const browser = "Host: shop.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\n"
	request[0] = []byte("GET /v1/sales HTTP/1.1\r\n" + browser + "\r\n")
	request[1] = fmt.Appendf(nil, "POST %s HTTP/1.1\r\n%sAuthorization: Bearer %s\r\nContent-Type: application/json\r\nIdempotency-Key: a-key\r\nContent-Length: 14\r\n\r\n{\"quantity\":1}",
		ordersPath(goneSale), browser, tokens[0])
	return v, request, nil
}

// visitNginx starts nginx, one worker.
func (b *bench) visitNginx(ctx context.Context, to string, f certificateFiles, gone []byte) (visited, error) {
	return b.visitRival(ctx, "nginx", func(plain, secure string) (stack.Program, error) {
		dir, err := filepath.Abs(b.dir)
		if err != nil {
			return stack.Program{}, err
		}
		if err := os.MkdirAll(filepath.Join(dir, "nginx"), 0o755); err != nil {
			return stack.Program{}, err
		}
		config, err := b.fill("visit_nginx.conf", visitNginx, map[string]any{"Modules": stack.NginxModules, "Dir": dir, "Backend": to, "Plain": plain, "TLS": secure,
			"Certificate": f.certificate, "Key": f.key, "Ready": readyPath, "GoneSale": goneSale, "Gone": string(gone)})
		return stack.Program{Path: stack.Nginx(), Args: []string{"-p", dir, "-c", config}}, err
	})
}

// visitHAProxy starts HAProxy, one thread.
func (b *bench) visitHAProxy(ctx context.Context, to string, f certificateFiles, gone []byte) (visited, error) {
	return b.visitRival(ctx, "HAProxy", func(plain, secure string) (stack.Program, error) {
		body, err1 := b.write("visit_gone.json", gone)
		list, err2 := b.write("visit_gone.map", []byte(ordersPath(goneSale)+" 1\n"))
		config, err3 := b.fill("visit_haproxy.cfg", visitHAProxy, map[string]any{"Backend": to, "Plain": plain, "TLS": secure, "Both": f.both, "Ready": readyPath,
			"GoneFile": body, "Map": list})
		return stack.Program{Path: stack.HAProxy(), Args: []string{"-db", "-f", config}}, errors.Join(err1, err2, err3)
	})
}

// visitRival starts what make has configured to serve at two addresses.
func (b *bench) visitRival(ctx context.Context, name string, make func(plain, secure string) (stack.Program, error)) (visited, error) {
	if err := stack.Install(ctx, b.Progress, b.Log, stack.ForBench); err != nil {
		return visited{}, err
	}
	plain, err1 := freeAddr()
	secure, err2 := freeAddr()
	if err := errors.Join(err1, err2); err != nil {
		return visited{}, err
	}
	program, err := make(plain, secure)
	if err != nil {
		return visited{}, err
	}
	program.Name, program.Addrs, program.Ready = "visit-"+name, []string{plain, secure}, "http://"+plain+readyPath
	p, err := b.startAlone(ctx, program)
	return visited{name, door{p, plain}, door{p, secure}}, err
}

// certificateFiles is a certificate of shop.example, which all that are visited have.
type certificateFiles struct {
	certificate, key, both string
	pool                   *x509.CertPool
}

func (b *bench) certificate() (f certificateFiles, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return f, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "shop.example"}, DNSNames: []string{"shop.example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return f, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return f, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	f.pool = x509.NewCertPool()
	f.pool.AppendCertsFromPEM(certificate)
	for _, file := range []struct {
		name string
		text []byte
		path *string
	}{{"visit.crt", certificate, &f.certificate}, {"visit.key", private, &f.key}, {"visit.pem", append(certificate, private...), &f.both}} {
		if *file.path, err = b.write(file.name, file.text); err != nil {
			return f, err
		}
	}
	return f, nil
}

// write writes a file of this run, and returns its whole path.
func (b *bench) write(name string, text []byte) (path string, err error) {
	if path, err = filepath.Abs(filepath.Join(b.dir, name)); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, text, 0o600)
}

// fill writes a configuration file made of a template.
func (b *bench) fill(name, text string, values map[string]any) (string, error) {
	t, err := template.New(name).Parse(text)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, values); err != nil {
		return "", err
	}
	return b.write(name, out.Bytes())
}
