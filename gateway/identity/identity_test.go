package identity

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"floodgate.internal/shared/wire"
)

type fixture struct {
	*Verifier
	pub  ed25519.PublicKey
	priv ed25519.PrivateKey
	now  time.Time
}

const secret = "0123456789abcdef0123456789abcdef"

func setup(t testing.TB) *fixture {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{pub: pub, priv: priv, now: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)}
	f.Verifier, err = NewVerifier([]Key{
		{KID: "ed", Alg: "EdDSA", PublicKey: base64.StdEncoding.EncodeToString(pub)},
		{KID: "hs", Alg: "HS256", Secret: secret, Sign: true},
	}, Rules{Leeway: 30 * time.Second}, func() time.Time { return f.now })
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func b64(v any) string {
	b, ok := v.([]byte)
	if !ok {
		if s, isText := v.(string); isText {
			b = []byte(s)
		} else {
			b, _ = json.Marshal(v)
		}
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

type m = map[string]any

func hs(header, claims any, key string) string {
	text := b64(header) + "." + b64(claims)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return text + "." + b64(mac.Sum(nil))
}

func (f *fixture) ed(header, claims any) string {
	text := b64(header) + "." + b64(claims)
	return text + "." + b64(ed25519.Sign(f.priv, []byte(text)))
}

// Row D11: only a valid token is a login.
func TestTokens(t *testing.T) {
	t.Attr("row", "D11")
	f := setup(t)
	unix := f.now.Unix()
	good := m{"sub": "7", "exp": unix + 60}
	hsHead, edHead := m{"alg": "HS256", "kid": "hs"}, m{"alg": "EdDSA", "kid": "ed"}
	with := func(kv ...any) m {
		c := m{"sub": "7", "exp": unix + 60}
		for i := 0; i < len(kv); i += 2 {
			if kv[i+1] == nil {
				delete(c, kv[i].(string))
			} else {
				c[kv[i].(string)] = kv[i+1]
			}
		}
		return c
	}
	pemPub, _ := x509.MarshalPKIXPublicKey(f.pub)
	pemText := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pemPub}))
	parts := strings.Split(hs(hsHead, good, secret), ".")
	cases := []struct {
		name, token string
		want        error
	}{
		{"HS256", hs(hsHead, good, secret), nil},
		{"EdDSA", f.ed(edHead, good), nil},
		{"iat in the past", hs(hsHead, with("iat", unix-5), secret), nil},
		{"expired within the leeway", hs(hsHead, with("exp", unix-29), secret), nil},
		{"nbf within the leeway", hs(hsHead, with("nbf", unix+29), secret), nil},
		{"nothing", "", ErrMissing},
		{"expired", hs(hsHead, with("exp", unix-31), secret), ErrExpired},
		{"nbf", hs(hsHead, with("nbf", unix+31), secret), ErrEarly},
		{"iat to come", hs(hsHead, with("iat", unix+31), secret), ErrEarly},
		{"no exp", hs(hsHead, with("exp", nil), secret), ErrInvalid},
		{"exp a string", hs(hsHead, with("exp", "tomorrow"), secret), ErrInvalid},
		{"no sub", hs(hsHead, with("sub", nil), secret), ErrSubject},
		{"sub empty", hs(hsHead, with("sub", ""), secret), ErrSubject},
		{"sub a number", hs(hsHead, with("sub", 7), secret), ErrInvalid},
		{"sub an array", hs(hsHead, with("sub", []string{"7"}), secret), ErrInvalid},
		{"sub an object", hs(hsHead, with("sub", m{}), secret), ErrInvalid},
		{"sub of 65", hs(hsHead, with("sub", strings.Repeat("a", 65)), secret), ErrSubject},
		{"sub of 2 KB", hs(hsHead, with("sub", strings.Repeat("a", 2<<10)), secret), ErrSubject},
		{"sub of 10 KB", hs(hsHead, with("sub", strings.Repeat("a", 10<<10)), secret), ErrInvalid},
		{"sub with a newline", hs(hsHead, with("sub", "7\n"), secret), ErrSubject},
		{"sub with NUL", hs(hsHead, with("sub", "7\x00"), secret), ErrSubject},
		{"sub with a space", hs(hsHead, with("sub", "7 8"), secret), ErrSubject},
		{"sub a path", hs(hsHead, with("sub", "../7"), secret), ErrSubject},
		{"sub in another script", hs(hsHead, with("sub", "пять"), secret), ErrSubject},
		{"wrong secret", hs(hsHead, good, secret+"x"), ErrInvalid},
		{"HS256 with the public key, base64", hs(m{"alg": "HS256", "kid": "ed"}, good, base64.StdEncoding.EncodeToString(f.pub)), ErrInvalid},
		{"HS256 with the public key, raw", hs(m{"alg": "HS256", "kid": "ed"}, good, string(f.pub)), ErrInvalid},
		{"HS256 with the public key, PEM", hs(m{"alg": "HS256", "kid": "ed"}, good, pemText), ErrInvalid},
		{"EdDSA under the HS256 kid", f.ed(m{"alg": "EdDSA", "kid": "hs"}, good), ErrInvalid},
		{"kid of the other key", hs(m{"alg": "HS256", "kid": "ed"}, good, secret), ErrInvalid},
		{"unknown kid", hs(m{"alg": "HS256", "kid": "other"}, good, secret), ErrInvalid},
		{"no kid", hs(m{"alg": "HS256"}, good, secret), ErrInvalid},
		{"kid empty", hs(m{"alg": "HS256", "kid": ""}, good, secret), ErrInvalid},
		{"kid a number", hs(m{"alg": "HS256", "kid": 1}, good, secret), ErrInvalid},
		{"kid an array", hs(m{"alg": "HS256", "kid": []string{"hs"}}, good, secret), ErrInvalid},
		{"kid a path", hs(m{"alg": "HS256", "kid": "../../dev/null"}, good, secret), ErrInvalid},
		{"kid a path, empty key", hs(m{"alg": "HS256", "kid": "/dev/null"}, good, ""), ErrInvalid},
		{"kid an injection", hs(m{"alg": "HS256", "kid": "hs' OR 1=1"}, good, secret), ErrInvalid},
		{"kid with NUL", hs(m{"alg": "HS256", "kid": "hs\x00"}, good, secret), ErrInvalid},
		{"no alg", hs(m{"kid": "hs"}, good, secret), ErrInvalid},
		{"alg none", hs(m{"alg": "none", "kid": "hs"}, good, secret), ErrInvalid},
		{"alg none, unsigned", b64(m{"alg": "none", "kid": "hs"}) + "." + b64(good) + ".", ErrInvalid},
		{"alg None", b64(m{"alg": "None", "kid": "hs"}) + "." + b64(good) + ".", ErrInvalid},
		{"alg nOnE", b64(m{"alg": "nOnE", "kid": "hs"}) + "." + b64(good) + ".", ErrInvalid},
		{"alg empty", b64(m{"alg": "", "kid": "hs"}) + "." + b64(good) + ".", ErrInvalid},
		{"alg hs256", hs(m{"alg": "hs256", "kid": "hs"}, good, secret), ErrInvalid},
		{"alg HS384", hs(m{"alg": "HS384", "kid": "hs"}, good, secret), ErrInvalid},
		{"alg HS512", hs(m{"alg": "HS512", "kid": "hs"}, good, secret), ErrInvalid},
		{"alg RS256", hs(m{"alg": "RS256", "kid": "hs"}, good, secret), ErrInvalid},
		{"alg ES256", hs(m{"alg": "ES256", "kid": "ed"}, good, secret), ErrInvalid},
		{"alg a number", hs(m{"alg": 256, "kid": "hs"}, good, secret), ErrInvalid},
		{"jwk in the header", hs(m{"alg": "HS256", "jwk": m{"kty": "oct", "k": b64("k")}}, good, "k"), ErrInvalid},
		{"crit", hs(m{"alg": "HS256", "kid": "hs", "crit": []string{"b64"}, "b64": false}, good, secret), ErrInvalid},
		{"unsigned", parts[0] + "." + parts[1] + ".", ErrInvalid},
		{"two parts", parts[0] + "." + parts[1], ErrInvalid},
		{"four parts", strings.Join(parts, ".") + ".x", ErrInvalid},
		{"dots", "..", ErrInvalid},
		{"one dot", ".", ErrInvalid},
		{"rubbish", "rubbish", ErrInvalid},
		{"padding", strings.Join(parts, ".") + "=", ErrInvalid},
		{"a space at the end", strings.Join(parts, ".") + " ", ErrInvalid},
		{"a newline inside", parts[0] + "." + parts[1] + ".\n" + parts[2], ErrInvalid},
		{"claims of another token", parts[0] + "." + b64(with("sub", "8")) + "." + parts[2], ErrInvalid},
		{"header no JSON", hs("x", good, secret), ErrInvalid},
		{"header an array", hs([]any{}, good, secret), ErrInvalid},
		{"header null", hs("null", good, secret), ErrInvalid},
		{"claims no JSON", hs(hsHead, "x", secret), ErrInvalid},
		{"claims an array", hs(hsHead, []any{}, secret), ErrInvalid},
		{"claims null", hs(hsHead, "null", secret), ErrInvalid},
		{"10 KB", strings.Repeat("a", 10<<10), ErrInvalid},
	}
	for round := range 2 { // the second time from memory
		for _, c := range cases {
			who, err := f.Verify([]byte(c.token))
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || (err == nil && who.UID != "7") {
				t.Errorf("%s, round %d: got %+v, %v; want %v", c.name, round, who, err, c.want)
			}
		}
	}
	t.Logf("%d tokens", len(cases))
}

