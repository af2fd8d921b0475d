package edge

import "bytes"

// split cuts a request target in two. The path must be in origin form and canonical: no percent-encoding, no empty or
// dot segments, nothing but letters, digits and "._-/". So what is equal to two readers is equal here, too.
func split(target []byte) (path, query []byte, ok bool) {
	path = target
	if i := bytes.IndexByte(target, '?'); i >= 0 {
		path, query = target[:i], target[i+1:]
	}
	if len(path) == 0 || path[0] != '/' || len(path) > 256 {
		return nil, nil, false
	}
	segment := 0 // where the present segment starts
	for i, c := range path {
		switch {
		case c == '/':
			if i > 0 && (i == segment || dots(path[segment:i])) {
				return nil, nil, false
			}
			segment = i + 1
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-':
		default:
			return nil, nil, false
		}
	}
	for _, c := range query {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return nil, nil, false
		}
	}
	return path, query, !dots(path[segment:])
}

func dots(s []byte) bool { return string(s) == "." || string(s) == ".." }

// queryOnce reports whether each parameter is there at most once, or answers 400.
func (x *exchange) queryOnce() bool {
	for _, name := range []string{"wait_ms", "sale_id", "cursor"} {
		n := 0
		for key := range x.ctx.QueryArgs().All() {
			if string(key) == name {
				n++
			}
		}
		if n > 1 {
			x.badField(name, "it is there twice")
			return false
		}
	}
	return true
}

// query is the part of the request's query that these parameters make. The caller has checked their values.
func (x *exchange) query(names ...string) (q string) {
	join := "?"
	for _, name := range names {
		if v := x.ctx.QueryArgs().Peek(name); len(v) > 0 {
			q += join + name + "=" + string(v)
			join = "&"
		}
	}
	return q
}

// goodCursor reports whether the query's cursor, if it has one, may be sent on, or answers 400.
func (x *exchange) goodCursor() bool {
	if !plainCursor(x.ctx.QueryArgs().Peek("cursor")) {
		x.badField("cursor", "it must be one that an earlier answer gave")
		return false
	}
	return true
}

// plainCursor takes only characters that mean nothing else in a query.
func plainCursor[S string | []byte](s S) bool {
	if len(s) > 200 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.' || c == '~') {
			return false
		}
	}
	return true
}
