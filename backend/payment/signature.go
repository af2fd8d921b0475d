package payment

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"floodgate.internal/shared/wire"
)

// Tolerance is how far the time of a signature may lie from the server's clock.
const Tolerance = 5 * time.Minute

// Why a signature is refused.
var (
	ErrUnsigned = errors.New("it is not signed as it must be: " + wire.PaymentSignature + ": t=SECONDS,v1=HEX")
	ErrForged   = errors.New("no secret of this provider makes this signature")
	ErrAge      = errors.New("the signature's time is too far off")
)

// verify checks a signature of the form that Stripe made known: "t=1767225600,v1=HEX", where t is seconds since 1970 and
// each v1 a hexadecimal HMAC-SHA256, under one of the secrets, of t as it stands there, a full stop, and the body as it
// came. Several v1 are a provider that is rotating its secret, and other schemes are passed over. The time is looked at
// last, so that what is told of it is told to the provider alone.
//
// Every secret is tried on every v1, in constant time: at most MaxSecrets and some fifteen, which MaxSignature has room for.
func verify(secrets []string, signature string, body []byte, now time.Time) error {
	if len(signature) > wire.MaxSignature {
		return ErrUnsigned
	}
	var stamp string
	var given [][]byte
	for part := range strings.SplitSeq(signature, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "t":
			if stamp != "" {
				return ErrUnsigned
			}
			stamp = value
		case "v1":
			if mac, err := hex.DecodeString(value); err == nil && len(mac) == sha256.Size {
				given = append(given, mac)
			}
		}
	}
	seconds, err := strconv.ParseUint(stamp, 10, 40)
	if err != nil || len(given) == 0 {
		return ErrUnsigned
	}
	genuine := false
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(stamp))
		mac.Write([]byte{'.'})
		mac.Write(body)
		want := mac.Sum(nil)
		for _, got := range given {
			genuine = hmac.Equal(got, want) || genuine
		}
	}
	if !genuine {
		return ErrForged
	}
	if off := now.Sub(time.Unix(int64(seconds), 0)); off > Tolerance || off < -Tolerance {
		return fmt.Errorf("%w: %v, at most %v is taken", ErrAge, off.Round(time.Second), Tolerance)
	}
	return nil
}