// Every change of a good token is refused as invalid, also when the good one is remembered: each byte made another, left out, put
// twice, each prefix, each suffix, each part taken from a token of another user.
func TestMutations(t *testing.T) {
	f := setup(t)
	hsToken := func(uid string) string {
		return hs(m{"alg": "HS256", "kid": "hs"}, m{"sub": uid, "exp": f.now.Unix() + 60}, secret)
	}
	edToken := func(uid string) string {
		return f.ed(m{"alg": "EdDSA", "kid": "ed"}, m{"sub": uid, "exp": f.now.Unix() + 60})
	}
	for _, of := range []func(string) string{hsToken, edToken} {
		good, others := of("7"), []string{of("8"), hsToken("7"), edToken("7")}
		if _, err := f.Verify([]byte(good)); err != nil {
			t.Fatal(err)
		}
		n := 0
		refused := func(what, bad string) {
			t.Helper()
			if bad == good {
				return
			}
			n++
			if who, err := f.Verify([]byte(bad)); !errors.Is(err, ErrInvalid) {
				t.Fatalf("%s: got %+v, %v; want ErrInvalid: %s", what, who, err, bad)
			}
		}
		for i := range good {
			before, after := good[:i], good[i+1:]
			for _, c := range []string{"A", "b", ".", "_", "\x00", "\n", "=", "\xff", string(good[i] ^ 1), string(good[i] ^ 0x20)} {
				refused(fmt.Sprintf("byte %d as %q", i, c), before+c+after)
			}
			refused(fmt.Sprint("without byte ", i), before+after)
			refused(fmt.Sprint("byte twice ", i), good[:i+1]+good[i:])
			if i > 0 {
				refused(fmt.Sprint("cut before ", i), before)
			}
			refused(fmt.Sprint("begun at ", i+1), after+"A")
		}
		for c := range 256 {
			refused(fmt.Sprintf("%q behind", byte(c)), good+string([]byte{byte(c)}))
			refused(fmt.Sprintf("%q before", byte(c)), string([]byte{byte(c)})+good)
		}
		mine := strings.Split(good, ".")
		for _, other := range others {
			for i, part := range strings.Split(other, ".") {
				for j := range mine {
					parts := slices.Clone(mine)
					parts[j] = part
					if joined := strings.Join(parts, "."); !slices.Contains(others, joined) {
						refused(fmt.Sprintf("part %d of another as %d", i, j), joined)
					}
				}
			}
		}
		t.Logf("%d mutations", n)
	}
}

