package tlscert

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Store is the certificates and ticket keys in force. It is safe for concurrent use.
type Store struct {
	log *slog.Logger

	mu      sync.Mutex // guards what follows
	files   Files
	current Material
	tried   map[string]string // by the file that is not in force as it is on disk: why not

	config atomic.Pointer[tls.Config]
	pairs  atomic.Pointer[[]*loaded] // those of current, for handshakes

	renewed, refused prometheus.Counter
}

// NewStore makes a Store without certificates.
func NewStore(log *slog.Logger, reg prometheus.Registerer) *Store {
	s := &Store{log: log, tried: map[string]string{}}
	s.pairs.Store(new([]*loaded))
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gateway_tls_renewals_total", Help: "Changed files of certificates and ticket keys, by what became of them."}, []string{"result"})
	s.renewed, s.refused = v.WithLabelValues("ok"), v.WithLabelValues("refused")
	reg.MustRegister(v, s)
	return s
}

// suites is what TLS 1.2 may use: AEAD with ECDHE. Those of TLS 1.3 are all of that kind, and not to be chosen.
var suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// Set puts into force what f.Read has returned. Connections that are open keep what they have.
func (s *Store) Set(f Files, m *Material) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.current
	clear(s.tried)
	s.current = Material{slices.Clone(m.pairs), m.tickets}
	old := s.config.Load()
	switch {
	case len(m.pairs) == 0:
		s.config.Store(nil)
	case old == nil || f.MinVersion != s.files.MinVersion || (before.tickets == nil) != (m.tickets == nil):
		c := &tls.Config{
			MinVersion: versions[f.MinVersion], CipherSuites: suites, NextProtos: []string{"http/1.1"}, GetCertificate: s.choose,
			DynamicRecordSizingDisabled: true, // an answer is one record and one system call, where it fits
		}
		if m.tickets != nil {
			c.SetSessionTicketKeys(m.tickets.keys)
		}
		s.config.Store(c)
	case m.tickets != nil && m.tickets.content != before.tickets.content:
		old.SetSessionTicketKeys(m.tickets.keys)
	}
	s.files = f
	s.publish()
}

// publish gives handshakes the present pairs. The caller holds mu.
func (s *Store) publish() {
	pairs := slices.Clone(s.current.pairs)
	s.pairs.Store(&pairs)
}

// Config is what handshakes are made with; nil: there are no certificates. It stays good while files change, and until the next
// Set.
func (s *Store) Config() *tls.Config { return s.config.Load() }

var errNone = errors.New("there is no certificate any more")

// choose is the first certificate that suits the client and the name it asks for, or else the first of all.
func (s *Store) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	pairs := *s.pairs.Load()
	if len(pairs) == 0 {
		return nil, errNone
	}
	if len(pairs) > 1 {
		for _, p := range pairs {
			if hello.SupportsCertificate(&p.Certificate) == nil {
				return &p.Certificate, nil
			}
		}
	}
	return &pairs[0].Certificate, nil
}

// Covers reports whether a certificate is for the host, a name or an address.
func (s *Store) Covers(host string) bool {
	return slices.ContainsFunc(*s.pairs.Load(), func(p *loaded) bool { return p.Leaf.VerifyHostname(host) == nil })
}

// Refresh reads the files again. What has changed and is good comes into force, each pair by itself. What is bad changes
// nothing, and is logged, counted and named by Warnings.
func (s *Store) Refresh(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for i, p := range s.files.Certificates {
		l, err := p.read(now, s.current.pairs[i])
		if s.judge(p.Certificate, err, l != s.current.pairs[i]) {
			s.current.pairs[i], changed = l, true
			s.log.Info("a certificate was renewed", "file", p.Certificate, "names", strings.Join(l.Leaf.DNSNames, " "), "until", l.Leaf.NotAfter.UTC())
		}
	}
	if changed {
		s.publish()
	}
	if s.current.tickets != nil {
		t, err := readTickets(s.files.TicketKeys)
		if s.judge(s.files.TicketKeys, err, err == nil && t.content != s.current.tickets.content) {
			s.current.tickets = t
			s.config.Load().SetSessionTicketKeys(t.keys)
			s.log.Info("the keys of session tickets were renewed", "file", s.files.TicketKeys, "keys", len(t.keys))
		}
	}
}

// judge notes what was found of a file, and reports whether it is to be put into force. A failure is logged once.
func (s *Store) judge(file string, err error, changed bool) bool {
	if err == nil {
		delete(s.tried, file)
		if changed {
			s.renewed.Inc()
		}
		return changed
	}
	if s.tried[file] != err.Error() {
		s.tried[file] = err.Error()
		s.refused.Inc()
		s.log.Error("a file of TLS was not taken over, what it held before stays", "file", file, "error", err)
	}
	return false
}

// expirySoon is how long before its end a certificate is named by Warnings.
const expirySoon = 7 * 24 * time.Hour

// Warnings says which files are not in force as they are on disk, and which certificates in force end soon or have ended.
func (s *Store) Warnings(now time.Time) (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for file, why := range s.tried {
		all = append(all, fmt.Sprintf("%s was not taken over, what it held before stays: %s", file, why))
	}
	for i, p := range s.current.pairs {
		file, end := s.files.Certificates[i].Certificate, p.Leaf.NotAfter
		if now.After(end) {
			all = append(all, fmt.Sprintf("the certificate of %s has expired at %s", file, end.UTC().Format(time.RFC3339)))
		} else if end.Sub(now) < expirySoon {
			all = append(all, fmt.Sprintf("the certificate of %s expires at %s", file, end.UTC().Format(time.RFC3339)))
		}
	}
	slices.Sort(all)
	return all
}

// Expires is when the first certificate in force expires; zero: there is none.
func (s *Store) Expires() (first time.Time) {
	for _, p := range *s.pairs.Load() {
		if first.IsZero() || p.Leaf.NotAfter.Before(first) {
			first = p.Leaf.NotAfter
		}
	}
	return first
}

// Directories is where the files are. A change there may be one of theirs: files are replaced, and a ConfigMap's are links.
func (s *Store) Directories() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var dirs []string
	for _, p := range s.files.Certificates {
		dirs = append(dirs, filepath.Dir(p.Certificate), filepath.Dir(p.Key))
	}
	if s.files.TicketKeys != "" {
		dirs = append(dirs, filepath.Dir(s.files.TicketKeys))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

var (
	expiryDesc  = prometheus.NewDesc("gateway_tls_certificate_expiry_timestamp_seconds", "When the certificate in force expires.", []string{"file"}, nil)
	refusedDesc = prometheus.NewDesc("gateway_tls_file_refused", "1: the file on disk is bad, and what it held before is in force.", []string{"file"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Store) Describe(out chan<- *prometheus.Desc) { out <- expiryDesc; out <- refusedDesc }

// Collect implements prometheus.Collector.
func (s *Store) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	refused := func(file string) {
		value := 0.0
		if _, bad := s.tried[file]; bad {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(refusedDesc, prometheus.GaugeValue, value, file)
	}
	for i, p := range s.current.pairs {
		file := s.files.Certificates[i].Certificate
		if seen[file] { // named twice in the configuration
			continue
		}
		seen[file] = true
		out <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, float64(p.Leaf.NotAfter.Unix()), file)
		refused(file)
	}
	if s.current.tickets != nil {
		refused(s.files.TicketKeys)
	}
}
