package operator

import (
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"floodgate.internal/shared/problem"
)

// Authenticator says who a request to an operators' listener is from, and slows down those who guess. It is safe for concurrent use.
type Authenticator struct {
	list         func() *List
	log          *slog.Logger
	guesses      *guesses
	wrong, slows prometheus.Counter
}

// NewAuthenticator makes one for the operators that list returns. It registers its metrics under the binary's name.
func NewAuthenticator(list func() *List, binary string, log *slog.Logger, register prometheus.Registerer) *Authenticator {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: binary + "_operator_guesses_total", Help: "Wrong tokens of operators (wrong), and tokens that were not looked at because their address had sent too many (slowed).",
	}, []string{"result"})
	register.MustRegister(v)
	return &Authenticator{list: list, log: log, guesses: newGuesses(), wrong: v.WithLabelValues("wrong"), slows: v.WithLabelValues("slowed")}
}

// Bearer returns who sent a request, by its Authorization field. A request without a token is no guess.
func (a *Authenticator) Bearer(r *http.Request) (Operator, *problem.Problem) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Operator{}, problem.New(problem.Unauthenticated, "this takes an operator's token: Authorization: Bearer TOKEN")
	}
	return a.Token(r.RemoteAddr, token)
}

// Token returns whose token it is. remote is the host:port that it came from.
//
// An address with too many wrong tokens waits, and its next token is not looked at, even if it is right: else it could go on guessing.
// A right token of Mint never waits. Nobody guesses one, and behind a proxy all have one address.
func (a *Authenticator) Token(remote, token string) (Operator, *problem.Problem) {
	o, right := a.list().Find(token)
	if right && minted(token) {
		return o, nil
	}
	from := network(remote)
	wait, wrong := a.guesses.take(from, right, time.Now())
	switch {
	case wait > 0:
		a.slows.Inc()
		p := problem.New(problem.RateLimited, "too many wrong tokens came from your address: wait, then send the right one")
		p.RetryAfter = wait
		return Operator{}, p
	case !right:
		a.wrong.Inc()
		a.log.Warn("a wrong operator token", "address", from.String(), "wrong", wrong)
		return Operator{}, problem.New(problem.Unauthenticated, "this is no operator's token")
	}
	return o, nil
}

// TooLow is the refusal of an operator whose role is below need.
func TooLow(o Operator, need Role) *problem.Problem {
	return problem.New(problem.Forbidden, fmt.Sprintf("this needs the role %s: %s is %s", need, o.Name, o.Role))
}

// Describe sets the header fields of a refusal that a client needs to go on.
func Describe(h http.Header, p *problem.Problem) {
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="floodgate operators"`)
	case http.StatusTooManyRequests:
		h.Set("RateLimit-Policy", fmt.Sprintf(`"guesses";q=%d;w=%d`, burstWrong, burstWrong*int(everyWrong/time.Second)))
		h.Set("RateLimit", fmt.Sprintf(`"guesses";r=0;t=%d`, seconds(p.RetryAfter)))
	}
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(seconds(p.RetryAfter), 10))
	}
}

func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