// Tokens that the key did sign, whatever they say.
func TestSignedClaims(t *testing.T) {
	f := setup(t)
	type claim struct {
		text string // the members of the claims
		want error
	}
	unix := f.now.Unix()
	with := func(format string, args ...any) string { return fmt.Sprintf(format, args...) }
	cases := []claim{
		{with(`"exp":%d`, unix+60), ErrSubject},
		{with(`"sub":"7","sub":"8","exp":%d`, unix+60), ErrInvalid},
		{with(`"sub":"8","\u0073ub":"7","exp":%d`, unix+60), ErrInvalid},
		{with(`"sub":"7","exp":1,"exp":%d`, unix+60), ErrInvalid},
		{with(`"\u0073ub":"7","exp":%d`, unix+60), nil},
		{with(`"sub":"\u0037","exp":%d`, unix+60), nil},
		{with(`"sub":"7","exp":%d`, unix+60) + "}{", ErrInvalid},
		{with(`"sub":"7","exp":%d,`, unix+60), ErrInvalid},
		{with(`"sub":"7","exp":%d,"x":"%c"`, unix+60, 0), ErrInvalid},
		{with(`"sub":"7","exp":%d,"x":"`, unix+60) + "\xff\"", ErrInvalid},
		{with(`"sub":"7","exp":%d,"x":%s`, unix+60, strings.Repeat("[", 600)+strings.Repeat("]", 600)), nil},
	}
	for c := range rune(0x80) { // every ASCII character in a user's id
		want := ErrSubject
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", c) {
			want = nil
		}
		uid, _ := json.Marshal("7" + string(c))
		cases = append(cases, claim{with(`"sub":%s,"exp":%d`, uid, unix+60), want})
	}
	for n := 1; n <= 130; n += 3 {
		want := error(nil)
		if n > 64 {
			want = ErrSubject
		}
		cases = append(cases, claim{with(`"sub":"%s","exp":%d`, strings.Repeat("7", n), unix+60), want})
	}
	for _, name := range []string{"Sub", "SUB", "sUb", "ſub", " sub", "sub ", "uid", "user_id", "client_id", "email", "preferred_username"} { // ſ folds to s
		cases = append(cases, claim{with(`%q:"7","exp":%d`, name, unix+60), ErrSubject}, claim{with(`"sub":"7",%q:"8","exp":%d`, name, unix+60), nil},
			claim{with(`%q:"8","sub":"7","exp":%d`, name, unix+60), nil})
	}
	for _, name := range []string{"Exp", "EXP", "expires", "exp "} {
		cases = append(cases, claim{with(`"sub":"7",%q:%d`, name, unix+60), ErrInvalid}, claim{with(`"sub":"7","exp":%d,%q:%d`, unix-60, name, unix+60), ErrExpired})
	}
	for _, v := range []string{"7", "7.0", "-1", "0", "1e3", "true", "false", "[]", `["7"]`, `["7","8"]`, "{}", `{"sub":"7"}`, "[[]]", "[null]"} {
		cases = append(cases, claim{with(`"sub":%s,"exp":%d`, v, unix+60), ErrInvalid})
	}
	for _, v := range []string{`""`, "null", `"\u0000"`, `"7\u0000"`, `"7\n"`, `"7\r\nX-User-Id: 8"`, `"../7"`, `"7/8"`, `"7 "`, `" 7"`, `"７"`, `"\u202e7"`, `"é"`, `"7'--"`, `"*"`, `"7,8"`} {
		cases = append(cases, claim{with(`"sub":%s,"exp":%d`, v, unix+60), ErrSubject})
	}
	// Every time claim with every value that is no time, or none that can be meant.
	for _, name := range []string{"exp", "nbf", "iat"} {
		rest := ""
		if name != "exp" {
			rest = with(`,"exp":%d`, unix+60)
		}
		for _, v := range []string{`"tomorrow"`, with(`"%d"`, unix+60), `""`, "true", "false", "[]", with("[%d]", unix+60), "{}", "-1", "-1e300", "1e300", "1e400", "-0.5",
			"253402300800", "9223372036854775807", "9223372036854775808", "18446744073709551616", strings.Repeat("9", 400), "NaN", "Infinity", "0x7fffffff", "01", "+1", "1."} {
			cases = append(cases, claim{with(`"sub":"7",%q:%s%s`, name, v, rest), ErrInvalid})
		}
	}
	// Parts of a second do not count.
	for offset, want := range map[float64]error{-86400: ErrExpired, -31: ErrExpired, -30: ErrExpired, -29.5: ErrExpired, -29: nil, 0: nil, 0.5: nil, 1: nil, 31536000: nil} {
		cases = append(cases, claim{with(`"sub":"7","exp":%.1f`, float64(unix)+offset), want})
	}
	for _, name := range []string{"nbf", "iat"} {
		for offset, want := range map[float64]error{-86400: nil, 0: nil, 29: nil, 30: nil, 30.5: nil, 31: ErrEarly, 86400: ErrEarly} {
			cases = append(cases, claim{with(`"sub":"7","exp":%d,%q:%.1f`, unix+60, name, float64(unix)+offset), want})
		}
		cases = append(cases, claim{with(`"sub":"7","exp":%d,%q:null`, unix+60, name), nil}, claim{with(`"sub":"7","exp":%d,%q:0`, unix+60, name), nil})
	}
	cases = append(cases, claim{`"sub":"7","exp":null`, ErrInvalid}, claim{`"sub":"7","exp":0`, ErrExpired}, claim{`"sub":"7","exp":253402300799`, nil},
		claim{with(`"sub":"7","exp":%d,"nbf":%d`, unix-31, unix+31), ErrExpired}, claim{with(`"sub":"","exp":%d`, unix-31), ErrExpired})
	for _, name := range []string{"aud", "iss", "jti", "kid", "alg", "X-User-Id", "role"} { // they mean nothing here
		for _, v := range []string{`"x"`, "7", "null", "true", `["a","b"]`, "[1]", "{}"} {
			want := error(nil)
			if name == "jti" && v != `"x"` && v != "null" { // an id that is no text could not be revoked
				want = ErrInvalid
			}
			cases = append(cases, claim{with(`"sub":"7","exp":%d,%q:%s`, unix+60, name, v), want})
		}
	}
	for _, c := range cases {
		text := "{" + c.text + "}"
		for alg, token := range map[string]string{"HS256": hs(m{"alg": "HS256", "kid": "hs"}, text, secret), "EdDSA": f.ed(m{"alg": "EdDSA", "kid": "ed"}, text)} {
			who, err := f.Verify([]byte(token))
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || err == nil && !strings.HasPrefix(who.UID, "7") || err != nil && who != (User{}) {
				t.Errorf("%s of %.200s: got %+v, %v; want %v", alg, text, who, err, c.want)
			}
		}
	}
	t.Logf("%d tokens", 2*len(cases))
}

