package event

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	maxAnswer = 64 << 10 // bytes of an answer that are read, so that its connection can be used again
	maxReason = 200      // characters of an error that are kept
)

// jittered lengthens a pause by up to a tenth, so that what failed together does not come back together.
func jittered(d time.Duration) time.Duration { return d + rand.N(d/10+1) }

// post sends one webhook. Nil: the endpoint answered 2xx. An error holds nothing of the answer's body, nor of the URL.
func (o *outlet) post(ctx context.Context, d delivery) error {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.url, strings.NewReader(d.body))
	if err != nil {
		return plainError(err)
	}
	id, at := webhookID(d.id), o.Clock.Now()
	signature, err := o.hook.Sign(id, at, []byte(d.body))
	if err != nil {
		return plainError(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "floodgate")
	req.Header.Set(standardwebhooks.HeaderWebhookID, id)
	req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	req.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	resp, err := o.client.Do(req)
	if err != nil {
		return plainError(err)
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	switch {
	case resp.StatusCode/100 == 3:
		return fmt.Errorf("it answered %d: redirects are not followed, configure the address itself", resp.StatusCode)
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("it answered %d", resp.StatusCode)
	case err != nil: // it said that it has it; what follows may say otherwise
		return plainError(err)
	}
	return nil
}

// plainError is an error without the URL, bounded.
func plainError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v", tryTime)
	}
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	text := []rune(strings.ToValidUTF8(err.Error(), "?"))
	return errors.New(string(text[:min(len(text), maxReason)]))
}

// newClient makes an endpoint's client. It dials no address that is not public, unless private is true, and asks no proxy, which would
// dial for it.
func newClient(private bool) *http.Client {
	dialer := &net.Dialer{Timeout: tryTime}
	if !private {
		// After the name was looked up, for each address: a name that is public when it is checked and private when it is dialed (DNS
		// rebinding) is refused as well.
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			if !public(to.Addr()) {
				return fmt.Errorf("%v is not a public address: webhooks are sent to no other outside development", to.Addr())
			}
			return nil
		}
	}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: dialer.DialContext, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: atOnce, MaxConnsPerHost: atOnce,
			IdleConnTimeout: time.Minute, TLSHandshakeTimeout: tryTime, MaxResponseHeaderBytes: 64 << 10, DisableCompression: true},
	}
}

// notPublic are the networks beyond those that netip knows which the IANA special-purpose registries (RFC 6890) keep from the internet,
// and those that stand for IPv4 addresses within IPv6.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("100::/64"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

func public(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if !a.IsGlobalUnicast() || a.IsPrivate() {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
