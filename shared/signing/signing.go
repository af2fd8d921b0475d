// Package signing is how a backend knows that a request comes from one of its gateways: an HMAC-SHA256 over the method,
// the target, the user, the time, a nonce, the Idempotency-Key, the client's network and the deadline where they are named,
// and the body's hash. An answer carries the request's nonce back: it is the answer to no other.
package signing

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// The headers of a signed request. UID is absent where there is no user, Client where no network is told, Deadline where
// somebody waits for as long as it takes. A backend that is older than one of them refuses what carries it, so backends are
// upgraded before gateways.
const (
	HeaderKey       = "Floodgate-Key"
	HeaderTime      = "Floodgate-Time" // milliseconds since 1970, by the server's clock
	HeaderNonce     = "Floodgate-Nonce"
	HeaderUID       = "Floodgate-Uid"
	HeaderClient    = "Floodgate-Client"   // the client's network, like 203.0.113.0/24 or 2001:db8:1:2::/64
	HeaderDeadline  = "Floodgate-Deadline" // milliseconds since 1970, by the server's clock: who asked is gone then
	HeaderSignature = "Floodgate-Signature"
	headerIdemKey   = "Idempotency-Key"
)

// Window is how far a request's time may lie from the backend's clock.
const Window = 30 * time.Second

// MinSecret is the least length of a key's secret, in bytes.
const MinSecret = 32

// Why a request was refused.
var (
	ErrUnsigned = errors.New("the request is not signed")
	ErrKey      = errors.New("unknown signing key")
	ErrTime     = errors.New("the signature's time is outside the window")
	ErrMismatch = errors.New("the signature does not match")
)

// Key is one shared secret and the id under which both sides know it.
type Key struct {
	ID     string
	Secret string
}

// Signer signs requests with one key. It is safe for concurrent use.
type Signer struct {
	id   string
	macs *sync.Pool // of hash.Hash
}

// NewSigner returns a signer for the key.
func NewSigner(k Key) *Signer {
	return &Signer{id: k.ID, macs: macPool(k.Secret)}
}

func macPool(secret string) *sync.Pool {
	return &sync.Pool{New: func() any { return hmac.New(sha256.New, []byte(secret)) }}
}

// Sign adds the signature to req, in the name of uid ("" for nobody). Everything that is signed must be set before:
// method, URI, Idempotency-Key, Floodgate-Client, Floodgate-Deadline, body.
func (s *Signer) Sign(req *fasthttp.Request, uid string, now time.Time) {
	h := &req.Header
	var nonce [16]byte
	rand.Read(nonce[:]) // never fails: crypto/rand
	var buf [32]byte
	h.Set(HeaderKey, s.id)
	h.SetBytesV(HeaderTime, strconv.AppendInt(buf[:0], now.UnixMilli(), 10))
	h.SetBytesV(HeaderNonce, hex.AppendEncode(buf[:0], nonce[:]))
	if uid != "" {
		h.Set(HeaderUID, uid)
	} else {
		h.Del(HeaderUID)
	}
	mac := s.macs.Get().(hash.Hash)
	var sum [sha256.Size]byte
	var text [2 * sha256.Size]byte
	h.SetBytesV(HeaderSignature, hex.AppendEncode(text[:0], sign(mac, req, sum[:0])))
	s.macs.Put(mac)
}

// sign appends the signature of what req says. Each part ends with a newline, which none of them can hold.
func sign(mac hash.Hash, req *fasthttp.Request, dst []byte) []byte {
	h := &req.Header
	mac.Reset()
	part := func(b []byte) { mac.Write(b); mac.Write(newline) }
	part(h.Method())
	part(h.RequestURI())
	part(h.Peek(HeaderUID))
	part(h.Peek(HeaderTime))
	part(h.Peek(HeaderNonce))
	part(h.Peek(headerIdemKey))
	if client := h.Peek(HeaderClient); len(client) > 0 { // one line more or less: what has it never reads as what has not
		part(client)
	}
	if deadline := h.Peek(HeaderDeadline); len(deadline) > 0 { // two more, of which the first is as empty as no network is
		part(nil)
		part(deadline)
	}
	body := sha256.Sum256(req.Body())
	part(body[:])
	return mac.Sum(dst)
}

var newline = []byte{'\n'}

// Verifier checks signatures against any number of keys. It is safe for concurrent use.
//
// It keeps no memory of nonces: the very same request sent again within the Window is taken again, and does what a
// repeated request does (an order is answered ALREADY_ORDERED, a payment is paid already).
type Verifier struct{ macs map[string]*sync.Pool }

// NewVerifier returns a verifier that knows these keys.
func NewVerifier(keys ...Key) *Verifier {
	v := &Verifier{macs: map[string]*sync.Pool{}}
	for _, k := range keys {
		v.macs[k.ID] = macPool(k.Secret)
	}
	return v
}

// Verify returns the user in whose name the request was signed, "" for nobody.
func (v *Verifier) Verify(req *fasthttp.Request, now time.Time) (uid string, err error) {
	h := &req.Header
	got := h.Peek(HeaderSignature)
	if len(got) == 0 {
		return "", ErrUnsigned
	}
	pool := v.macs[string(h.Peek(HeaderKey))]
	if pool == nil {
		return "", ErrKey
	}
	ms, err := strconv.ParseInt(string(h.Peek(HeaderTime)), 10, 64)
	if err != nil {
		return "", ErrTime
	}
	at := time.UnixMilli(ms)
	if d := now.Sub(at); d > Window || d < -Window {
		return "", fmt.Errorf("%w: %v off, at most %v allowed", ErrTime, d.Round(time.Millisecond), Window)
	}
	mac := pool.Get().(hash.Hash)
	var sum [sha256.Size]byte
	var text [2 * sha256.Size]byte
	want := hex.AppendEncode(text[:0], sign(mac, req, sum[:0]))
	pool.Put(mac)
	if !hmac.Equal(got, want) {
		return "", ErrMismatch
	}
	return string(h.Peek(HeaderUID)), nil
}