// Every algorithm under every kid, signed with whatever an attacker has: only a key's own algorithm with the key itself is taken.
func TestAlgorithmsAndKeys(t *testing.T) {
	f := setup(t)
	claims := m{"sub": "7", "exp": f.now.Unix() + 60}
	der, _ := x509.MarshalPKIXPublicKey(f.pub)
	kids := []any{nil, "hs", "ed", "", "HS", "hs ", "hs\x00", "../hs", "/dev/null", "https://evil.example/key", "hs' OR '1'='1", "${jndi:ldap://x}", 0, 1, true, []string{"hs"}, m{"kid": "hs"}}
	algs := []any{nil, "HS256", "EdDSA", "", "none", "None", "NONE", "nOnE", "hs256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "eddsa", "Ed25519", "HS256 ", "HMAC", 256, true, []string{"HS256"}, m{}}
	macKeys := map[string]string{"the secret": secret, "nothing": "", "the public key": string(f.pub), "the public key in base64": base64.StdEncoding.EncodeToString(f.pub),
		"the public key in DER": string(der), "the public key in PEM": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))}
	n := 0
	check := func(how, token string, good bool) {
		n++
		who, err := f.Verify([]byte(token))
		if good && (err != nil || who.UID != "7") || !good && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %+v, %v; taken: want %v", how, who, err, good)
		}
	}
	for _, kid := range kids {
		for _, alg := range algs {
			head := m{"typ": "JWT"}
			if kid != nil {
				head["kid"] = kid
			}
			if alg != nil {
				head["alg"] = alg
			}
			for name, key := range macKeys {
				check(fmt.Sprintf("alg %v, kid %v, an HMAC with %s", alg, kid, name), hs(head, claims, key), alg == "HS256" && kid == "hs" && name == "the secret")
			}
			check(fmt.Sprintf("alg %v, kid %v, the private key", alg, kid), f.ed(head, claims), alg == "EdDSA" && kid == "ed")
			check(fmt.Sprintf("alg %v, kid %v, unsigned", alg, kid), b64(head)+"."+b64(claims)+".", false)
		}
	}
	for _, extra := range []m{{"crit": []string{"exp"}}, {"crit": []string{}}, {"crit": nil}, {"crit": "b64", "b64": false}} {
		head := m{"alg": "HS256", "kid": "hs"}
		maps.Copy(head, extra)
		check(fmt.Sprint(head), hs(head, claims, secret), false)
	}
	for _, extra := range []m{{"jwk": m{"kty": "oct", "k": b64("k")}}, {"jku": "https://evil.example/jwks"}, {"x5u": "https://evil.example/x"}, {"x5c": []string{"AA"}}, {"zip": "DEF"}, {"cty": "JWT"}, {"typ": 1}} {
		head := m{"alg": "HS256", "kid": "hs"}
		maps.Copy(head, extra)
		check(fmt.Sprint(head, " with the key that it names"), hs(head, claims, "k"), false)
		check(fmt.Sprint(head, " with the key itself"), hs(head, claims, secret), true) // they change nothing
	}
	t.Logf("%d tokens", n)
}

