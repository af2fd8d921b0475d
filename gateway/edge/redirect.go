package edge

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"floodgate.internal/shared/problem"
)

// Redirect is what a plain HTTP listener leads to.
type Redirect struct {
	Covers   func(host string) bool // a certificate is for the host
	From, To string                 // the ports of the plain listener and of the public one
}

// ServeRedirect answers on ln, one request a connection: a GET or HEAD of a host that has a certificate with 308 to https, all else
// with 403 or what is wrong with it. Connections count against l's bounds and begin as l's do, without TLS. It returns after ln is
// closed, once all of them are done.
func (l *Listener) ServeRedirect(ln net.Listener, r Redirect) error {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		inner, err := ln.Accept()
		switch {
		case outOfResources(err):
			l.failed.Inc()
			time.Sleep(acceptPause)
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return err
		default:
			if c := l.admitPlain(inner); c != nil {
				all.Go(func() {
					r.serve(c)
					c.Close()
				})
			}
		}
	}
}

// admitPlain is admit without TLS.
func (l *Listener) admitPlain(inner net.Conn) *conn {
	t := l.transport.Load()
	if t != nil {
		t = &transport{Transport: Transport{ProxyProtocol: t.ProxyProtocol}}
	}
	return l.admitBy(inner, t)
}

// serve reads one head and answers it.
func (r *Redirect) serve(c *conn) {
	if c.handshake != nil && c.begin() != nil {
		return
	}
	within := c.listener.readTimeout()
	c.Conn.SetDeadline(time.Now().Add(within))
	b := make([]byte, 0, maxRedirectHead)
	end := -1
	for end < 0 {
		n, err := c.Conn.Read(b[len(b):cap(b)])
		if b = b[:len(b)+n]; err != nil {
			return
		}
		end = bytes.Index(b, headEnd)
		if end < 0 && (looseLineEnd(b) || len(b) == cap(b)) {
			break
		}
	}
	c.Conn.SetWriteDeadline(time.Now().Add(within))
	c.Conn.Write(r.answer(b, end))
	c.linger.Store(true)
}

// maxRedirectHead is the longest head that is redirected.
const maxRedirectHead = 4096

var (
	redirectBad       = wholeResponse(problem.New(problem.BadRequest, "this is not a request that could be read; this port leads to https only"))
	redirectForbidden = wholeResponse(problem.New(problem.Forbidden, "this port leads to https only, and only with GET"))
)

// answer is the whole answer to a head, which ends at end; -1: it does not.
func (r *Redirect) answer(b []byte, end int) []byte {
	var h head
	if end < 0 || checkHead(b[:end+len(headEnd)], &h) != nil || !printable(b[:end+len(headEnd)]) {
		return redirectBad
	}
	method, rest, _ := bytes.Cut(h.line, space)
	target, _, _ := bytes.Cut(rest, space)
	if m := string(method); m != fasthttp.MethodGet && m != fasthttp.MethodHead {
		return redirectForbidden
	}
	host, port, withPort := bytes.Cut(h.host, []byte(":"))
	if !h.plainHost || !bytes.HasPrefix(target, []byte("/")) || !r.Covers(string(host)) {
		return redirectForbidden
	}
	// Who reaches this port by its own number reaches the public one by its own, too. Otherwise a balancer maps the usual ports.
	to := ""
	if asked := string(port); asked == r.From || !withPort && r.From == "80" {
		to = r.To
	}
	answer := append([]byte("HTTP/1.1 308 Permanent Redirect\r\nLocation: https://"), host...)
	if to != "" && to != "443" {
		answer = append(append(answer, ':'), to...)
	}
	answer = append(answer, target...)
	return append(answer, "\r\nContent-Length: 0\r\nConnection: close\r\nX-Content-Type-Options: nosniff\r\n\r\n"...)
}