// Nothing is taken but what a key signed: three parts, each in its one spelling.
func FuzzVerify(f *testing.F) {
	x := setup(f)
	f.Add(hs(m{"alg": "HS256", "kid": "hs"}, m{"sub": "7", "exp": x.now.Unix() + 60}, secret))
	f.Add(b64(m{"alg": "none", "kid": "hs"}) + "." + b64(m{"sub": "7"}) + ".")
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		who, err := x.Verify([]byte(token))
		if err != nil {
			if who != (User{}) {
				t.Errorf("refused with %v, and names %+v", err, who)
			}
			return
		}
		parts := strings.Split(token, ".")
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(parts[0] + "." + parts[1]))
		if len(parts) != 3 || parts[2] != b64(mac.Sum(nil)) { // nobody has the other key
			t.Errorf("took %q as %+v", token, who)
		}
	})
}

// Whatever a key signed, who is named is named by one member, sub, and until a time that can be written.
func FuzzClaims(f *testing.F) {
	x := setup(f)
	f.Add(`{"alg":"HS256","kid":"hs"}`, `{"sub":"7","exp":1782910000}`)
	f.Add(`{"alg":"HS256","kid":"hs","alg":"none"}`, `{"sub":"7","Sub":"8","exp":1782910000.5,"nbf":1,"iat":0}`)
	f.Add(`{"kid":"hs","alg":"HS256","crit":[]}`, `{"exp":1e300}`)
	f.Fuzz(func(t *testing.T, header, claims string) {
		who, err := x.Verify([]byte(hs(header, claims, secret)))
		if err != nil {
			return
		}
		var named map[string]any
		if err := json.Unmarshal([]byte(claims), &named); err != nil || named["sub"] != who.UID || !wire.ValidUID(who.UID) {
			t.Errorf("took %q as %+v (%v)", claims, who, err)
		}
		if _, err := who.Expires.UTC().MarshalText(); err != nil || !who.Expires.After(x.now.Add(-time.Minute)) {
			t.Errorf("%q expires at %v (%v)", claims, who.Expires, err)
		}
	})
}

func TestRememberedTokenExpires(t *testing.T) {
	f := setup(t)
	token := []byte(hs(m{"alg": "HS256", "kid": "hs"}, m{"sub": "7", "exp": f.now.Unix() + 60}, secret))
	if _, err := f.Verify(token); err != nil {
		t.Fatal(err)
	}
	f.now = f.now.Add(89 * time.Second)
	if _, err := f.Verify(token); err != nil {
		t.Errorf("within the leeway: %v", err)
	}
	f.now = f.now.Add(time.Second)
	if _, err := f.Verify(token); !errors.Is(err, ErrExpired) {
		t.Errorf("got %v, want ErrExpired", err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	f := setup(t)
	for i := range shards*perShard + 5000 {
		f.cache.put(fmt.Sprintf("token-%d", i), &verified{User: User{UID: "7"}})
	}
	f.cache.put(strings.Repeat("a", maxCached+1), &verified{User: User{UID: "7"}})
	n := 0
	for i := range f.cache.shards {
		n += len(f.cache.shards[i].tokens)
	}
	if n > shards*perShard || n < shards*perShard*9/10 {
		t.Errorf("got %d remembered, want at most %d", n, shards*perShard)
	}
	if f.cache.get([]byte(strings.Repeat("a", maxCached+1))) != nil {
		t.Error("a long token is remembered")
	}
}

func TestMint(t *testing.T) {
	f := setup(t)
	s, ok := NewSigner([]Key{{KID: "ed", Alg: "EdDSA"}, {KID: "hs", Alg: "HS256", Secret: secret, Sign: true}}, Rules{})
	if !ok || s.Key.KID != "hs" {
		t.Fatalf("got %+v, %v", s, ok)
	}
	token, expires, err := s.Mint("alice", f.now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if who, err := f.Verify([]byte(token)); err != nil || who.UID != "alice" || !who.Expires.Equal(expires) || !expires.Equal(f.now.Add(24*time.Hour)) {
		t.Errorf("got %+v, %v, %v", who, expires, err)
	}
	if _, _, err := s.Mint("a b", f.now, time.Hour); err == nil {
		t.Error("minted for a uid that is none")
	}
	s.Key.Sign = false
	if _, _, err := s.Mint("a", f.now, time.Hour); err == nil {
		t.Error("minted with a key that may not sign")
	}
}

// A token that the same login service signed for something else is no login here, whatever tells them apart; what is minted is one.
func TestTokensForOtherPurposes(t *testing.T) {
	f := setup(t)
	unix := f.now.Unix()
	key := Key{KID: "hs", Alg: "HS256", Secret: secret, Sign: true}
	rules := Rules{Issuers: []string{"https://login.example", "https://old.example"}, Audiences: []string{"shop", "shop-app"}, Types: []string{"at+jwt", "application/JWT"},
		MaxLifetime: time.Hour, Leeway: 30 * time.Second}
	good := func() (header, claims m) {
		return m{"alg": "HS256", "kid": "hs", "typ": "at+jwt"}, m{"sub": "7", "iss": "https://login.example", "aud": "shop", "exp": unix + 3600, "iat": unix}
	}
	type change func(header, claims m)
	in := func(name string, value any) change { return func(_, claims m) { claims[name] = value } }
	out := func(name string) change { return func(_, claims m) { delete(claims, name) } }
	typ := func(value any) change { return func(header, _ m) { header["typ"] = value } }
	all := func(list ...change) change {
		return func(h, c m) {
			for _, f := range list {
				f(h, c)
			}
		}
	}
	for _, c := range []struct {
		name   string
		change change
		want   error
	}{
		{"all as it should be", all(), nil},
		{"a password reset, by its type", typ("reset+jwt"), ErrInvalid},
		{"a password reset, by its audience", in("aud", "reset"), ErrInvalid},
		{"a password reset, by its issuer", in("iss", "https://login.example/reset"), ErrInvalid},
		{"a password reset, by its life", in("exp", unix+86400), ErrInvalid},
		{"the other issuer", in("iss", "https://old.example"), nil},
		{"no issuer", out("iss"), ErrInvalid},
		{"an issuer that is a list", in("iss", []string{"https://login.example"}), ErrInvalid},
		{"an issuer in capitals", in("iss", "https://LOGIN.example"), ErrInvalid},
		{"one of several audiences", in("aud", []string{"billing", "shop-app"}), nil},
		{"several others", in("aud", []string{"billing", "reset"}), ErrInvalid},
		{"an empty list of audiences", in("aud", []string{}), ErrInvalid},
		{"no audience", out("aud"), ErrInvalid},
		{"an audience that is null", in("aud", nil), ErrInvalid},
		{"an audience in capitals", in("aud", "SHOP"), ErrInvalid},
		{"an audience that begins so", in("aud", "shop2"), ErrInvalid},
		{"an audience that is a number", in("aud", 1), ErrInvalid},
		{"an audience that is an object", in("aud", m{"shop": "shop"}), ErrInvalid},
		{"a number among the audiences", in("aud", []any{1, "shop"}), ErrInvalid},
		{"a type in capitals", typ("AT+JWT"), nil},
		{"a whole media type", typ("application/at+jwt"), nil},
		{"a whole media type in capitals", typ("Application/AT+JWT"), nil},
		{"the other type", typ("jwt"), nil},
		{"a type of something else", typ("text/at+jwt"), ErrInvalid},
		{"no type", func(h, _ m) { delete(h, "typ") }, ErrInvalid},
		{"a type that is a number", typ(1), ErrInvalid},
		{"a life too long", in("iat", unix-1), ErrInvalid},
		{"a life as long as may be", all(in("iat", unix-60), in("exp", unix+3540)), nil},
		{"no iat", out("iat"), nil},
		{"no iat, within the leeway", all(out("iat"), in("exp", unix+3630)), nil},
		{"no iat, too long", all(out("iat"), in("exp", unix+3631)), ErrInvalid},
	} {
		v, err := NewVerifier([]Key{key}, rules, func() time.Time { return f.now })
		if err != nil {
			t.Fatal(err)
		}
		header, claims := good()
		c.change(header, claims)
		token := []byte(hs(header, claims, secret))
		for _, how := range []string{"at first", "again"} {
			if who, err := v.Verify(token); err != c.want || (err == nil) != (who.UID == "7") {
				t.Errorf("%s, %s: got %+v, %v, want %v", c.name, how, who, err, c.want)
			}
		}
		if _, err := f.Verify(token); err != nil && c.want == nil {
			t.Errorf("%s: without rules: %v", c.name, err)
		}
	}
	v, _ := NewVerifier([]Key{key}, rules, func() time.Time { return f.now })
	token, expires, err := Signer{key, rules}.Mint("7", f.now, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if who, err := v.Verify([]byte(token)); err != nil || who.UID != "7" || !expires.Equal(f.now.Add(time.Hour)) {
		t.Errorf("a minted token: got %+v, %v, expires %v", who, err, expires)
	}
}

func TestKeyChecks(t *testing.T) {
	pub, _, _ := ed25519.GenerateKey(rand.Reader)
	der, _ := x509.MarshalPKIXPublicKey(pub)
	pemText := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	for _, good := range []string{base64.StdEncoding.EncodeToString(pub), pemText, base64.StdEncoding.EncodeToString(der)} {
		if err := (Key{KID: "a", Alg: "EdDSA", PublicKey: good}).Check(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for want, k := range map[string]Key{
		"kid:":           {Alg: "HS256", Secret: secret},
		"alg: \"RS512\"": {KID: "a", Alg: "RS512"},
		"secret: 5":      {KID: "a", Alg: "HS256", Secret: "short"},
		"public_key:":    {KID: "a", Alg: "EdDSA", PublicKey: "AAAA"},
		"sign:":          {KID: "a", Alg: "EdDSA", PublicKey: pemText, Sign: true},
		"an HS256 key":   {KID: "a", Alg: "HS256", Secret: secret, PublicKey: pemText},
		"an EdDSA key":   {KID: "a", Alg: "EdDSA", Secret: secret, PublicKey: pemText},
	} {
		if err := k.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %s", k, err, want)
		}
	}
	if _, err := NewVerifier([]Key{{KID: "a", Alg: "HS256", Secret: secret}, {KID: "a", Alg: "HS256", Secret: secret}}, Rules{}, time.Now); err == nil {
		t.Error("a kid twice: accepted")
	}
}

func BenchmarkVerifyRemembered(b *testing.B) {
	v, _ := NewVerifier([]Key{{KID: "hs", Alg: "HS256", Secret: secret}}, Rules{}, time.Now)
	token := []byte(hs(m{"alg": "HS256", "kid": "hs"}, m{"sub": "7", "exp": time.Now().Unix() + 3600}, secret))
	b.ReportAllocs()
	for b.Loop() {
		v.Verify(token)
	}
}
